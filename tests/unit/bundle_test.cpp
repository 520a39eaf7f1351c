#include "cache/bundle.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "unit/cache_fixture.h"

namespace fs = std::filesystem;
using nq::Bundle;
using nq::BundleItem;
using nq::Entry;
using nq::Error;
using nq::Outcome;
using nq::Result;
using nq::system_files;
using namespace nq::test;

namespace {

std::vector<Entry> samples(int count) {
    std::vector<Entry> entries;
    for (int i = 0; i < count; ++i) {
        entries.push_back(sample_entry("entry " + std::to_string(i / 2)));
        if (i % 2 == 1) entries.back().compiler[0] ^= 0xff;  // two compilers of each key
    }
    return entries;
}

Outcome write(const std::string& path, const std::vector<Entry>& entries, const nq::FileOps& files = quick_files()) {
    std::vector<BundleItem> items;
    for (const Entry& entry : entries) items.push_back({entry.key, entry.compiler, "sm_100f"});
    return nq::write_bundle(files, path, items, [&](const BundleItem& item) -> Result<Entry> {
        for (const Entry& entry : entries)
            if (entry.key == item.key && entry.compiler == item.compiler) return entry;
        return Error{NQ_ERR_INTERNAL, "no such entry", {}};
    });
}

std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// What a reader gets out of the file: every entry that is read must be one of the originals.
std::size_t sound_entries(const std::string& path, const std::vector<Entry>& originals) {
    const auto bundle = Bundle::open(quick_files(), path, false);
    if (!bundle) return 0;
    std::size_t sound = 0;
    for (const BundleItem& item : bundle->items()) {
        const auto entry = bundle->read(item);
        if (!entry) continue;
        CHECK(std::ranges::any_of(originals, [&](const Entry& original) { return same(original, *entry); }));
        ++sound;
    }
    return sound;
}

}  // namespace

TEST_CASE("entries come back from a bundle, wherever it is moved to") {
    const TempDirectory directory;
    const std::vector<Entry> entries = samples(101);
    REQUIRE(write(directory / "a.nqb", entries));
    fs::create_directories(directory / "elsewhere");
    fs::rename(directory / "a.nqb", directory / "elsewhere/b");
    const auto bundle = Bundle::open(quick_files(), directory / "elsewhere/b", false);
    REQUIRE(bundle);
    CHECK(bundle->items().size() == 101);
    for (const Entry& entry : entries) {
        const auto found = bundle->find(entry.key);
        REQUIRE(found.size() == (same(entry, entries.back()) ? 1 : 2));
        std::size_t equal = 0;
        for (const BundleItem* item : found) {
            CHECK(item->arch == "sm_100f");
            const auto read = bundle->read(*item);
            REQUIRE(read);
            equal += same(*read, entry);
        }
        CHECK(equal == 1);
    }
    CHECK(bundle->find(sample_entry("absent").key).empty());
    // Nothing else in the directory: no temp file is left.
    CHECK(files_below(directory.path()).size() == 1);
}

TEST_CASE("the bytes of a bundle do not depend on the order in which entries were given") {
    const TempDirectory directory;
    std::vector<Entry> entries = samples(20);
    REQUIRE(write(directory / "a", entries));
    std::ranges::reverse(entries);
    REQUIRE(write(directory / "b", entries));
    CHECK(content(directory / "a") == content(directory / "b"));
}

TEST_CASE("an empty bundle is one") {
    const TempDirectory directory;
    REQUIRE(write(directory / "a", {}));
    const auto bundle = Bundle::open(quick_files(), directory / "a", false);
    REQUIRE(bundle);
    CHECK(bundle->items().empty());
    CHECK(bundle->find(sample_entry().key).empty());
}

TEST_CASE("what cannot be a bundle is not written, and what was there stays") {
    const TempDirectory directory;
    const std::vector<Entry> entries = samples(4);
    REQUIRE(write(directory / "a", entries));
    const std::string before = content(directory / "a");
    std::vector<Entry> twice = entries;
    twice.push_back(entries[0]);
    CHECK_FALSE(write(directory / "a", twice));
    for (const char* arch : {"", "SM_90", "../x", "sm_90/..", "sm_90f_but_much_too_long"}) {
        CHECK_FALSE(nq::write_bundle(quick_files(), directory / "a", {{entries[0].key, entries[0].compiler, arch}},
                                     [&](const BundleItem&) -> Result<Entry> { return entries[0]; }));
    }
    CHECK_FALSE(nq::write_bundle(quick_files(), directory / "a", {{entries[0].key, entries[0].compiler, "sm_90"}},
                                 [&](const BundleItem&) -> Result<Entry> { return entries[2]; }));
    // An entry that vanishes, or grows, between the two looks at it.
    int reads = 0;
    CHECK_FALSE(nq::write_bundle(quick_files(), directory / "a", {{entries[0].key, entries[0].compiler, "sm_90"}},
                                 [&](const BundleItem&) -> Result<Entry> {
                                     Entry entry = entries[0];
                                     if (++reads == 2) entry.metadata += std::string(100, ' ');
                                     return entry;
                                 }));
    CHECK(reads == 2);
    CHECK(content(directory / "a") == before);
    CHECK(files_below(directory.path()).size() == 1);
}

TEST_CASE("each system call of writing fails with each error: the old bundle stays, whole", "[faults]") {
    const TempDirectory directory;
    const std::vector<Entry> old = samples(2), fresh = samples(6);
    REQUIRE(write(directory / "a", old));
    const std::string before = content(directory / "a");
    script = {};
    REQUIRE(write(directory / "probe", fresh, scripted_files()));
    const auto calls = std::exchange(script, {}).calls;
    fs::remove(directory / "probe");
    for (std::size_t at = 0; at < calls.size(); ++at) {
        for (const int error : {ENOSPC, EDQUOT, EIO, EROFS, EACCES, EMFILE, ESTALE}) {
            INFO("call " << at << " (" << calls[at] << "): " << std::strerror(error));
            script = {};
            script.fail_from = at;
            script.error = error;
            const Outcome written = write(directory / "a", fresh, scripted_files());
            script = {};
            REQUIRE_FALSE(written);
            CHECK(written.error().status == NQ_ERR_CACHE_IO);
            CHECK(written.error().message.find(std::strerror(error)) != std::string::npos);
            CHECK(content(directory / "a") == before);
            CHECK(files_below(directory.path()).size() == 1);
        }
    }
    script = {};
    script.most_bytes = 7;
    CHECK(write(directory / "a", fresh, scripted_files()));
    CHECK(sound_entries(directory / "a", fresh) == fresh.size());
    script = {};
}

TEST_CASE("every byte flipped, every length: never anything but an original entry", "[faults]") {
    const TempDirectory directory;
    const std::vector<Entry> entries = samples(3);
    REQUIRE(write(directory / "good", entries));
    const std::string good = content(directory / "good");
    const std::string path = directory / "bad";
    std::size_t partly = 0;
    for (std::size_t i = 0; i < good.size(); ++i) {
        for (const char flip : {char(1), char(0x80)}) {
            std::string bytes = good;
            bytes[i] = static_cast<char>(bytes[i] ^ flip);
            write_file(path, bytes);
            const std::size_t sound = sound_entries(path, entries);
            INFO("byte " << i);
            // Header and index: nothing is left. An entry: it is lost and no other. Padding means nothing.
            if (i < nq::kBundleHeaderBytes + 3 * 64) REQUIRE(sound == 0);
            else REQUIRE(sound >= entries.size() - 1);
            partly += sound == entries.size() - 1;
        }
    }
    CHECK(partly > good.size());
    for (std::size_t size = 0; size < good.size(); ++size) {
        write_file(path, good.substr(0, size));
        REQUIRE(sound_entries(path, entries) == 0);
    }
    write_file(path, good + '\0');
    CHECK(sound_entries(path, entries) == 0);
}

TEST_CASE("sizes that lie, with a right checksum, cost no memory", "[faults]") {
    const TempDirectory directory;
    const std::vector<Entry> entries = samples(2);
    REQUIRE(write(directory / "good", entries));
    const std::string good = content(directory / "good");
    const std::string path = directory / "bad";
    std::vector<std::uint64_t> lies = {0, 1, 15, 16, (1u << 20) + 1, UINT32_MAX, UINT64_MAX - 15, UINT64_MAX};
    for (int shift = 20; shift < 64; ++shift) lies.push_back(std::uint64_t{1} << shift);
    const auto lost = [&] { return sound_entries(path, entries) < entries.size(); };
    // total_bytes, count, index_offset; then offset and bytes of the first entry.
    for (const std::size_t at : {std::size_t(16), std::size_t(24), std::size_t(32), nq::kBundleHeaderBytes + 48,
                                 nq::kBundleHeaderBytes + 56}) {
        for (const std::uint64_t lie : lies) {
            std::string bytes = good;
            std::memcpy(bytes.data() + at, &lie, sizeof lie);
            const std::size_t head = nq::kBundleHeaderBytes + 2 * 64;
            const std::string_view view = bytes;
            const auto checksum = nq::digest128({view.substr(0, 40), view.substr(56, head - 56)});
            std::memcpy(bytes.data() + 40, checksum.data(), checksum.size());
            write_file(path, bytes);
            INFO("offset " << at << ", value " << lie);
            CHECK(lost());
            CHECK(within_memory(4 << 20, lost));
        }
    }
    // A file that really is that long, as far as stat can tell.
    write_file(path, good);
    fs::resize_file(path, 1ull << 40);
    CHECK(within_memory(4 << 20, lost));
    // And one whose header says so: no more than the largest index, 64 MiB.
    std::string bytes = good;
    for (const auto& [at, value] : {std::pair(16, std::uint64_t{1} << 40), std::pair(24, nq::kMaxBundleEntries)})
        std::memcpy(bytes.data() + at, &value, sizeof value);
    write_file(path, bytes);
    fs::resize_file(path, 1ull << 40);
    CHECK(within_memory(256 << 20, lost));
}

TEST_CASE("opening and reading: each system call fails with each error, once and for good", "[faults]") {
    const TempDirectory directory;
    const std::string path = directory / "a";
    const std::vector<Entry> entries = samples(6);
    REQUIRE(write(path, entries));
    // Opens and reads all; false if it could not be opened.
    std::size_t read = 0, refused = 0;
    const auto use = [&] {
        read = refused = 0;
        const auto bundle = Bundle::open(scripted_files(), path, false);
        if (!bundle) {
            CHECK(bundle.error().status == NQ_ERR_CACHE_IO);
            CHECK(bundle.error().message.find(path) != std::string::npos);
            CHECK(bundle.error().message.find(std::strerror(script.error)) != std::string::npos);
            return false;
        }
        for (const BundleItem& item : bundle->items()) {
            if (const auto entry = bundle->read(item)) {
                CHECK(std::ranges::any_of(entries, [&](const Entry& original) { return same(original, *entry); }));
                ++read;
            } else {
                CHECK(entry.error().message.find(std::strerror(script.error)) != std::string::npos);
                ++refused;
            }
        }
        return true;
    };
    script = {};
    REQUIRE(use());
    const auto calls = std::exchange(script, {}).calls;
    REQUIRE(std::ranges::count(calls, "pread") == 6);
    for (std::size_t at = 0; at < calls.size(); ++at) {
        for (const int error : {EIO, EACCES, EMFILE, ESTALE, ENOMEM, EINTR}) {
            for (const bool for_good : {false, true}) {
                if (error == EINTR && for_good) continue;  // it would be retried for good, too
                INFO("call " << at << " (" << calls[at] << "): " << std::strerror(error) << ", again " << for_good);
                script = {};
                script.fail_from = at;
                script.error = error;
                script.same_call_again = for_good;
                const bool retried = error == EINTR && calls[at] != "fstat";
                const bool of_entry = calls[at] == "pread";
                CHECK(use() == (of_entry || retried || calls[at] == "close"));
                if (of_entry && !retried) {
                    const std::size_t first = static_cast<std::size_t>(std::ranges::find(calls, "pread") - calls.begin());
                    CHECK(refused == (for_good ? 6 - (at - first) : 1));
                    CHECK(read == 6 - refused);
                }
                script = {};
                CHECK(sound_entries(path, entries) == 6);
            }
        }
    }
    script = {};
    script.most_bytes = 7;
    CHECK(use());
    CHECK(read == 6);
    script = {};
}

TEST_CASE("a bundle that is cut short or overwritten while it is open is a miss, and no more") {
    const TempDirectory directory;
    const std::vector<Entry> entries = samples(50);
    REQUIRE(write(directory / "a", entries));
    const auto bundle = Bundle::open(quick_files(), directory / "a", false);
    REQUIRE(bundle);
    const BundleItem last = bundle->items().back();
    REQUIRE(bundle->read(last));
    fs::resize_file(directory / "a", last.offset + 10);
    CHECK_FALSE(bundle->read(last));
    fs::resize_file(directory / "a", 0);
    for (const BundleItem& item : bundle->items()) CHECK_FALSE(bundle->read(item));
    // Replaced as it should be, by a rename: who has it open keeps the old one.
    REQUIRE(write(directory / "b", entries));
    const auto second = Bundle::open(quick_files(), directory / "b", false);
    REQUIRE(second);
    REQUIRE(write(directory / "b", samples(2)));
    CHECK(second->read(last));
}

TEST_CASE("something else in the place of a bundle, or of an owner that is not trusted") {
    const TempDirectory directory;
    REQUIRE(write(directory / "good", samples(2)));
    const std::string path = directory / "bundle";
    const auto status = [&](bool shared = false) {
        const auto bundle = Bundle::open(system_files(), path, shared);
        return bundle ? NQ_OK : bundle.error().status;
    };
    CHECK(status() == NQ_ERR_CACHE_IO);
    SECTION("directory") {
        fs::create_directory(path);
        CHECK(status() == NQ_ERR_INVALID_ARGUMENT);
    }
    SECTION("FIFO") {
        REQUIRE(mkfifo(path.c_str(), 0600) == 0);
        CHECK(status() == NQ_ERR_INVALID_ARGUMENT);
    }
    SECTION("symlink") {
        fs::create_symlink(directory / "good", path);
        CHECK(status() == NQ_ERR_INVALID_ARGUMENT);
    }
    SECTION("socket") {
        const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        REQUIRE(fd >= 0);
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        REQUIRE(path.size() < sizeof address.sun_path);
        std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
        REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
        CHECK(status() == NQ_ERR_INVALID_ARGUMENT);
        close(fd);
    }
    SECTION("mode") {
        fs::copy_file(directory / "good", path);
        CHECK(status() == NQ_OK);
        REQUIRE(chmod(path.c_str(), 0666) == 0);
        CHECK(status() == NQ_ERR_CACHE_UNTRUSTED);
        CHECK(status(true) == NQ_OK);
    }
    SECTION("owner") {
        fs::copy_file(directory / "good", path);
        script = {};
        script.owner = geteuid() + 4242;
        const auto as_of_another = [&](bool shared) {
            const auto bundle = Bundle::open(scripted_files(), path, shared);
            return bundle ? NQ_OK : bundle.error().status;
        };
        CHECK(as_of_another(false) == NQ_ERR_CACHE_UNTRUSTED);
        CHECK(as_of_another(true) == NQ_OK);
        script = {};
    }
}

TEST_CASE("a device, or another user's file, in the place of a bundle", "[privileged]") {
    const TempDirectory directory;
    const std::string path = directory / "bundle";
    const auto status = [&](bool shared = false) {
        const auto bundle = Bundle::open(system_files(), path, shared);
        return bundle ? NQ_OK : bundle.error().status;
    };
    SECTION("device") {
        if (const auto obstacle = make_device(path)) return skip(*obstacle);
        const auto bundle = Bundle::open(system_files(), path, false);
        REQUIRE_FALSE(bundle);
        CHECK(bundle.error().status == NQ_ERR_INVALID_ARGUMENT);
        CHECK(bundle.error().message.find("not a regular file") != std::string::npos);
    }
    SECTION("another user's") {
        REQUIRE(write(path, samples(2)));
        if (chown(path.c_str(), 4242, 4242) != 0) return skip(std::string("chown: ") + std::strerror(errno));
        CHECK(status() == NQ_ERR_CACHE_UNTRUSTED);
        CHECK(status(true) == NQ_OK);
    }
}

TEST_CASE("threads read one bundle at the same time") {
    const TempDirectory directory;
    const std::vector<Entry> entries = samples(64);
    REQUIRE(write(directory / "a", entries));
    const auto bundle = Bundle::open(quick_files(), directory / "a", false);
    REQUIRE(bundle);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&] {
            for (const BundleItem& item : bundle->items()) {
                const auto entry = bundle->read(item);
                if (!entry || entry->key != item.key || entry->compiler != item.compiler) ++wrong;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
}
