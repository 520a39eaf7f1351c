// Keeps the read-write root small: the entries that were used longest ago go first, by the mtime that a hit renews.
// Removing a file takes nothing from a reader that has it open; one that comes later finds a miss.
#pragma once

#include "support/file.h"

#include <cstdint>
#include <string>

namespace nq {

struct EvictionLimits {
    std::uint64_t bytes = 0;        // above it, entries go until 90 % of it are left; 0: no limit
    std::int64_t age_seconds = 0;   // entries not used for longer go; 0: no limit
};

struct EvictionReport {
    bool ran = false;  // false: another process is at it
    std::uint64_t entries = 0, bytes = 0;                  // removed
    std::uint64_t left_entries = 0, left_bytes = 0;        // of entries, as `du` counts them
    std::uint64_t failed = 0;                              // entries that should have gone and could not be removed
    std::uint64_t temp_files = 0, bad_files = 0, locks = 0;  // left by others, and removed
};

// version_root: <root>/v1. now: seconds since the epoch.
EvictionReport evict(const FileOps& files, const std::string& version_root, mode_t lock_mode,
                     const EvictionLimits& limits, std::int64_t now);

// Removes every entry, and everything else below version_root that the cache makes and nobody is at work on. Files that
// it does not know stay.
EvictionReport clear(const FileOps& files, const std::string& version_root, mode_t lock_mode, std::int64_t now);

}  // namespace nq
