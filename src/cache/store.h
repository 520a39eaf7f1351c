// A directory of entries: the read-write root, or a read-only one that is searched before it. layout.h has the names.
// A hit takes no lock: open, read, verify; and renews the mtime that eviction goes by, at most once an hour.
// Publication is a temp file, fsync, rename, fsync of the directory. Nothing here is fatal: a bad entry is a miss and
// is set aside; any I/O error is a miss. A store warns once; what follows is logged at info level.
#pragma once

#include "cache/counters.h"
#include "cache/entry.h"
#include "cache/eviction.h"
#include "cache/lock.h"
#include "support/file.h"
#include "support/log.h"
#include "support/result.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace nq {

struct StoreOptions {
    bool read_only = false;        // nothing is written: no entry, no lock, no mtime
    bool shared = false;           // whoever may write it is trusted, and what is created gets the umask's permissions
    std::uint64_t size_limit = 0;  // bytes on disk; 0 for none
};

struct StoredEntry {  // one file of the cache, for tools
    std::string path;
    std::string arch;
    std::uint64_t bytes = 0;
    std::int64_t mtime = 0;  // seconds since the epoch
    Result<Entry> entry;     // decoded, or why it cannot be
};

class Store {
public:
    // Touches no file yet. The root is checked for trust when it is first used: a directory, not a symlink, that
    // belongs to the user or to root and that nobody else can write.
    Store(std::string root, StoreOptions options, const FileOps& files, Logger& log, Counters& counters);

    // Absolute, without a slash at its end.
    const std::string& root() const { return root_; }
    const StoreOptions& options() const { return options_; }
    std::string path_of(const std::string& arch, const RequestKey& key, const CompilerId& compiler) const;

    // Why the store is out of use (NQ_ERR_CACHE_UNTRUSTED, or NQ_ERR_INVALID_ARGUMENT for a root that is no directory),
    // if it is. A root that does not exist yet is fine.
    Outcome check();

    std::optional<Entry> load(const std::string& arch, const RequestKey& key, const CompilerId& compiler);
    // Entries of any compiler: what is used when JIT is off, and in read-only layers.
    std::optional<Entry> load_any_compiler(const std::string& arch, const RequestKey& key);

    // An error when it could not be stored, which has been logged; the caller goes on with the cubin it has.
    Outcome publish(const std::string& arch, const Entry& entry);
    // To be called after publish(), without the kernel's lock: evicts when much has been added.
    void keep_within_limit();
    // One attempt at the lock of those who compile this kernel. Unavailable where the store cannot be written.
    FileLock try_lock(const std::string& arch, const RequestKey& key, const CompilerId& compiler);

    // Every entry by path, those that cannot be decoded included. Changes nothing and does not ask for trust.
    void visit(const std::function<void(StoredEntry)>& visitor) const;
    // Looks again at an entry that visit() found wanting, and moves it out of the way or removes it if it still is. False
    // if that failed, or if it cannot be read.
    bool repair(const StoredEntry& bad);

    EvictionReport evict(const EvictionLimits& limits);
    EvictionReport clear();
    // Sums of what ended processes have done here.
    CounterTotals statistics() const;
    void add_statistics(const CounterTotals& totals);
    bool reset_statistics();

private:
    enum class Trust { unknown, trusted, rejected };
    struct Read {
        std::optional<Entry> entry;
        std::string fault;    // why there is none: a bad file
        bool failed = false;  // or one that could not be read, and may be good
    };

    std::string shard_of(const std::string& arch, const RequestKey& key) const;
    mode_t file_mode() const { return options_.shared ? 0666 : 0600; }
    mode_t directory_mode() const { return options_.shared ? 0777 : 0700; }
    bool usable(bool create);
    std::optional<Entry> load_file(const std::string& path, const std::string& arch);
    Read read_placed(const OpenedFile& file, const std::string& path, const std::string& arch) const;
    bool set_aside(const std::string& path, const std::string& arch, const OpenedFile& seen, std::string_view fault);
    Outcome place(const std::string& arch, const Entry& entry, std::string_view bytes);
    Outcome make_own_directories();
    void warn_once(const std::string& text);

    const std::string root_;
    const std::string version_root_;
    const StoreOptions options_;
    const FileOps& files_;
    Logger& log_;
    Counters& counters_;
    std::atomic<Trust> trust_{Trust::unknown};
    std::mutex trust_mutex_;  // guards the step from unknown, and rejection_
    std::optional<Error> rejection_;
    std::atomic<bool> warned_{false};

    std::atomic<std::uint64_t> added_{0};  // bytes published since the last eviction
    std::mutex size_mutex_;                // guards what follows
    std::optional<std::uint64_t> measured_;  // bytes that the last eviction found and left
};

}  // namespace nq
