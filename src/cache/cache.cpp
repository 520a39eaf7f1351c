#include "cache/cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace nq {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A compile takes some 200 ms: a waiter that looks this often adds little to that, and costs little.
constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{50};
// Longer than that is worth a warning: a compiler that hangs, or a holder's child that keeps the lock.
constexpr milliseconds kLongWait{5000};

}  // namespace

Cache::Cache(const CacheConfig& config, const FileOps& files, Logger& log, Counters& counters)
    : log_(log), counters_(counters), lock_timeout_(config.lock_timeout) {
    for (const std::string& path : config.layers) open_layer(path, config.store.shared, files);
    if (!config.root.empty()) root_ = std::make_unique<Store>(config.root, config.store, files, log, counters);
}

void Cache::open_layer(const std::string& path, bool shared, const FileOps& files) {
    Layer layer{path, nullptr, std::nullopt, {}};
    struct stat info {};
    if (files.lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
        layer.directory = std::make_unique<Store>(path, StoreOptions{.read_only = true, .shared = shared}, files, log_,
                                                  counters_);
    } else if (Result<Bundle> bundle = Bundle::open(files, path, shared)) {
        layer.bundle = *std::move(bundle);
    } else {
        layer.fault = bundle.error().message;
        log_.warn(fmt::format("cache layer not used: {}", layer.fault));
    }
    layers_.push_back(std::move(layer));
}

std::string Cache::places() const {
    std::string text;
    const auto append = [&](const std::string& place) { text += (text.empty() ? "" : ", ") + place; };
    for (const Layer& layer : layers_)
        append(layer.fault.empty() ? layer.path : fmt::format("{} (not used: {})", layer.path, layer.fault));
    if (root_) append(root_->root());
    return text.empty() ? "nowhere, as there is no disk cache" : "in " + text;
}

std::optional<Entry> Cache::find_in_bundle(const Bundle& bundle, const RequestKey& key) {
    for (const BundleItem* item : bundle.find(key)) {
        Result<Entry> entry = bundle.read(*item);
        if (entry) {
            add(counters_.loaded_bytes, item->bytes);
            return *std::move(entry);
        }
        add(counters_.bad_entries);
        log_.warn(fmt::format("entry {} of bundle {} is not usable: {}", hex(key), bundle.path(),
                              entry.error().message));
    }
    return std::nullopt;
}

std::optional<Entry> Cache::find_in_root(const std::string& arch, const RequestKey& key,
                                         const std::optional<CompilerId>& compiler) {
    if (!root_) return std::nullopt;
    std::optional<Entry> entry = compiler ? root_->load(arch, key, *compiler) : root_->load_any_compiler(arch, key);
    if (entry) add(counters_.disk_hits);
    return entry;
}

std::optional<Entry> Cache::find(const std::string& arch, const RequestKey& key,
                                 const std::optional<CompilerId>& compiler) {
    for (const Layer& layer : layers_) {
        std::optional<Entry> entry;
        if (layer.directory) entry = layer.directory->load_any_compiler(arch, key);
        if (layer.bundle) entry = find_in_bundle(*layer.bundle, key);
        if (!entry) continue;
        add(counters_.layer_hits);
        return entry;
    }
    return find_in_root(arch, key, compiler);
}

Result<Cache::Obtained> Cache::obtain(const std::string& arch, const RequestKey& key, const CompilerId& compiler,
                                      const std::function<Result<Entry>()>& make) {
    if (std::optional<Entry> entry = find(arch, key, compiler)) return Obtained{*std::move(entry), true};

    FileLock turn = FileLock::none("there is no disk cache");
    const Clock::time_point begin = Clock::now();
    bool waited = false, warned = false;
    const auto end_of_wait = [&] {
        if (waited) add(counters_.lock_wait_ns, static_cast<std::uint64_t>((Clock::now() - begin) / std::chrono::nanoseconds(1)));
    };
    for (milliseconds pause = kFirstPause; root_ && !root_->options().read_only; pause = std::min(2 * pause, kLongestPause)) {
        turn = root_->try_lock(arch, key, compiler);
        // Whoever held it may have published; and who holds it may be the child of one who has.
        if (std::optional<Entry> entry = find_in_root(arch, key, compiler)) {
            end_of_wait();
            return Obtained{*std::move(entry), true};
        }
        if (turn.status() != FileLock::Status::busy) break;

        const auto elapsed = Clock::now() - begin;
        const auto message = [&](std::string_view what) {
            return fmt::format("{}, which compiles kernel {} for {} ({:.1f} s): {}", turn.holder(), hex(key), arch,
                               std::chrono::duration<double>(elapsed).count(), what);
        };
        if (elapsed >= lock_timeout_) {
            add(counters_.lock_timeouts);
            log_.warn(message("waited long enough; compiling it here as well"));
            break;
        }
        if (!std::exchange(waited, true)) {
            add(counters_.lock_waits);
            log_.info(message("waiting for it"));
        }
        if (elapsed >= kLongWait && !std::exchange(warned, true)) log_.warn(message("still waiting for it"));
        std::this_thread::sleep_for(std::min<Clock::duration>(pause, lock_timeout_ - elapsed));
    }
    end_of_wait();

    add(counters_.misses);
    Result<Entry> made = make();
    if (!made) return std::move(made).error();
    Obtained obtained{*std::move(made), false};
    if (root_) obtained.stored = root_->publish(arch, obtained.entry);
    return obtained;
}

}  // namespace nq
