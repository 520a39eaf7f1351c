#include "cache/eviction.h"

#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

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

TEST_CASE("files left by processes that died are reaped, those in use are not") {
    const TempDirectory directory;
    const std::string v1 = directory / "cache/v1";
    TestStore cache(directory / "cache");
    REQUIRE(cache.publish(entry_number(0)));
    for (const char* name : {"tmp/old", "tmp/new", "locks/old", "locks/new", "bad/old", "bad/new"})
        write_file(v1 + "/" + name, "x");
    set_age(v1 + "/tmp/old", 4000);
    set_age(v1 + "/locks/old", 4000);
    set_age(v1 + "/bad/old", 8 * 24 * 3600);
    set_age(v1 + "/bad/new", 4000);
    const Entry busy = entry_number(1);
    const nq::FileLock held = cache.store.try_lock(kArch, busy.key, busy.compiler);
    REQUIRE(held.status() == nq::FileLock::Status::held);
    for (const std::string& name : files_below(v1 + "/locks"))
        if (name != "old" && name != "new") set_age(v1 + "/locks/" + name, 4000);
    const EvictionReport report = cache.store.evict({});
    CHECK(report.entries == 0);
    CHECK(report.temp_files == 1);
    CHECK(report.bad_files == 1);
    CHECK(report.locks == 1);
    CHECK_FALSE(fs::exists(v1 + "/tmp/old"));
    CHECK_FALSE(fs::exists(v1 + "/locks/old"));
    CHECK(files_below(v1 + "/locks").size() == 2);
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

TEST_CASE("clear removes what the cache made and nothing else") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    for (int i = 0; i < 20; ++i) REQUIRE(cache.publish(entry_number(i)));
    cache.store.add_statistics(CounterTotals{.compiles = 3});
    write_file(directory / "cache/mine", "x");
    write_file(directory / "cache/v1/sm_90/00/mine", "x");
    write_file(directory / "cache/v1/bad/old", "x");
    write_file(directory / "cache/v1/tmp/old", "x");
    const EvictionReport report = cache.store.clear();
    CHECK(report.entries == 20);
    CHECK(report.left_entries == 0);
    CHECK(files_below(directory / "cache") ==
          std::vector<std::string>{"mine", "v1/CACHEDIR.TAG", "v1/sm_90/00/mine"});
    CHECK(cache.store.statistics().compiles == 0);
    CHECK(cache.publish(entry_number(0)));
    CHECK(cache.load(entry_number(0)));
    CHECK(cache.messages.warnings.empty());
}

TEST_CASE("each system call of an eviction fails with each error: no entry is lost that should stay") {
    const TempDirectory directory;
    TestStore writer(directory / "cache");
    const auto fill = [&] {
        for (int i = 0; i < 4; ++i) {
            REQUIRE(writer.publish(entry_number(i)));
            set_age(writer.path_of(entry_number(i)), 1000 * (i + 1));
        }
        write_file(directory / "cache/v1/tmp/old", "x");
        set_age(directory / "cache/v1/tmp/old", 4000);
    };
    fill();
    script = {};
    nq::evict(scripted_files(), directory / "cache/v1", 0600, {0, 2500}, std::time(nullptr));
    const auto calls = std::exchange(script, {}).calls;
    for (const char* name : {"opendir", "lstat", "unlink", "lock"}) REQUIRE(std::ranges::count(calls, name) > 0);
    for (std::size_t at = 0; at < calls.size(); ++at) {
        for (const int error : {EIO, EACCES, EROFS, ENOENT, EBUSY, EMFILE, ENOLCK, ESTALE, EINTR}) {
            fill();
            script = {};
            script.fail_from = at;
            script.error = error;
            nq::evict(scripted_files(), directory / "cache/v1", 0600, {0, 2500}, std::time(nullptr));
            script = {};
            INFO("call " << at << " (" << calls[at] << "): " << std::strerror(error));
            for (int i = 0; i < 2; ++i) CHECK(writer.load(entry_number(i)));
        }
    }
    CHECK(writer.messages.warnings.empty());
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

// ---- A disk that is full ------------------------------------------------------------------------------------------

TEST_CASE("a real small file system that fills up") {
    const TempDirectory directory;
    const std::string disk = directory / "disk";
    fs::create_directory(disk);
    if (mount("tmpfs", disk.c_str(), "tmpfs", MS_NODEV | MS_NOSUID, "size=256k,mode=0700") != 0) {
        WARN("no right to mount a tmpfs here: " << std::strerror(errno));
        return;
    }
    {
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
        TestStore limited(disk + "/cache", {.size_limit = 128 << 10}, nq::system_files());
        limited.store.evict({128 << 10, 0});
        for (int i = 0; i < 100; ++i) CHECK(limited.publish(entry_number(i)));
        CHECK(limited.messages.warnings.empty());
    }
    CHECK(umount(disk.c_str()) == 0);
}
