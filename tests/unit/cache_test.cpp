// The cache as a whole: layers, and who compiles when many want one kernel.
#include "cache/cache.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "unit/cache_fixture.h"

namespace fs = std::filesystem;
using nq::Bundle;
using nq::Cache;
using nq::CacheConfig;
using nq::CompilerId;
using nq::Entry;
using nq::Error;
using nq::FileOps;
using nq::Result;
using nq::system_files;
using namespace nq::test;
using std::chrono::milliseconds;

namespace {

void write_bundle(const std::string& path, const std::vector<Entry>& entries) {
    std::vector<nq::BundleItem> items;
    for (const Entry& entry : entries) items.push_back({entry.key, entry.compiler, kArch});
    REQUIRE(nq::write_bundle(quick_files(), path, items, [&](const nq::BundleItem& item) -> Result<Entry> {
        return *std::ranges::find_if(
            entries, [&](const Entry& e) { return e.key == item.key && e.compiler == item.compiler; });
    }));
}

// A compiler that any process can count: a byte of a file each time.
class CountingCompiler {
public:
    explicit CountingCompiler(const std::string& path) : path_(path) { write_file(path, ""); }
    Entry compile(const Entry& entry, milliseconds takes) const {
        const int fd = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
        const bool counted = write(fd, "x", 1) == 1;
        close(fd);
        std::this_thread::sleep_for(takes);
        return counted ? entry : Entry{};
    }
    std::uintmax_t count() const { return fs::file_size(path_); }

private:
    std::string path_;
};

}  // namespace

// ---- Layers -------------------------------------------------------------------------------------------------------

TEST_CASE("layers come first, in order, and are matched on the request key alone") {
    const TempDirectory directory;
    const Entry root = sample_entry("a", 1);
    Entry first = sample_entry("a", 2), second = sample_entry("a", 3), only_second = sample_entry("b", 3);
    first.compiler[0] ^= 1;
    second.compiler[0] ^= 2;
    only_second.compiler[0] ^= 2;
    write_bundle(directory / "first.nqb", {first});
    TestStore directory_layer(directory / "second");
    REQUIRE(directory_layer.publish(second));
    REQUIRE(directory_layer.publish(only_second));
    REQUIRE(TestStore(directory / "root").publish(root));

    CacheConfig config = at_root(directory / "root");
    CHECK(same(*TestCache(config).find(root), root));
    CHECK_FALSE(TestCache(config).find(first));  // the root is matched on the compiler as well
    CHECK(same(*TestCache(config).find_any(first), root));
    config.layers = {directory / "first.nqb", directory / "second"};
    TestCache cache(config);
    CHECK(same(*cache.find(root), first));
    CHECK(same(*cache.find(only_second), only_second));
    CHECK(cache.counters.layer_hits == 2);
    CHECK(cache.counters.disk_hits == 0);
    CHECK_FALSE(cache.find(sample_entry("absent")));
    config.layers = {directory / "second", directory / "first.nqb"};
    CHECK(same(*TestCache(config).find(root), second));
    CHECK(cache.messages.warnings.empty());
    CHECK(cache.cache.places() ==
          "in " + directory / "first.nqb" + ", " + directory / "second" + ", " + directory / "root");

    SECTION("a bad entry of a layer is passed over") {
        fs::resize_file(directory_layer.path_of(second), 100);
        std::fstream file(directory / "first.nqb", std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(300);
        file.put('\x7f');
        file.close();
        TestCache damaged(config);
        const auto before = files_below(directory.path());
        CHECK(same(*damaged.find(root), root));
        CHECK(damaged.counters.bad_entries == 2);
        CHECK(damaged.counters.disk_hits == 1);
        CHECK(files_below(directory.path()) == before);
    }
    SECTION("without a root the layers serve") {
        config.root.clear();
        TestCache layers(config);
        int compiles = 0;
        CHECK(gives(layers.obtain(root, &compiles), second));
        CHECK(gives(layers.obtain(sample_entry("new"), &compiles), sample_entry("new")));
        CHECK(compiles == 1);
        CHECK(layers.messages.warnings.empty());
    }
}

TEST_CASE("a layer that cannot be used is named once, and the rest works") {
    const TempDirectory directory;
    write_file(directory / "no_bundle", "something else");
    fs::create_directory(directory / "open");
    REQUIRE(chmod((directory / "open").c_str(), 0777) == 0);
    const Entry entry = sample_entry();
    for (const std::string name : {"absent.nqb", "no_bundle", "open"}) {
        CacheConfig config = at_root(directory / "root");
        config.layers = {directory / name};
        TestCache cache(config);
        CHECK(gives(cache.obtain(entry), entry));
        CHECK(cache.find(entry));
        REQUIRE(cache.messages.warnings.size() == 1);
        CHECK(cache.messages.warnings[0].find(directory / name) != std::string::npos);
        CHECK(cache.cache.places().find(directory / name) != std::string::npos);
        fs::remove_all(directory / "root");
    }
    CHECK(TestCache(CacheConfig{}).cache.places() == "nowhere, as there is no disk cache");
}

// ---- Obtaining ----------------------------------------------------------------------------------------------------

TEST_CASE("what is obtained once is found from then on") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    TestCache cache(at_root(directory / "root"));
    int compiles = 0;
    const auto first = cache.obtain(entry, &compiles);
    REQUIRE(gives(first, entry));
    CHECK_FALSE(first->cached);
    CHECK(first->stored);
    const auto second = cache.obtain(entry, &compiles);
    REQUIRE(gives(second, entry));
    CHECK(second->cached);
    CHECK(compiles == 1);
    CHECK(cache.counters.misses == 1);
    CHECK(cache.counters.disk_hits == 1);
    CHECK(cache.counters.stored_entries == 1);
    CHECK(cache.counters.lock_waits == 0);
    CHECK(files_below(directory / "root/v1/locks").empty());
    // A hit takes no lock.
    script = {};
    TestCache reader(at_root(directory / "root"), scripted_files());
    CHECK(gives(reader.obtain(entry, &compiles), entry));
    CHECK(std::exchange(script, {}).calls ==
          std::vector<std::string>{"lstat", "lstat", "open", "fstat", "read", "close"});
}

TEST_CASE("a compile that fails leaves nothing, and the next one is not kept from trying") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    TestCache cache(at_root(directory / "root"));
    const auto failed = cache.cache.obtain(kArch, entry.key, entry.compiler, []() -> Result<Entry> {
        return Error{NQ_ERR_COMPILE_FAILED, "no", "the log"};
    });
    REQUIRE_FALSE(failed);
    CHECK(failed.error().status == NQ_ERR_COMPILE_FAILED);
    CHECK(failed.error().detail == "the log");
    CHECK(cache_files(directory / "root").empty());
    CHECK_THROWS_AS(cache.cache.obtain(kArch, entry.key, entry.compiler, []() -> Result<Entry> { throw 7; }), int);
    CHECK(cache_files(directory / "root").empty());
    CHECK(gives(cache.obtain(entry), entry));
    CHECK(cache.find(entry));
}

TEST_CASE("a read-only root is read, and never written, not even a lock") {
    const TempDirectory directory;
    const Entry old = sample_entry("old"), fresh = sample_entry("new");
    REQUIRE(TestStore(directory / "root").publish(old));
    const auto before = files_below(directory / "root");
    CacheConfig config = at_root(directory / "root");
    config.store.read_only = true;
    TestCache cache(config);
    int compiles = 0;
    CHECK(gives(cache.obtain(old, &compiles), old));
    const auto obtained = cache.obtain(fresh, &compiles);
    CHECK(gives(obtained, fresh));
    CHECK(obtained->stored.error().status == NQ_ERR_CACHE_IO);
    CHECK(compiles == 1);
    CHECK(cache.messages.warnings.empty());  // it was asked for
    CHECK(files_below(directory / "root") == before);
}

namespace {

// A cache in some state, made anew for each attempt, and what it may answer.
struct World {
    explicit World(const std::string& state) : config(at_root(directory / "a/root")) {
        const std::string root = config.root;
        if (state == "warm" || state == "used long ago") {
            REQUIRE(TestStore(root).publish(old));
            acceptable.push_back(old);
        }
        if (state == "used long ago") set_age(TestStore(root).path_of(old), 100'000);
        if (state == "damaged") {
            REQUIRE(TestStore(root).publish(old));
            fs::resize_file(TestStore(root).path_of(old), 200);
            bad_entries = 1;
        }
        if (state == "over its limit") {
            for (int i = 0; i < 3; ++i) {
                const Entry other = sample_entry("other " + std::to_string(i));
                REQUIRE(TestStore(root).publish(other));
                set_age(TestStore(root).path_of(other), 1000 + i);
            }
            config.store.size_limit = 1;
        }
        if (state == "in a bundle") {
            write_bundle(directory / "layer", {layered, layered_too});
            config.layers = {directory / "layer"};
            acceptable.insert(acceptable.end(), {layered, layered_too});
        }
        if (state == "in a directory") {
            REQUIRE(TestStore(directory / "layer").publish(layered));
            config.layers = {directory / "layer"};
            acceptable.push_back(layered);
        }
    }
    bool accepts(const Entry& found) const {
        return std::ranges::any_of(acceptable, [&](const Entry& each) { return same(each, found); });
    }
    bool accepts(const Result<Cache::Obtained>& obtained) const { return obtained && accepts(obtained->entry); }
    static Entry of_compiler(unsigned char which, unsigned char fill) {
        Entry made = sample_entry("a", fill);
        made.compiler[0] ^= which;
        return made;
    }

    const TempDirectory directory;
    const Entry entry = sample_entry("a", 2), old = sample_entry("a", 1);
    const Entry layered = of_compiler(1, 3), layered_too = of_compiler(2, 4);
    CacheConfig config;
    std::vector<Entry> acceptable{entry};
    std::uint64_t bad_entries = 0;
};

struct State {
    const char* name;
    std::vector<const char*> reaches;  // calls
};
const State kStates[] = {
    {"cold", {"lstat", "mkdir", "open", "lock", "fstat", "ftruncate", "write", "fsync", "close", "rename", "unlink"}},
    {"warm", {"lstat", "open", "fstat", "read", "close"}},
    {"used long ago", {"touch"}},
    {"damaged", {"mkdir", "opendir", "readdir", "closedir", "rename"}},
    {"over its limit", {"opendir", "readdir", "closedir", "unlink"}},
    {"in a bundle", {"open", "fstat", "read", "pread"}},
    {"in a directory", {"opendir", "readdir", "closedir", "open", "read"}},
};

}  // namespace

TEST_CASE("whatever system call fails, the caller has the right cubin, and there is one warning at most", "[faults]") {
    for (const auto& [state, reaches] : kStates) {
        std::vector<std::string> calls;
        {
            const World world(state);
            script = {};
            TestCache cache(world.config, scripted_files());
            REQUIRE(world.accepts(cache.obtain(world.entry)));
            calls = std::exchange(script, {}).calls;
        }
        for (const char* name : reaches) {
            INFO(state << ": " << name);
            REQUIRE(std::ranges::count(calls, name) >= 1);
        }
        for (std::size_t position = 0; position < calls.size(); ++position) {
            for (const int error : {ENOSPC, EDQUOT, EIO, EINTR, EROFS, EACCES, ESTALE, EBUSY, ENOLCK, EMFILE}) {
                for (const bool for_good : {false, true}) {
                    if (error == EINTR && for_good) continue;  // it would be retried for good, too
                    // "Busy" for good is a lock that is held by somebody who never ends: the deadline's own test.
                    if (calls[position] == "lock" && error == EACCES && for_good) continue;
                    INFO(state << ", call " << position << " (" << calls[position] << "): " << std::strerror(error)
                               << ", again " << for_good);
                    const World world(state);
                    script = {};
                    script.fail_from = position;
                    script.error = error;
                    script.same_call_again = for_good;
                    {
                        TestCache cache(world.config, scripted_files());
                        CHECK(world.accepts(cache.obtain(world.entry)));
                        // What fails for good fails in a layer and in the root, of which each has its say.
                        CHECK(cache.messages.warnings.size() <= (for_good ? 1 + world.config.layers.size() : 1));
                    }
                    script = {};
                    // No partial entry is ever visible; and the next process is as well as ever.
                    TestCache next(world.config);
                    const auto found = next.find(world.entry);
                    CHECK((!found || world.accepts(*found)));
                    CHECK(next.counters.bad_entries <= world.bad_entries);
                    CHECK(world.accepts(next.obtain(world.entry)));
                    CHECK(world.accepts(next.obtain(world.entry)));
                    CHECK(next.messages.warnings.size() <= world.bad_entries);
                    for (const auto& item : list(TestStore(world.config.root).store)) CHECK(item.entry.ok());
                }
            }
        }
    }
}

// ---- Processes ----------------------------------------------------------------------------------------------------

TEST_CASE("killed after each step of a cold compile, the lock held included: the next process is served") {
    const Entry entry = sample_entry();
    std::size_t calls = 0;
    {
        const TempDirectory directory;
        script = {};
        TestCache cache(at_root(directory / "a/root"), scripted_files());
        REQUIRE(cache.obtain(entry));
        calls = std::exchange(script, {}).calls.size();
    }
    REQUIRE(calls >= 20);
    for (std::size_t position = 0; position <= calls; ++position) {
        INFO("killed at call " << position << " of " << calls << " (the last: while it compiles)");
        const TempDirectory directory;
        Child victim([&] {
            script = {};
            script.fail_from = position;
            TestCache cache(at_root(directory / "a/root"), scripted_files());
            return cache.cache
                .obtain(kArch, entry.key, entry.compiler,
                        [&]() -> Result<Entry> {
                            if (position == calls) kill(getpid(), SIGKILL);
                            return entry;
                        })
                .ok();
        });
        REQUIRE(WIFSIGNALED(victim.wait()));
        // A deadline so long that waiting for it would not pass for success.
        TestCache next(at_root(directory / "a/root", milliseconds(600'000)));
        CHECK(gives(next.obtain(entry), entry));
        CHECK(next.counters.lock_timeouts == 0);
        CHECK(next.counters.bad_entries == 0);
        CHECK(next.messages.warnings.empty());
        CHECK(next.find(entry));
    }
}

TEST_CASE("a child that was forked inside the lock keeps it: an entry is served all the same, and the deadline holds") {
    const TempDirectory directory;
    const Entry entry = sample_entry(), other = sample_entry("other");
    TestCache cache(at_root(directory / "root"));
    std::optional<Orphan> sleeper;
    // A child that does nothing but live on, with all that its parent has open.
    const auto fork_sleeper = [] {
        const pid_t child = fork();
        if (child == 0) {
            sleep(600);
            _exit(0);
        }
        return child;
    };
    SECTION("published") {
        REQUIRE(cache.cache.obtain(kArch, entry.key, entry.compiler, [&]() -> Result<Entry> {
            sleeper.emplace(fork_sleeper());
            return entry;
        }));
        TestCache next(at_root(directory / "root", milliseconds(600'000)));
        int compiles = 0;
        CHECK(gives(next.obtain(entry, &compiles), entry));
        CHECK(compiles == 0);
    }
    SECTION("the compile failed") {
        (void)cache.cache.obtain(kArch, other.key, other.compiler, [&]() -> Result<Entry> {
            sleeper.emplace(fork_sleeper());
            return Error{NQ_ERR_COMPILE_FAILED, "no", {}};
        });
        // The holder removes its lock's file as it ends, so that the child keeps a lock that nobody asks for.
        TestCache next(at_root(directory / "root", milliseconds(600'000)));
        int compiles = 0;
        CHECK(gives(next.obtain(other, &compiles), other));
        CHECK(compiles == 1);
    }
    SECTION("the holder was killed, and its child lives on") {
        Pipe forked;
        Child holder([&] {
            TestCache mine(at_root(directory / "root"));
            (void)mine.cache.obtain(kArch, entry.key, entry.compiler, [&]() -> Result<Entry> {
                if (!forked.put(fork_sleeper())) _exit(1);
                kill(getpid(), SIGKILL);
                return entry;
            });
            return false;
        });
        sleeper.emplace(forked.get<pid_t>());
        REQUIRE(WIFSIGNALED(holder.wait()));
        TestCache next(at_root(directory / "root", milliseconds(300)));
        int compiles = 0;
        CHECK(gives(next.obtain(entry, &compiles), entry));
        CHECK(compiles == 1);
        CHECK(next.counters.lock_waits == 1);
        CHECK(next.counters.lock_timeouts == 1);
        CHECK(next.counters.lock_wait_ns >= 300'000'000);
        REQUIRE(next.messages.infos.size() >= 1);
        CHECK(next.messages.infos[0].find("process " + std::to_string(holder.pid()) + " on ") != std::string::npos);
        REQUIRE(next.messages.warnings.size() == 1);
        CHECK(next.messages.warnings[0].find("process " + std::to_string(holder.pid()) + " on ") != std::string::npos);
        CHECK(next.find(entry));  // published without the lock
    }
}

TEST_CASE("64 processes on one cold key: one compile") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    const CountingCompiler compiler(directory / "count");
    std::vector<Child> children;
    for (int i = 0; i < 64; ++i) {
        children.emplace_back([&] {
            TestCache cache(at_root(directory / "a/root", milliseconds(600'000)));
            const auto obtained = cache.cache.obtain(kArch, entry.key, entry.compiler, [&]() -> Result<Entry> {
                return compiler.compile(entry, milliseconds(200));
            });
            return gives(obtained, entry) && cache.messages.warnings.empty() && cache.counters.bad_entries == 0;
        });
    }
    for (Child& child : children) CHECK(child.succeeded());
    CHECK(compiler.count() == 1);
    CHECK(cache_files(directory / "a/root").size() == 1);
}

TEST_CASE("processes that want different kernels do not wait for each other") {
    const TempDirectory directory;
    const Entry first = sample_entry("first"), second = sample_entry("second");
    TestCache cache(at_root(directory / "root")), other(at_root(directory / "root"));
    const auto nested = cache.cache.obtain(kArch, first.key, first.compiler, [&]() -> Result<Entry> {
        CHECK(gives(other.obtain(second), second));
        return first;
    });
    CHECK(gives(nested, first));
    CHECK(other.counters.lock_waits == 0);
}

TEST_CASE("a file system without locks: each compiles, and all is well") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    FileOps files = quick_files();
    for (const int error : {ENOLCK, EOPNOTSUPP, ENOSYS, EINVAL}) {
        static int lock_error;
        lock_error = error;
        files.lock = [](int) {
            errno = lock_error;
            return -1;
        };
        TestCache cache(at_root(directory / "root"), files);
        CHECK(gives(cache.obtain(entry), entry));
        CHECK(cache.messages.warnings.empty());
        REQUIRE(cache.messages.infos.size() == 1);
        CHECK(cache.messages.infos[0].find("without a lock") != std::string::npos);
        CHECK(cache.messages.infos[0].find(std::strerror(error)) != std::string::npos);
        CHECK(cache.find(entry));
        CHECK(cache.counters.lock_waits == 0);
        fs::remove_all(directory / "root");
    }
}
