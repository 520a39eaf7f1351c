// What the tests of the cache share: stores with a recording logger, a table of system calls that fail on command, and
// child processes.
#pragma once

#include <sys/stat.h>

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
#include "support/temp_directory.h"
#include "unit/entry_samples.h"

namespace nq::test {

inline const std::string kArch = "sm_90";

struct Messages {
    std::mutex mutex;
    std::vector<std::string> warnings;
    std::vector<std::string> infos;
    static void record(uint32_t level, const char* message, void* self);
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
    bool publish(const Entry& entry) { return store.publish(kArch, entry).ok(); }
    std::string path_of(const Entry& entry) const { return store.path_of(kArch, entry.key, entry.compiler); }
    std::uint64_t bad_entries() const { return counters.bad_entries; }
    bool warned_of(const std::string& text) const {
        return messages.warnings.size() == 1 && messages.warnings[0].find(text) != std::string::npos;
    }
};

std::vector<StoredEntry> list(const Store& store);

std::vector<std::string> files_below(const std::string& root);
// Entries, temp files, locks and entries set aside; without the cache directory tag.
std::vector<std::string> cache_files(const std::string& root);
void write_file(const std::string& path, const std::string& bytes);
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
};
extern Script script;
const FileOps& scripted_files();

// Runs a function in a child process; true if it returned true there.
class Child {
public:
    explicit Child(const std::function<bool()>& function);
    int wait();
    bool succeeded() { return wait() == 0; }
    void kill_now();
    pid_t pid() const { return pid_; }

private:
    pid_t pid_;
};

}  // namespace nq::test
