// The read-write root of the disk cache:
//   <root>/v1/<arch>/<2 hex>/<30 hex of key>-<16 hex of compiler id>.nqc    entries
//   <root>/v1/tmp/                                                          entries being written
//   <root>/v1/bad/                                                          entries that failed verification, a few
//   <root>/v1/CACHEDIR.TAG                                                  tells backup programs to pass by
// A hit takes no lock: open, read, verify. Publication is a temp file, fsync, rename, fsync of the directory.
// Nothing here is fatal: a bad entry is a miss and is set aside in v1/bad; any I/O error is a miss, and one warning a
// store.
#pragma once

#include "cache/entry.h"
#include "support/file.h"
#include "support/log.h"
#include "support/result.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nq {

struct StoredEntry {  // one file of the cache, for tools
    std::string path;
    std::string arch;
    std::uint64_t bytes = 0;
    std::int64_t mtime = 0;  // seconds since the epoch
    Result<Entry> entry;     // decoded, or why it cannot be
};

class Store {
public:
    // Creates nothing yet. The root is checked for trust when it is first used: a directory, not a symlink, that
    // belongs to the user or to root and that nobody else can write. shared: whoever may write it is trusted, and what
    // is created there gets the permissions that the umask leaves; else it is private to the user.
    Store(std::string root, bool shared, const FileOps& files, Logger& log);

    // Absolute, without a slash at its end.
    const std::string& root() const { return root_; }
    std::string path_of(const std::string& arch, const RequestKey& key, const CompilerId& compiler) const;

    // Why the store is out of use (NQ_ERR_CACHE_UNTRUSTED, or NQ_ERR_INVALID_ARGUMENT for a root that is no directory),
    // if it is. A root that does not exist yet is fine.
    Outcome check();

    std::optional<Entry> load(const std::string& arch, const RequestKey& key, const CompilerId& compiler);
    // Entries of any compiler: what is used when JIT is off.
    std::optional<Entry> load_any_compiler(const std::string& arch, const RequestKey& key);
    // False when it could not be stored; the caller goes on with the cubin it has.
    bool publish(const std::string& arch, const Entry& entry);

    // Every entry by path, those that cannot be decoded included. Changes nothing and does not ask for trust.
    std::vector<StoredEntry> list() const;

    std::uint64_t bad_entries() const { return bad_entries_.load(std::memory_order_relaxed); }

private:
    enum class Trust { kUnknown, kTrusted, kRejected };

    std::string shard_of(const std::string& arch, const RequestKey& key) const;
    bool usable(bool create);
    Outcome trust_of(const struct stat& root) const;
    std::optional<Entry> load_file(const std::string& path, const std::string& arch, const RequestKey& key);
    void set_aside(const std::string& path, const std::string& arch, const std::optional<struct stat>& seen,
                   std::string_view fault);
    Outcome write_new(const std::string& path, std::string_view bytes);
    Result<bool> make_directories(const std::string& path);
    void warn_once(const std::string& text);

    const std::string root_;
    const std::string version_root_;
    const bool shared_;
    const FileOps& files_;
    Logger& log_;
    std::atomic<Trust> trust_{Trust::kUnknown};
    std::mutex trust_mutex_;  // guards the step from unknown, and rejection_
    std::optional<Error> rejection_;
    std::atomic<std::uint64_t> temp_files_{0};
    std::atomic<std::uint64_t> bad_entries_{0};
    std::atomic<bool> warned_{false};
};

}  // namespace nq
