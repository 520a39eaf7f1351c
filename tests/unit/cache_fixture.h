// What the tests of the cache share: stores with a recording logger, a table of system calls that fail on command,
// child processes, pipes and mounts.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "cache/store.h"
#include "support/catch.h"
#include "support/skip.h"
#include "support/temp_directory.h"
#include "unit/entry_samples.h"

namespace nq::test {

inline const std::string kArch = "sm_90";

struct Messages {
    std::mutex mutex;
    std::vector<std::string> warnings;
    std::vector<std::string> infos;
    static void record(uint32_t level, const char* message, void* self);
    bool one_warning_of(const std::string& text) const {
        return warnings.size() == 1 && warnings[0].find(text) != std::string::npos;
    }
};

// The system's calls but for fsync, which takes most of the time and changes nothing that a test could see.
const FileOps& quick_files();

// A store with its logger and counters.
struct TestStore {
    explicit TestStore(const std::string& root, StoreOptions options = {}, const FileOps& files = quick_files())
        : log(&Messages::record, &messages, NQ_LOG_DEBUG), store(root, options, files, log, counters) {}

    Messages messages;
    Logger log;
    Counters counters;
    Store store;

    std::optional<Entry> load(const Entry& wanted) { return store.load(kArch, wanted.key, wanted.compiler); }
    bool publish(const Entry& entry) {
        const bool published = store.publish(kArch, entry).ok();
        store.keep_within_limit();
        return published;
    }
    std::string path_of(const Entry& entry) const { return store.path_of(kArch, entry.key, entry.compiler); }
    std::uint64_t bad_entries() const { return counters.bad_entries; }
    bool warned_of(const std::string& text) const { return messages.one_warning_of(text); }
};

struct TestCache {
    explicit TestCache(const CacheConfig& config, const FileOps& files = quick_files())
        : log(&Messages::record, &messages, NQ_LOG_DEBUG), cache(config, files, log, counters) {}

    Messages messages;
    Logger log;
    Counters counters;
    Cache cache;

    bool warned_of(const std::string& text) const { return messages.one_warning_of(text); }
    std::optional<Entry> find(const Entry& wanted) { return cache.find(kArch, wanted.key, wanted.compiler); }
    std::optional<Entry> find_any(const Entry& wanted) { return cache.find(kArch, wanted.key, std::nullopt); }
    Result<Cache::Obtained> obtain(const Entry& wanted, int* compiles = nullptr) {
        return cache.obtain(kArch, wanted.key, wanted.compiler, [&]() -> Result<Entry> {
            if (compiles != nullptr) ++*compiles;
            return wanted;
        });
    }
};

inline CacheConfig at_root(const std::string& root, std::chrono::milliseconds lock_timeout = std::chrono::seconds(30)) {
    CacheConfig config;
    config.root = root;
    config.lock_timeout = lock_timeout;
    return config;
}

inline bool gives(const Result<Cache::Obtained>& obtained, const Entry& entry) {
    return obtained && same(obtained->entry, entry);
}

std::vector<StoredEntry> list(const Store& store);

std::vector<std::string> files_below(const std::string& root);
// Entries, temp files, locks and entries set aside; without the cache directory tag.
std::vector<std::string> cache_files(const std::string& root);
void write_file(const std::string& path, const std::string& bytes);
// A device of zeros without end; or why there can be none here.
std::optional<std::string> make_device(const std::string& path);
std::string text_of(const std::vector<unsigned char>& bytes);
unsigned mode_of(const std::string& path);
void set_age(const std::string& path, std::int64_t seconds);  // mtime: that long ago
std::int64_t age_of(const std::string& path);

class Umask {
public:
    explicit Umask(mode_t mask) : old_(umask(mask)) {}
    ~Umask() { umask(old_); }

private:
    mode_t old_;
};

// Function pointers carry no state, hence the static script.
struct Script {
    std::vector<std::string> calls;     // what was called, in order
    std::size_t fail_from = SIZE_MAX;   // the call that fails
    bool same_call_again = false;       // and all later calls of the same name
    int error = 0;                      // 0: kill the process instead
    std::size_t most_bytes = SIZE_MAX;  // a write or read transfers at most that many
    std::string failing;
    uid_t owner = static_cast<uid_t>(-1);  // what lstat and fstat say, unless -1
    std::string owner_of;                  // if not empty: of this file alone
};
extern Script script;
const FileOps& scripted_files();

// Runs a function in a child process; true if it returned true there. The child ends with its object at the latest.
class Child {
public:
    explicit Child(const std::function<bool()>& function);
    Child(Child&& other) noexcept : pid_(other.pid_), running_(std::exchange(other.running_, false)) {}
    Child& operator=(Child&&) = delete;
    ~Child();
    int wait();
    bool succeeded() { return wait() == 0; }
    void kill_now();
    pid_t pid() const { return pid_; }

private:
    pid_t pid_;
    bool running_ = true;
};

// A process by its id, perhaps a child's child: killed at the end.
class Orphan {
public:
    explicit Orphan(pid_t pid) : pid_(pid) {}
    Orphan(const Orphan&) = delete;
    Orphan& operator=(const Orphan&) = delete;
    ~Orphan();
    pid_t pid() const { return pid_; }

private:
    const pid_t pid_;
};

// From a child to its parent. Closed by an exec.
class Pipe {
public:
    Pipe();
    Pipe(const Pipe&) = delete;
    Pipe& operator=(const Pipe&) = delete;
    ~Pipe();
    template <class T>
    bool put(const T& value) {
        return write_to(&value, sizeof value);
    }
    // Without a writer left, and nothing sent, that is an end and no wait. The parent's own end is closed here.
    template <class T>
    T get() {
        T value{};
        REQUIRE(read_from(&value, sizeof value) == sizeof value);
        return value;
    }
    // Until every writer has closed its end, by an exec too.
    void wait_for_end();
    void close_writer();

private:
    bool write_to(const void* bytes, std::size_t size);
    std::size_t read_from(void* bytes, std::size_t size);
    int ends_[2];
};

// True if the function does, in a child that can allocate no more than `bytes` beyond what it has: an allocation of a
// size that lies fails there. Sanitizers allocate on their own account: under them, no limit.
bool within_memory(std::size_t bytes, const std::function<bool()>& function);

// A mount that ends with the object. ok(): false where this process may not mount.
class Mount {
public:
    static Mount tmpfs(const std::string& at, const std::string& options);
    static Mount read_only(const std::string& what, const std::string& at);
    Mount(Mount&& other) noexcept : at_(std::exchange(other.at_, {})) {}
    Mount& operator=(Mount&&) = delete;
    ~Mount();
    bool ok() const { return !at_.empty(); }
    // False if somebody still has a file open there.
    bool end();

private:
    explicit Mount(std::string at) : at_(std::move(at)) {}
    std::string at_;
};

}  // namespace nq::test
