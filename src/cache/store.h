// The read-write root of the disk cache: <root>/v1/<arch>/<2 hex>/<30 hex of key>-<16 hex of compiler id>.nqc
// A hit takes no lock: open, read, verify. Publication is a temp file, fsync, rename, fsync of the directory.
// Nothing here is fatal: a bad entry is a miss and is set aside in v1/bad; any I/O error is one warning.
#pragma once

#include "cache/entry.h"
#include "support/file.h"
#include "support/log.h"
#include "support/result.h"

#include <atomic>
#include <optional>
#include <string>
#include <vector>

namespace nq {

struct StoredEntry {  // one file of the cache, for tools
    std::string path;
    std::string arch;
    std::uint64_t bytes = 0;
    std::int64_t mtime = 0;   // seconds since the epoch
    Result<Entry> entry;      // decoded, or why it cannot be
};

class Store {
public:
    // Creates nothing yet. The directory is checked for trust (owner, mode, symlinks) when it is first used.
    Store(std::string root, const FileOps& files, Logger& log);

    const std::string& root() const { return root_; }
    std::string path_of(const std::string& arch, const RequestKey& key, const CompilerId& compiler) const;

    std::optional<Entry> load(const std::string& arch, const RequestKey& key, const CompilerId& compiler);
    // Entries of any compiler: what is used when JIT is off.
    std::optional<Entry> load_any_compiler(const std::string& arch, const RequestKey& key);
    // False when it could not be stored; the caller goes on with the cubin it has.
    bool publish(const std::string& arch, const Entry& entry);

    std::vector<StoredEntry> list() const;

    std::uint64_t bad_entries() const { return bad_entries_.load(std::memory_order_relaxed); }

private:
    std::string root_;
    const FileOps& files_;
    Logger& log_;
    std::atomic<std::uint64_t> bad_entries_{0};
    std::atomic<bool> warned_{false};
};

}  // namespace nq
