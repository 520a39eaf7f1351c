#include "cache/eviction.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <initializer_list>

#include "cache/layout.h"
#include "cache/statistics.h"
#include "unit/cache_fixture.h"

namespace fs = std::filesystem;
using nq::CounterTotals;
using nq::Entry;
using nq::EvictionReport;
using namespace nq::test;

namespace {

// About 8 KiB on disk, whatever the block size up to that.
Entry entry_number(int i) {
    Entry entry = sample_entry("entry " + std::to_string(i));
    entry.metadata.resize(8000, ' ');
    return entry;
}

std::uint64_t on_disk(const std::string& path) {
    struct stat info {};
    REQUIRE(lstat(path.c_str(), &info) == 0);
    return static_cast<std::uint64_t>(info.st_blocks) * 512;
}

std::uint64_t entries_on_disk(const nq::Store& store) {
    std::uint64_t bytes = 0;
    for (const auto& item : list(store)) bytes += on_disk(item.path);
    return bytes;
}

}  // namespace

TEST_CASE("a store keeps within its limit, and the least recently used go first") {
    const TempDirectory directory;
    constexpr std::uint64_t kLimit = 1 << 20;
    TestStore cache(directory / "cache", {.size_limit = kLimit});
    std::vector<Entry> entries;
    for (int i = 0; i < 400; ++i) {
        entries.push_back(entry_number(i));
        REQUIRE(cache.publish(entries.back()));
        set_age(cache.path_of(entries.back()), 100'000 - i);  // younger than the one before
        // The first is in use all the time: a hit makes it young.
        REQUIRE(cache.load(entries[0]));
        // A limit's sixteenth may come on top before it is looked at again.
        CHECK(entries_on_disk(cache.store) <= kLimit + kLimit / 16 + (16 << 10));
    }
    CHECK(cache.counters.evicted_entries > 200);
    CHECK(cache.counters.evicted_bytes > 200 * 8000);
    CHECK(cache.load(entries[0]));
    CHECK(cache.load(entries[399]));
    // What is left is the youngest, without a gap.
    int first_left = 400;
    for (int i = 399; i > 0; --i) {
        const bool there = fs::exists(cache.path_of(entries[i]));
        if (there) {
            CHECK(first_left == i + 1);
            first_left = i;
        }
    }
    CHECK(first_left > 200);
    CHECK(cache.messages.warnings.empty());
}

TEST_CASE("eviction goes down to 90 % of the limit, as du counts, and by age") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    for (int i = 0; i < 100; ++i) {
        REQUIRE(cache.publish(entry_number(i)));
        set_age(cache.path_of(entry_number(i)), 1000 * (i + 1));
    }
    const std::uint64_t all = entries_on_disk(cache.store);
    SECTION("limit not reached") {
        const EvictionReport report = cache.store.evict({all, 0});
        CHECK(report.ran);
        CHECK(report.entries == 0);
        CHECK(report.left_entries == 100);
        CHECK(report.left_bytes == all);
    }
    SECTION("half") {
        const EvictionReport report = cache.store.evict({all / 2, 0});
        CHECK(report.left_bytes <= all / 20 * 9);
        CHECK(report.left_bytes > all / 20 * 9 - (16 << 10));
        CHECK(report.left_bytes == entries_on_disk(cache.store));
        CHECK(report.bytes == all - report.left_bytes);
        CHECK(report.entries + report.left_entries == 100);
        CHECK(list(cache.store).size() == report.left_entries);
        CHECK(fs::exists(cache.path_of(entry_number(0))));
        CHECK_FALSE(fs::exists(cache.path_of(entry_number(99))));
    }
    SECTION("age") {
        const EvictionReport report = cache.store.evict({0, 50'500});
        CHECK(report.entries == 50);
        CHECK(fs::exists(cache.path_of(entry_number(49))));
        CHECK_FALSE(fs::exists(cache.path_of(entry_number(50))));
    }
    SECTION("nothing at all left") {
        CHECK(cache.store.evict({1, 0}).left_entries == 0);
        CHECK(cache.publish(entry_number(0)));
    }
}

TEST_CASE("an entry that is used or replaced while eviction runs stays") {
    const TempDirectory directory;
    static std::string path;
    static int looks;
    TestStore cache(directory / "cache");
    const Entry entry = entry_number(0);
    REQUIRE(cache.publish(entry));
    path = cache.path_of(entry);
    set_age(path, 100'000);
    looks = 0;
    nq::FileOps files = quick_files();
    files.lstat = [](const char* name, struct stat* out) {
        // After the list was made, before the removal.
        if (name == path && ++looks == 2) set_age(path, 0);
        return nq::system_files().lstat(name, out);
    };
    const EvictionReport report = nq::evict(files, directory / "cache/v1", 0600, {0, 50'000}, std::time(nullptr));
    CHECK(looks == 2);
    CHECK(report.entries == 0);
    CHECK(cache.load(entry));
}

TEST_CASE("a reader that has an entry open is not disturbed, and one that comes later finds a miss") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    const Entry entry = entry_number(0);
    REQUIRE(cache.publish(entry));
    static nq::Store* store;
    store = &cache.store;
    nq::FileOps files = quick_files();
    files.fstat = [](int fd, struct stat* out) {
        CHECK(store->evict({1, 0}).entries == 1);
        return nq::system_files().fstat(fd, out);
    };
    TestStore reader(directory / "cache", {}, files);
    const auto found = reader.load(entry);
    REQUIRE(found);
    CHECK(same(*found, entry));
    CHECK_FALSE(reader.load(entry));
    CHECK(reader.messages.warnings.empty());
    CHECK(reader.bad_entries() == 0);
}

TEST_CASE("readers, writers and eviction at the same time") {
    const TempDirectory directory;
    std::vector<Child> children;
    for (int c = 0; c < 6; ++c) {
        children.emplace_back([&, c] {
            TestStore cache(directory / "cache", {.size_limit = 200 << 10});
            for (int i = 0; i < 200; ++i) {
                const Entry entry = entry_number((i * (c + 1)) % 50);
                if (const auto found = cache.load(entry); found && !same(*found, entry)) return false;
                if (!cache.publish(entry)) return false;
                if (i % 20 == 0) cache.store.evict({100 << 10, 0});
            }
            return cache.messages.warnings.empty() && cache.bad_entries() == 0;
        });
    }
    for (Child& child : children) CHECK(child.succeeded());
    TestStore cache(directory / "cache");
    CHECK(entries_on_disk(cache.store) <= (200 << 10) * 17 / 16 * 6);
}

namespace {

// Names that the cache gives: of a temp file, of a lock and of an entry set aside. Any number makes another one.
std::string temp_name(int i) { return "tmp/1" + std::to_string(i) + "-00000000000000aa.nqc"; }
std::string lock_name(int i) { return "locks/sm_90-" + std::to_string(i); }
std::string bad_name(int i) { return "bad/sm_90-" + std::to_string(i) + ".nqc"; }

}  // namespace

TEST_CASE("files left by processes that died are reaped, those in use and those of others are not") {
    const TempDirectory directory;
    const std::string v1 = directory / "cache/v1/";
    TestStore cache(directory / "cache");
    REQUIRE(cache.publish(entry_number(0)));
    enum { kOld, kNew };
    for (const auto& name : {temp_name, lock_name, bad_name})
        for (const int i : {kOld, kNew}) write_file(v1 + name(i), "x");
    set_age(v1 + temp_name(kOld), 4000);
    set_age(v1 + lock_name(kOld), 4000);
    set_age(v1 + bad_name(kOld), 8 * 24 * 3600);
    set_age(v1 + bad_name(kNew), 4000);
    const std::vector<std::string> others = {"bad/mine", "locks/mine", "tmp/mine"};
    for (const std::string& name : others) {
        write_file(v1 + name, "x");
        set_age(v1 + name, 100 * 24 * 3600);
    }
    const Entry busy = entry_number(1);
    const nq::FileLock held = cache.store.try_lock(kArch, busy.key, busy.compiler);
    REQUIRE(held.status() == nq::FileLock::Status::held);
    for (const std::string& name : files_below(v1 + "locks"))
        if (name.size() > 32) set_age(v1 + "locks/" + name, 4000);
    const EvictionReport report = cache.store.evict({});
    CHECK(report.entries == 0);
    CHECK(report.temp_files == 1);
    CHECK(report.bad_files == 1);
    CHECK(report.locks == 1);
    for (const auto& name : {temp_name, lock_name, bad_name}) {
        CHECK_FALSE(fs::exists(v1 + name(kOld)));
        CHECK(fs::exists(v1 + name(kNew)));
    }
    for (const std::string& name : others) CHECK(fs::exists(v1 + name));
    CHECK(files_below(v1 + "locks").size() == 3);  // the new one, the held one, and "mine"
    CHECK(cache.store.try_lock(kArch, busy.key, busy.compiler).status() == nq::FileLock::Status::busy);
    CHECK(cache.load(entry_number(0)));
}

TEST_CASE("one eviction at a time") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    REQUIRE(cache.publish(entry_number(0)));
    const nq::FileLock other =
        nq::FileLock::try_acquire(quick_files(), directory / "cache/v1/locks/eviction", 0600);
    CHECK_FALSE(cache.store.evict({1, 0}).ran);
    CHECK(cache.load(entry_number(0)));
}

TEST_CASE("clear removes what the cache made and nobody is at work on, and nothing else") {
    const TempDirectory directory;
    const std::string v1 = directory / "cache/v1/";
    TestStore cache(directory / "cache");
    for (int i = 0; i < 20; ++i) REQUIRE(cache.publish(entry_number(i)));
    cache.store.add_statistics(CounterTotals{.compiles = 3});
    write_file(directory / "cache/mine", "x");
    for (const std::string name : {"sm_90/00/mine", "bad/mine", "locks/mine", "tmp/mine"}) write_file(v1 + name, "x");
    for (const int i : {0, 1}) {
        write_file(v1 + bad_name(i), "x");
        write_file(v1 + temp_name(i), "x");
    }
    set_age(v1 + temp_name(0), 4000);
    const EvictionReport report = cache.store.clear();
    CHECK(report.entries == 20);
    CHECK(report.left_entries == 0);
    CHECK(report.failed == 0);
    CHECK(report.temp_files == 1);
    CHECK(report.bad_files == 2);
    CHECK(files_below(directory / "cache") ==
          std::vector<std::string>{"mine", "v1/CACHEDIR.TAG", "v1/bad/mine", "v1/locks/mine", "v1/sm_90/00/mine",
                                   "v1/" + temp_name(1), "v1/tmp/mine"});
    CHECK(cache.store.statistics().compiles == 0);
    CHECK(cache.publish(entry_number(0)));
    CHECK(cache.load(entry_number(0)));
    CHECK(cache.messages.warnings.empty());
}

namespace {

// What maintenance may do to a cache under failing calls. `act` gets a store whose system calls follow the script.
void under_each_fault(const std::function<void(TestStore&)>& prepare, const std::function<void(nq::Store&)>& act,
                      std::initializer_list<const char*> reaches, const std::function<void(TestStore&)>& check) {
    const TempDirectory directory;
    const std::string root = directory / "cache";
    const auto run = [&](const Script& plan) {
        fs::remove_all(root);
        {
            TestStore writer(root);
            prepare(writer);
        }
        script = plan;
        TestStore cache(root, {}, scripted_files());
        act(cache.store);
        CHECK(cache.messages.warnings.size() <= 1);
        return std::exchange(script, {});
    };
    const auto calls = run({}).calls;
    for (const char* name : reaches) {
        INFO(name);
        REQUIRE(std::ranges::count(calls, name) > 0);
    }
    for (std::size_t at = 0; at < calls.size(); ++at) {
        for (const int error : {EIO, ENOSPC, EACCES, EROFS, ENOENT, EBUSY, ENOTEMPTY, EMFILE, ENOLCK, ESTALE, EINTR}) {
            for (const bool for_good : {false, true}) {
                if (error == EINTR && for_good) continue;  // it would be retried for good, too
                INFO("call " << at << " (" << calls[at] << "): " << std::strerror(error) << ", again " << for_good);
                Script plan;
                plan.fail_from = at;
                plan.error = error;
                plan.same_call_again = for_good;
                run(plan);
                TestStore after(root);
                for (const auto& item : list(after.store)) CHECK(item.entry.ok());
                check(after);
                // And it works again from here.
                CHECK(after.publish(entry_number(7)));
                CHECK(after.load(entry_number(7)));
                CHECK(after.messages.warnings.empty());
            }
        }
    }
}

void fill(TestStore& cache) {
    for (int i = 0; i < 4; ++i) {
        REQUIRE(cache.publish(entry_number(i)));
        set_age(cache.path_of(entry_number(i)), 1000 * (i + 1));
    }
    const std::string left = cache.store.root() + "/v1/" + temp_name(0);
    write_file(left, "x");
    set_age(left, 4000);
}

}  // namespace

TEST_CASE("each system call of an eviction fails, once and for good: no entry is lost that should stay", "[faults]") {
    under_each_fault(
        fill, [](nq::Store& store) { store.evict({0, 2500}); },
        {"opendir", "readdir", "closedir", "lstat", "unlink", "lock"},
        [](TestStore& after) {
            for (int i = 0; i < 2; ++i) CHECK(after.load(entry_number(i)));
        });
}

TEST_CASE("each system call of a clear fails, once and for good: what is left is whole, and goes the next time",
          "[faults]") {
    under_each_fault(
        fill, [](nq::Store& store) { store.clear(); }, {"opendir", "readdir", "closedir", "lstat", "unlink", "rmdir"},
        [](TestStore& after) {
            CHECK(after.store.clear().left_entries == 0);
            CHECK(list(after.store).empty());
        });
}

TEST_CASE("each system call of the statistics fails, once and for good: the old sums or the new ones", "[faults]") {
    under_each_fault(
        [](TestStore& cache) {
            REQUIRE(cache.publish(entry_number(0)));
            cache.store.add_statistics(CounterTotals{.disk_hits = 1, .compiles = 100});
        },
        [](nq::Store& store) { store.add_statistics(CounterTotals{.disk_hits = 2, .compiles = 20}); },
        {"open", "lock", "fstat", "read", "write", "close", "rename", "unlink"},
        [](TestStore& after) {
            const CounterTotals sums = after.store.statistics();
            INFO(sums.disk_hits << " hits, " << sums.compiles << " compiles");
            // Sums that cannot be read begin anew.
            CHECK(((sums.disk_hits == 1 && sums.compiles == 100) || (sums.disk_hits == 3 && sums.compiles == 120) ||
                   (sums.disk_hits == 2 && sums.compiles == 20)));
            CHECK(after.load(entry_number(0)));
            after.store.add_statistics(CounterTotals{.disk_hits = 4});
            CHECK(after.store.statistics().disk_hits == sums.disk_hits + 4);
        });
}

// ---- Statistics ---------------------------------------------------------------------------------------------------

TEST_CASE("statistics are summed over processes") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    CHECK(cache.store.statistics().compiles == 0);
    cache.store.add_statistics(CounterTotals{.compiles = 1});
    CHECK_FALSE(fs::exists(directory / "cache"));  // nothing is made for their sake
    REQUIRE(cache.publish(entry_number(0)));
    std::vector<Child> children;
    for (int i = 0; i < 16; ++i) {
        children.emplace_back([&] {
            TestStore store(directory / "cache");
            store.store.add_statistics(CounterTotals{.disk_hits = 10, .compiles = 1, .evicted_bytes = 1ull << 40});
            return true;
        });
    }
    for (Child& child : children) CHECK(child.succeeded());
    const CounterTotals totals = cache.store.statistics();
    CHECK(totals.compiles == 16);
    CHECK(totals.disk_hits == 160);
    CHECK(totals.evicted_bytes == 16ull << 40);
    CHECK(totals.memory_hits == 0);
    CHECK(files_below(directory / "cache/v1/tmp").empty());
    CHECK(files_below(directory / "cache/v1/locks").empty());
}

TEST_CASE("statistics that make no sense are zeros") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    REQUIRE(cache.publish(entry_number(0)));
    for (const std::string& text :
         {std::string(), std::string("compiles\n"), std::string("compiles -1\ncompiles 5\n"), std::string("compiles 99999999999999999999\n"),
          std::string("compiles 1x\n"), std::string("xcompiles 1\n"), std::string(1 << 20, 'x'), std::string("\0\n\n\n", 4)}) {
        write_file(directory / "cache/v1/stats", text);
        CHECK(cache.store.statistics().compiles == 0);
    }
    write_file(directory / "cache/v1/stats", "unknown 7\ncompiles 12\nmisses 3");
    CHECK(cache.store.statistics().compiles == 12);
    CHECK(cache.store.statistics().misses == 3);
    fs::remove(directory / "cache/v1/stats");
    REQUIRE(mkfifo((directory / "cache/v1/stats").c_str(), 0600) == 0);
    CHECK(cache.store.statistics().compiles == 0);
}

// ---- Real file systems --------------------------------------------------------------------------------------------

namespace {

// Publishes more than the disk takes, then within a limit that it can hold: that many different entries.
void fill_up(const std::string& disk, const nq::EvictionLimits& room, int entries) {
    TestStore cache(disk + "/cache", {}, nq::system_files());
    int stored = 0, refused = 0;
    for (int i = 0; i < 100; ++i) {
        const Entry entry = entry_number(i);
        if (cache.publish(entry)) {
            ++stored;
            CHECK(cache.load(entry));
        } else {
            ++refused;
            CHECK_FALSE(cache.load(entry));
        }
    }
    CHECK(stored > 5);
    CHECK(refused > 5);
    CHECK(cache.warned_of(std::strerror(ENOSPC)));
    CHECK(cache.counters.failed_stores == static_cast<std::uint64_t>(refused));
    CHECK(files_below(disk + "/cache/v1/tmp").empty());
    CHECK(list(cache.store).size() == static_cast<std::size_t>(stored));
    for (const auto& item : list(cache.store)) CHECK(item.entry.ok());
    CHECK(cache.bad_entries() == 0);
    // A limit below what the disk holds keeps it going.
    TestStore limited(disk + "/cache", {.size_limit = room.bytes}, nq::system_files());
    limited.store.evict(room);
    for (int i = 0; i < 100; ++i) CHECK(limited.publish(entry_number(i % entries)));
    CHECK(limited.messages.warnings.empty());
}

}  // namespace

TEST_CASE("a real small file system that fills up", "[privileged]") {
    const TempDirectory directory;
    const std::string disk = directory / "disk";
    SECTION("bytes") {
        Mount mount = Mount::tmpfs(disk, "size=256k,mode=0700");
        if (!mount.ok()) return skip(std::string("mount of a tmpfs: ") + std::strerror(errno));
        fill_up(disk, {128 << 10, 0}, 100);
        CHECK(mount.end());
    }
    SECTION("files") {
        // As with a quota of inodes: there are bytes, and no further file.
        Mount mount = Mount::tmpfs(disk, "nr_inodes=64,mode=0700");
        if (!mount.ok()) return skip(std::string("mount of a tmpfs: ") + std::strerror(errno));
        fill_up(disk, {64 << 10, 0}, 10);  // directories, which stay, take one each as well
        CHECK(mount.end());
    }
}

TEST_CASE("a file system that is mounted read-only", "[privileged]") {
    const TempDirectory directory;
    const Entry old = sample_entry("old"), bad = sample_entry("bad"), fresh = sample_entry("new");
    const std::string writable = directory / "writable", at = directory / "read-only";
    {
        TestStore writer(writable + "/cache");
        REQUIRE(writer.publish(old));
        REQUIRE(writer.publish(bad));
        set_age(writer.path_of(old), 100'000);
        write_file(writer.path_of(bad), "damaged");
    }
    const auto before = files_below(writable);
    struct Place {
        std::string mounted, root;
        bool exists;
    };
    // The root itself is the mount, or lies somewhere below it, or does not exist there yet.
    for (const auto& [mounted, root, exists] : {Place{writable + "/cache", at, true}, Place{writable, at + "/cache", true},
                                                Place{writable, at + "/other/cache", false}}) {
        INFO(mounted << ", root " << root);
        Mount mount = Mount::read_only(mounted, at);
        if (!mount.ok()) return skip(std::string("read-only mount: ") + std::strerror(errno));
        {
            TestCache cache(at_root(root), nq::system_files());
            if (exists) {
                CHECK(gives(cache.obtain(old), old));
                CHECK(cache.counters.disk_hits == 1);
                CHECK(cache.messages.warnings.empty());
                CHECK(gives(cache.obtain(bad), bad));
                CHECK(cache.counters.bad_entries >= 1);
            }
            int compiles = 0;
            const auto obtained = cache.obtain(fresh, &compiles);
            CHECK(gives(obtained, fresh));
            CHECK_FALSE(obtained->stored);
            CHECK(gives(cache.obtain(fresh, &compiles), fresh));
            CHECK(compiles == 2);
            CHECK(cache.warned_of(std::strerror(EROFS)));
            nq::Store& store = *cache.cache.root();
            store.evict({1, 1});
            store.clear();
            store.add_statistics(CounterTotals{.compiles = 1});
            CHECK(cache.messages.warnings.size() == 1);
            CHECK(store.statistics().compiles == 0);
        }
        CHECK(mount.end());
        CHECK(files_below(writable) == before);
    }
}
