// Names below the root of a cache:
//   <root>/v1/<arch>/<2 hex>/<30 hex of key>-<16 hex of compiler id>.nqc    entries
//   <root>/v1/tmp/          entries being written
//   <root>/v1/locks/        a file for each kernel that is being compiled
//   <root>/v1/bad/          entries that failed verification, a few
//   <root>/v1/stats         counters of the processes that have ended
//   <root>/v1/CACHEDIR.TAG  tells backup programs to pass by
#pragma once

#include "support/file.h"

#include <string>
#include <string_view>

namespace nq::layout {

inline constexpr std::string_view kEntrySuffix = ".nqc";
inline constexpr std::string_view kArchPrefix = "sm_";

inline std::string temp(const std::string& version_root) { return version_root + "/tmp"; }
inline std::string locks(const std::string& version_root) { return version_root + "/locks"; }
inline std::string bad(const std::string& version_root) { return version_root + "/bad"; }
inline std::string stats(const std::string& version_root) { return version_root + "/stats"; }
inline std::string tag(const std::string& version_root) { return version_root + "/CACHEDIR.TAG"; }

// Does a file in one of the directories beside the entries have a name that the cache gives? Others are not touched.
inline bool is_temp_name(std::string_view name) {
    if (name.ends_with(kEntrySuffix)) name.remove_suffix(kEntrySuffix.size());
    return is_unique_name(name);
}
inline bool is_bad_name(std::string_view name) { return name.starts_with(kArchPrefix) && name.ends_with(kEntrySuffix); }
inline constexpr std::string_view kEvictionLock = "eviction", kStatisticsLock = "statistics";
inline bool is_lock_name(std::string_view name) {
    return name.starts_with(kArchPrefix) || name == kEvictionLock || name == kStatisticsLock;
}

// Calls visit(arch, path) for every entry file, in the order of paths.
template <class Visit>
void for_each_entry(const FileOps& files, const std::string& version_root, Visit visit) {
    for (const std::string& arch : names_in(files, version_root)) {
        if (!arch.starts_with(kArchPrefix)) continue;
        const std::string arch_root = version_root + "/" + arch;
        for (const std::string& shard : names_in(files, arch_root)) {
            const std::string shard_root = arch_root + "/" + shard;
            for (const std::string& name : names_in(files, shard_root)) {
                if (name.ends_with(kEntrySuffix)) visit(arch, shard_root + "/" + name);
            }
        }
    }
}

}  // namespace nq::layout
