#include "warmup_bundle.h"

#include "cache/lock.h"
#include "errors.h"
#include "interruption.h"
#include "plan/plan.h"
#include "printable.h"
#include "support/hex.h"

#include <fmt/core.h>

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

namespace nq::cli {
namespace {

// What the cache would serve: the same as a process that finds the kernel there.
std::optional<Entry> find(Context& context, const std::string& arch, const RequestKey& key) {
    std::optional<CompilerId> compiler;
    if (!context.compile_ban()) {
        if (const auto nvrtc = context.nvrtc_file()) compiler = compiler_of(**nvrtc);
    }
    return context.cache().find(arch, key, compiler);
}

Error gone(const RequestKey& key) {
    return failure(fmt::format("the kernel {} went away from the cache while the bundle was made: try again, with a larger "
                               "NORMQUANT_CACHE_SIZE if it is full",
                               hex(key)));
}

std::uint64_t size_of(const std::string& path) {
    struct stat info {};
    return system_files().lstat(path.c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

// None where there is no file.
Result<std::optional<Bundle>> open_present(const std::string& path, bool shared) {
    struct stat info {};
    if (system_files().lstat(path.c_str(), &info) != 0 && errno == ENOENT) return std::optional<Bundle>{};
    auto bundle = Bundle::open(system_files(), path, shared);
    if (!bundle) return usage_error(fmt::format("--bundle: {}; remove it, or name another file", bundle.error().message));
    return std::optional<Bundle>(*std::move(bundle));
}

// From the look at what the file has until it is replaced: what another one adds meanwhile would be lost.
Result<FileLock> lock_bundle(const std::string& path, bool shared) {
    constexpr std::chrono::seconds kLongestWait{60};
    constexpr std::chrono::milliseconds kPause{20};
    const auto begin = std::chrono::steady_clock::now();
    for (bool said = false;; said = true) {
        FileLock lock = FileLock::try_acquire(system_files(), path + ".lock", shared ? 0666 : 0600);
        if (lock.status() == FileLock::Status::unavailable) note(fmt::format("written without a lock, as if nobody else did: {}", lock.fault()));
        if (lock.status() != FileLock::Status::busy) return lock;
        if (Interruption::requested() || std::chrono::steady_clock::now() - begin > kLongestWait)
            return failure(fmt::format("{} is writing {}: the same command tries again", lock.holder(), path));
        if (!said) note(fmt::format("waiting for {}, which is writing {}", lock.holder(), path));
        std::this_thread::sleep_for(kPause);
    }
}

}  // namespace

Outcome check_bundle_place(const std::string& path, bool shared) {
    const auto present = open_present(path, shared);
    if (!present) return present.error();
    std::string directory = std::filesystem::path(path).parent_path().string();
    if (directory.empty()) directory = ".";
    if (::access(directory.c_str(), W_OK | X_OK) == 0) return Unit{};
    return usage_error(fmt::format("--bundle {}: {} cannot be written: {}", path, directory, error_text(errno)));
}

Result<WrittenBundle> write_warm_bundle(Context& context, const WarmupPlan& plan, const std::string& path) {
    const bool shared = context.config().cache.store.shared;
    const auto lock = lock_bundle(path, shared);
    if (!lock) return lock.error();
    const auto opened = open_present(path, shared);
    if (!opened) return opened.error();
    const std::optional<Bundle>& present = *opened;
    const bool wide = context.compile_ban().has_value() || !context.nvrtc() || (*context.nvrtc())->loads_256();
    std::vector<BundleItem> items;
    std::set<RequestKey> keys;
    for (const WarmupPlan::Group& group : plan.groups) {
        for (const Problem& problem : group.problems) {
            for (const Arch& arch : group.archs) {
                for (const Plan& kernel : plans_for(problem, arch)) {
                    if (kernel.load_bytes == 32 && !wide) continue;
                    const CubinRequest request = make_request(problem, kernel, arch);
                    if (!keys.insert(request.key).second) continue;
                    const auto entry = find(context, arch.name(), request.key);
                    if (!entry) return gone(request.key);
                    items.push_back({entry->key, entry->compiler, arch.name(), 0, 0});
                }
            }
        }
    }
    WrittenBundle written;
    std::set<std::pair<RequestKey, CompilerId>> kept;
    if (present) {
        for (const BundleItem& item : present->items()) {
            if (keys.contains(item.key)) continue;  // made anew
            const auto entry = present->read(item);
            if (!entry) continue;
            if (!of_these_sources(*entry)) {
                ++written.dropped;
                continue;
            }
            kept.emplace(item.key, item.compiler);
            items.push_back({item.key, item.compiler, item.arch, 0, 0});
        }
    }
    written.entries = items.size();
    written.kept = kept.size();
    const Outcome done = write_bundle(system_files(), path, std::move(items), [&](const BundleItem& item) -> Result<Entry> {
        if (kept.contains({item.key, item.compiler})) {
            for (const BundleItem* old : present->find(item.key)) {
                if (old->compiler == item.compiler) return present->read(*old);
            }
        }
        if (auto entry = find(context, item.arch, item.key)) return *std::move(entry);
        return gone(item.key);
    });
    if (!done) return done.error();
    written.bytes = size_of(path);
    return written;
}

}  // namespace nq::cli
