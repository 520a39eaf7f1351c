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

std::uint64_t nanoseconds_since(Clock::time_point begin) {
    return static_cast<std::uint64_t>((Clock::now() - begin) / std::chrono::nanoseconds(1));
}

}  // namespace

// A turn of the few that compile at a time.
class Cache::Slot {
public:
    explicit Slot(std::counting_semaphore<>& slots) : slots_(slots) { slots_.acquire(); }
    ~Slot() { slots_.release(); }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

private:
    std::counting_semaphore<>& slots_;
};

Cache::Cache(const CacheConfig& config, const FileOps& files, Logger& log, Counters& counters)
    : log_(log),
      counters_(counters),
      lock_timeout_(config.lock_timeout),
      slots_(static_cast<std::ptrdiff_t>(config.compile_threads)) {
    for (const std::string& path : config.layers) open_layer(path, config.store.shared, files);
    if (!config.root.empty()) root_ = std::make_unique<Store>(config.root, config.store, files, log, counters);
}

void Cache::open_layer(const std::string& path, bool shared, const FileOps& files) {
    Layer layer{path, nullptr, std::nullopt, {}, false};
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

std::string Cache::first_bundle() const {
    const auto layer = std::ranges::find_if(layers_, [](const Layer& l) { return l.bundle.has_value(); });
    return layer != layers_.end() ? layer->path : "";
}

const std::vector<std::string>& Cache::foreign_bundles(const std::function<bool(const Entry&)>& ours) {
    std::call_once(foreign_known_, [&] {
        for (const Layer& layer : layers_) {
            if (!layer.bundle || layer.bundle->items().empty()) continue;
            const bool some_ours = std::ranges::any_of(layer.bundle->items(), [&](const BundleItem& item) {
                const Result<Entry> entry = layer.bundle->read(item);
                return !entry || ours(*entry);  // what cannot be read tells nothing
            });
            if (!some_ours) foreign_.push_back(layer.path);
        }
    });
    return foreign_;
}

std::optional<Entry> Cache::find_in_bundle(Layer& layer, const RequestKey& key) {
    const Bundle& bundle = *layer.bundle;
    for (const BundleItem* item : bundle.find(key)) {
        Result<Entry> entry = bundle.read(*item);
        if (entry) {
            add(counters_.loaded_bytes, item->bytes);
            return *std::move(entry);
        }
        if (entry.error().status != NQ_ERR_CACHE_IO) add(counters_.bad_entries);
        const std::string message =
            fmt::format("entry {} of bundle {} is not usable: {}", hex(key), bundle.path(), entry.error().message);
        const std::lock_guard lock(warned_mutex_);
        if (std::exchange(layer.warned, true))
            log_.info(message);
        else
            log_.warn(message);
    }
    return std::nullopt;
}

std::optional<Entry> Cache::find_in_root(const std::string& arch, const RequestKey& key,
                                         const std::optional<CompilerId>& compiler) {
    if (!root_) return std::nullopt;
    // Nobody can replace what a read-only root has: like a layer, it serves what any compiler made.
    std::optional<Entry> entry = compiler && !root_->options().read_only ? root_->load(arch, key, *compiler)
                                                                         : root_->load_any_compiler(arch, key);
    if (entry) add(counters_.disk_hits);
    return entry;
}

std::optional<Entry> Cache::find(const std::string& arch, const RequestKey& key,
                                 const std::optional<CompilerId>& compiler) {
    for (Layer& layer : layers_) {
        std::optional<Entry> entry;
        if (layer.directory) entry = layer.directory->load_any_compiler(arch, key);
        if (layer.bundle) entry = find_in_bundle(layer, key);
        if (!entry) continue;
        add(counters_.layer_hits);
        return entry;
    }
    return find_in_root(arch, key, compiler);
}

Result<Cache::Obtained> Cache::obtain(const std::string& arch, const RequestKey& key, const CompilerId& compiler,
                                      const std::function<Result<Entry>()>& make, Layers layers) {
    if (std::optional<Entry> entry =
            layers == Layers::search ? find(arch, key, compiler) : find_in_root(arch, key, compiler))
        return Obtained{*std::move(entry), true};

    const bool lockable = root_ && !root_->options().read_only;
    const Clock::time_point begin = Clock::now();
    bool waited = false, warned = false, timed_out = false;
    const auto end_of_wait = [&] {
        if (std::exchange(waited, false)) add(counters_.lock_wait_ns, nanoseconds_since(begin));
    };
    for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
        std::string holder;
        std::optional<Result<Obtained>> made;
        {
            // The slot first: a lock that is held while its holder waits for a slot would make others wait, too.
            const Slot slot(slots_);
            const FileLock turn = lockable ? root_->try_lock(arch, key, compiler) : FileLock::none("not needed");
            // Whoever held it may have published; and who holds it may be the child of one who has.
            if (std::optional<Entry> entry = lockable ? find_in_root(arch, key, compiler) : std::nullopt) {
                end_of_wait();
                return Obtained{*std::move(entry), true};
            }
            if (turn.status() != FileLock::Status::busy || timed_out) {
                end_of_wait();
                made = make_and_store(arch, make);
            } else {
                holder = turn.holder();
            }
        }
        if (made) {
            // Without the lock: a look at all of a large cache takes a while.
            if (root_) root_->keep_within_limit();
            return *std::move(made);
        }
        const auto elapsed = Clock::now() - begin;
        const auto message = [&](std::string_view what) {
            return fmt::format("{}, which compiles kernel {} for {} ({:.1f} s): {}", holder, hex(key), arch,
                               std::chrono::duration<double>(elapsed).count(), what);
        };
        if (elapsed >= lock_timeout_) {
            timed_out = true;
            add(counters_.lock_timeouts);
            log_.warn(message("waited long enough; compiling it here as well"));
            continue;
        }
        if (!std::exchange(waited, true)) {
            add(counters_.lock_waits);
            log_.info(message("waiting for it"));
        }
        if (elapsed >= kLongWait && !std::exchange(warned, true)) log_.warn(message("still waiting for it"));
        std::this_thread::sleep_for(std::min<Clock::duration>(pause, lock_timeout_ - elapsed));
    }
}

Result<Cache::Obtained> Cache::make_and_store(const std::string& arch, const std::function<Result<Entry>()>& make) {
    add(counters_.misses);
    Result<Entry> made = make();
    if (!made) return std::move(made).error();
    Obtained obtained{*std::move(made), false};
    obtained.stored = root_ ? root_->publish(arch, obtained.entry)
                            : Error{NQ_ERR_CACHE_IO, "not stored, as there is no disk cache", {}};
    return obtained;
}

}  // namespace nq
