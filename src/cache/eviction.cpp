#include "cache/eviction.h"

#include "cache/layout.h"
#include "cache/lock.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

namespace nq {
namespace {

// No live writer and no compile takes that long; what is older was left by a process that died.
constexpr std::int64_t kAbandonedSeconds = 3600;
// Entries set aside are for whoever looks into the damage; that time is over some day.
constexpr std::int64_t kBadSeconds = 7 * 24 * 3600;

struct File {
    std::string path;
    std::uint64_t bytes = 0;  // on disk
    std::int64_t mtime = 0;
};

bool look(const FileOps& files, const std::string& path, File& out) {
    struct stat info {};
    if (files.lstat(path.c_str(), &info) != 0 || S_ISDIR(info.st_mode)) return false;
    out = {path, static_cast<std::uint64_t>(info.st_blocks) * 512, info.st_mtime};
    return true;
}

bool remove(const FileOps& files, const std::string& path) {
    return retry_interrupted([&] { return files.unlink(path.c_str()); }) == 0;
}

std::uint64_t reap(const FileOps& files, const std::string& directory, bool (*is_ours)(std::string_view),
                   std::int64_t older_than, const std::function<bool(const std::string&)>& remove_file) {
    std::uint64_t removed = 0;
    for (const std::string& name : names_in(files, directory)) {
        File file;
        if (is_ours(name) && look(files, directory + "/" + name, file) && file.mtime < older_than &&
            remove_file(file.path))
            ++removed;
    }
    return removed;
}

// What dead processes have left.
void reap_leftovers(const FileOps& files, const std::string& version_root, mode_t lock_mode, std::int64_t now,
                    std::int64_t bad_before, EvictionReport& report) {
    const auto unlink = [&](const std::string& path) { return remove(files, path); };
    const std::int64_t abandoned = now - kAbandonedSeconds;
    report.temp_files = reap(files, layout::temp(version_root), layout::is_temp_name, abandoned, unlink);
    report.bad_files = reap(files, layout::bad(version_root), layout::is_bad_name, bad_before, unlink);
    report.locks =
        reap(files, layout::locks(version_root), layout::is_lock_name, abandoned, [&](const std::string& path) {
            // The lock's own end removes the file.
            return FileLock::try_acquire(files, path, lock_mode).status() == FileLock::Status::held;
        });
}

}  // namespace

EvictionReport evict(const FileOps& files, const std::string& version_root, mode_t lock_mode,
                     const EvictionLimits& limits, std::int64_t now) {
    EvictionReport report;
    // One process at a time: two would each see the other's share as still there, and remove twice as much. Where locks
    // do not work, that is better than growing without bound.
    const FileLock turn = FileLock::try_acquire(
        files, fmt::format("{}/{}", layout::locks(version_root), layout::kEvictionLock), lock_mode);
    if (turn.status() == FileLock::Status::busy) return report;
    report.ran = true;

    std::vector<File> entries;
    layout::for_each_entry(files, version_root, [&](const std::string&, const std::string& path) {
        File file;
        if (look(files, path, file)) entries.push_back(std::move(file));
    });
    for (const File& file : entries) report.left_bytes += file.bytes;
    report.left_entries = entries.size();
    const std::uint64_t goal =
        limits.bytes != 0 && report.left_bytes > limits.bytes ? limits.bytes / 10 * 9 : report.left_bytes;
    std::ranges::sort(entries, {}, &File::mtime);
    for (const File& file : entries) {
        const bool too_old = limits.age_seconds != 0 && file.mtime < now - limits.age_seconds;
        if (report.left_bytes <= goal && !too_old) break;
        // Used or replaced since the list was made: no longer among the oldest.
        if (File now_there; !look(files, file.path, now_there) || now_there.mtime != file.mtime) continue;
        if (!remove(files, file.path)) {
            if (errno != ENOENT) ++report.failed;
            continue;
        }
        ++report.entries;
        report.bytes += file.bytes;
        --report.left_entries;
        report.left_bytes -= file.bytes;
    }

    reap_leftovers(files, version_root, lock_mode, now, now - kBadSeconds, report);
    return report;
}

EvictionReport clear(const FileOps& files, const std::string& version_root, mode_t lock_mode, std::int64_t now) {
    EvictionReport report;
    report.ran = true;
    layout::for_each_entry(files, version_root, [&](const std::string&, const std::string& path) {
        File file;
        if (!look(files, path, file)) return;
        if (remove(files, path)) {
            ++report.entries;
            report.bytes += file.bytes;
        } else if (errno != ENOENT) {
            ++report.failed;
            ++report.left_entries;
            report.left_bytes += file.bytes;
        }
    });
    constexpr std::int64_t kAlways = INT64_MAX;
    // Young temp files and held locks belong to processes that are at work.
    reap_leftovers(files, version_root, lock_mode, now, kAlways, report);
    remove(files, layout::stats(version_root));
    for (const std::string& arch : names_in(files, version_root)) {
        if (!arch.starts_with(layout::kArchPrefix)) continue;
        const std::string arch_root = version_root + "/" + arch;
        for (const std::string& shard : names_in(files, arch_root)) files.rmdir((arch_root + "/" + shard).c_str());
        files.rmdir(arch_root.c_str());
    }
    return report;
}

}  // namespace nq
