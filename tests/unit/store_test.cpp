#include "cache/store.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "unit/cache_fixture.h"

namespace fs = std::filesystem;
using nq::Entry;
using nq::FileOps;
using nq::StoreOptions;
using nq::system_files;
using namespace nq::test;

namespace {

constexpr StoreOptions kShared{.shared = true};

bool may_change_users() {
    return Child([] { return setresgid(4000, 4000, 4000) == 0 && setresuid(4001, 4001, 4001) == 0; }).succeeded();
}

}  // namespace

TEST_CASE("published entries come back, to every store on the root") {
    const TempDirectory directory;
    const std::string root = directory / "a/b/cache";
    TestStore cache(root, {}, system_files());
    const Entry entry = sample_entry();
    CHECK_FALSE(cache.load(entry));
    CHECK_FALSE(fs::exists(root));  // a look creates nothing
    REQUIRE(cache.publish(entry));
    for (int i = 0; i < 2; ++i) {
        TestStore other(root);
        const auto back = other.load(entry);
        REQUIRE(back);
        CHECK(same(*back, entry));
        CHECK(other.messages.warnings.empty());
        CHECK(other.bad_entries() == 0);
    }
    CHECK(cache.messages.warnings.empty());
    CHECK(cache.load(entry));
    CHECK_FALSE(cache.load(sample_entry("other")));
    CHECK_FALSE(cache.store.load("sm_80", entry.key, entry.compiler));
    CHECK(cache.messages.warnings.empty());
}

TEST_CASE("paths") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    const Entry entry = sample_entry();
    const std::string key = nq::hex(entry.key), compiler = nq::hex(entry.compiler);
    const std::string name =
        "v1/sm_90/" + key.substr(0, 2) + "/" + key.substr(2) + "-" + compiler.substr(0, 16) + ".nqc";
    CHECK(cache.path_of(entry) == directory / "cache/" + name);
    REQUIRE(cache.publish(entry));
    CHECK(files_below(directory / "cache") == std::vector<std::string>{"v1/CACHEDIR.TAG", name});
    std::ifstream tag(directory / "cache/v1/CACHEDIR.TAG");
    std::string line;
    std::getline(tag, line);
    CHECK(line == "Signature: 8a477f597d28d172789f06886806bc55");

    CHECK(TestStore(directory / "cache///").store.root() == directory / "cache");
    CHECK(TestStore("/").store.root() == "/");
    const fs::path here = fs::current_path();
    CHECK(TestStore("relative").store.root() == (here / "relative").string());
}

TEST_CASE("publishing again replaces") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    const Entry first = sample_entry("a", 1), second = sample_entry("a", 2);
    REQUIRE(cache.publish(first));
    REQUIRE(cache.publish(second));
    CHECK(same(*cache.load(first), second));
    CHECK(cache_files(directory / "cache").size() == 1);
}

TEST_CASE("permissions are private, whatever the umask") {
    for (const mode_t mask : {0000, 0022, 0077}) {
        const TempDirectory directory;
        const Umask umask(mask);
        TestStore cache(directory / "cache");
        const Entry entry = sample_entry();
        REQUIRE(cache.publish(entry));
        CHECK(mode_of(cache.path_of(entry)) == 0600);
        CHECK(mode_of(directory / "cache") == 0700);
        CHECK(mode_of(directory / "cache/v1") == 0700);
        CHECK(mode_of(fs::path(cache.path_of(entry)).parent_path().string()) == 0700);
    }
}

TEST_CASE("permissions of a shared cache are the umask's") {
    const TempDirectory directory;
    const Umask umask(0002);
    TestStore cache(directory / "cache", kShared);
    const Entry entry = sample_entry();
    REQUIRE(cache.publish(entry));
    CHECK(mode_of(cache.path_of(entry)) == 0664);
    CHECK(mode_of(directory / "cache") == 0775);
    CHECK(cache.load(entry));
    TestStore wary(directory / "cache");
    CHECK_FALSE(wary.load(entry));
    CHECK(wary.warned_of("mode 0775"));
}

TEST_CASE("load: any damage is a miss, once warned, and set aside") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    const std::string good = text_of(nq::encode_entry(entry));
    std::vector<std::string> damaged;
    for (std::size_t size = 0; size < good.size(); ++size) damaged.push_back(good.substr(0, size));
    for (std::size_t i = 0; i < good.size(); ++i) {
        damaged.push_back(good);
        damaged.back()[i] = static_cast<char>(damaged.back()[i] ^ 0x10);
    }
    damaged.push_back(good + '\0');
    damaged.push_back(text_of(nq::encode_entry(sample_entry("another"))));
    Entry other_compiler = entry;
    other_compiler.compiler[0] ^= 1;
    damaged.push_back(text_of(nq::encode_entry(other_compiler)));

    for (std::size_t i = 0; i < damaged.size(); ++i) {
        INFO("damage " << i);
        TestStore cache(directory / "cache");
        REQUIRE((i > 0 || cache.publish(entry)));
        write_file(cache.path_of(entry), damaged[i]);
        REQUIRE_FALSE(cache.load(entry));
        REQUIRE(cache.bad_entries() == 1);
        REQUIRE(cache.warned_of(cache.path_of(entry)));
        REQUIRE_FALSE(fs::exists(cache.path_of(entry)));
        REQUIRE_FALSE(cache.load(entry));  // simply absent now
        REQUIRE(cache.bad_entries() == 1);
    }
    TestStore cache(directory / "cache");
    REQUIRE(cache.publish(entry));
    CHECK(same(*cache.load(entry), entry));
}

TEST_CASE("what is set aside is bounded") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    for (int i = 0; i < 100; ++i) {
        const Entry entry = sample_entry("entry " + std::to_string(i));
        write_file(cache.path_of(entry), "damaged");
        if (i == 0) fs::permissions(directory / "cache", fs::perms::owner_all);  // whatever the umask left
        CHECK_FALSE(cache.load(entry));
        CHECK_FALSE(fs::exists(cache.path_of(entry)));
    }
    CHECK(cache.bad_entries() == 100);
    CHECK(cache.messages.warnings.size() == 1);
    CHECK(files_below(directory / "cache/v1/bad").size() == 32);
    CHECK(cache_files(directory / "cache").size() == 32);
}

TEST_CASE("an entry of the right name and a compiler id that differs in its unnamed half is a plain miss") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    const Entry entry = sample_entry();
    REQUIRE(cache.publish(entry));
    Entry other = entry;
    other.compiler[15] ^= 1;
    REQUIRE(cache.path_of(other) == cache.path_of(entry));
    CHECK_FALSE(cache.load(other));
    CHECK(cache.load(entry));
    CHECK(cache.messages.warnings.empty());
}

TEST_CASE("something that is no file in the place of an entry neither hangs nor harms") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    const Entry entry = sample_entry();
    REQUIRE(cache.publish(entry));
    const std::string path = cache.path_of(entry);
    const std::string aside = directory / "aside.nqc";
    fs::rename(path, aside);

    SECTION("FIFO") {
        REQUIRE(mkfifo(path.c_str(), 0600) == 0);
        CHECK_FALSE(cache.load(entry));
        CHECK_FALSE(fs::exists(path));
    }
    SECTION("symlink, to a perfect entry even") {
        fs::create_symlink(aside, path);
        CHECK_FALSE(cache.load(entry));
        CHECK_FALSE(fs::is_symlink(path));
        CHECK(fs::exists(aside));
    }
    SECTION("dangling symlink") {
        fs::create_symlink(directory / "nowhere", path);
        CHECK_FALSE(cache.load(entry));
        CHECK_FALSE(fs::is_symlink(path));
    }
    SECTION("socket") {
        const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        REQUIRE(fd >= 0);
        // Socket paths are short: bind in the directory, then move.
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        const std::string short_path = directory / "s";
        REQUIRE(short_path.size() < sizeof address.sun_path);
        std::memcpy(address.sun_path, short_path.c_str(), short_path.size() + 1);
        REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
        fs::rename(short_path, path);
        CHECK_FALSE(cache.load(entry));
        CHECK_FALSE(fs::exists(path));
        close(fd);
    }
    SECTION("file beyond the size limit, which costs no memory") {
        for (const std::uint64_t size : {nq::kMaxEntryBytes + 1, std::uint64_t{1} << 40}) {
            write_file(path, "x");
            fs::resize_file(path, size);  // without a block on the disk
            CHECK(within_memory(4 << 20, [&] { return !TestStore(directory / "cache", {.read_only = true}).load(entry); }));
        }
        CHECK_FALSE(cache.load(entry));
        CHECK_FALSE(fs::exists(path));
    }
    SECTION("directory") {
        fs::create_directory(path);
        CHECK_FALSE(cache.load(entry));
        CHECK(fs::is_directory(path));  // it may hold something
        CHECK_FALSE(cache.publish(entry));
        CHECK(cache.warned_of(path));
        CHECK(files_below(directory / "cache/v1/tmp").empty());
        fs::remove(path);
    }
    CHECK(cache.bad_entries() == 1);
    CHECK(cache.warned_of(path));
    CHECK(cache.publish(entry));
    CHECK(cache.load(entry));
}

TEST_CASE("a device in the place of an entry is not read, and set aside", "[privileged]") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    const Entry entry = sample_entry();
    REQUIRE(cache.publish(entry));
    const std::string path = cache.path_of(entry);
    fs::remove(path);
    if (const auto obstacle = make_device(path)) return skip(*obstacle);
    script = {};
    TestStore reader(directory / "cache", {}, scripted_files());
    CHECK_FALSE(reader.load(entry));
    CHECK(std::ranges::count(std::exchange(script, {}).calls, "read") == 0);
    CHECK_FALSE(fs::exists(path));
    CHECK(reader.bad_entries() == 1);
    CHECK(reader.warned_of("not a regular file"));
    CHECK(cache.publish(entry));
    CHECK(cache.load(entry));
}

TEST_CASE("metadata is data: nothing in it is parsed on a hit") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    const std::string hostile[] = {"",
                                   "{",
                                   "not JSON",
                                   std::string(1, '\0'),
                                   "\xff\xfe\x80",
                                   std::string(1 << 20, '['),
                                   "{\"a\":1e999999}",
                                   "{\"path\":\"../../../../etc/passwd\"}",
                                   "%s%n{}{0}"};
    for (const std::string& metadata : hostile) {
        Entry entry = sample_entry();
        entry.metadata = metadata;
        REQUIRE(cache.publish(entry));
        const auto back = cache.load(entry);
        REQUIRE(back);
        CHECK(back->metadata == metadata);
    }
    CHECK(cache.messages.warnings.empty());
}

TEST_CASE("what could not be loaded is not published") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    Entry entry = sample_entry();
    entry.cubin = {1, 2, 3};
    CHECK_FALSE(cache.publish(entry));
    CHECK(cache.warned_of("ELF"));
    CHECK_FALSE(fs::exists(directory / "cache"));
}

TEST_CASE("entries of any compiler") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    const Entry entry = sample_entry();
    CHECK_FALSE(cache.store.load_any_compiler(kArch, entry.key));
    Entry second = sample_entry("a", 2);
    second.compiler[0] ^= 0xff;
    REQUIRE(cache.publish(entry));
    REQUIRE(cache.publish(second));
    const auto any = cache.store.load_any_compiler(kArch, entry.key);
    REQUIRE(any);
    CHECK((same(*any, entry) || same(*any, second)));
    CHECK_FALSE(cache.store.load_any_compiler("sm_80", entry.key));
    CHECK_FALSE(cache.store.load_any_compiler(kArch, sample_entry("other").key));

    // A damaged one is passed over.
    const Entry& found = same(*any, entry) ? entry : second;
    const Entry& left = same(*any, entry) ? second : entry;
    write_file(cache.path_of(found), "damaged");
    const auto next = cache.store.load_any_compiler(kArch, entry.key);
    REQUIRE(next);
    CHECK(same(*next, left));
    CHECK(cache.bad_entries() == 1);
}

TEST_CASE("list shows what is there, the damaged too, and changes nothing") {
    const TempDirectory directory;
    TestStore cache(directory / "cache");
    CHECK(list(cache.store).empty());
    const Entry a = sample_entry("a"), b = sample_entry("b"), c = sample_entry("c");
    REQUIRE(cache.store.publish("sm_90", a));
    REQUIRE(cache.store.publish("sm_100f", b));
    REQUIRE(cache.store.publish("sm_90", c));
    const std::string damaged = cache.store.path_of("sm_90", c.key, c.compiler);
    write_file(damaged, "damaged");
    const std::string fifo = damaged + ".nqc";
    REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
    write_file(fs::path(damaged).parent_path().string() + "/README", "not an entry");
    fs::copy_file(cache.store.path_of("sm_90", a.key, a.compiler),
                  fs::path(damaged).parent_path().string() + "/misplaced.nqc");
    const auto before = files_below(directory / "cache");

    const auto listed = list(cache.store);
    CHECK(files_below(directory / "cache") == before);
    REQUIRE(listed.size() == 5);
    CHECK(std::ranges::is_sorted(listed, {}, &nq::StoredEntry::path));
    std::size_t good = 0;
    for (const nq::StoredEntry& item : listed) {
        INFO(item.path);
        struct stat info {};
        REQUIRE(lstat(item.path.c_str(), &info) == 0);
        CHECK(item.bytes == static_cast<std::uint64_t>(info.st_size));
        CHECK(item.mtime == info.st_mtime);
        if (!item.entry) {
            CHECK_FALSE(item.entry.error().message.empty());
            continue;
        }
        ++good;
        CHECK(same(*item.entry, item.arch == "sm_90" ? a : b));
        CHECK(cache.store.path_of(item.arch, item.entry->key, item.entry->compiler) == item.path);
    }
    CHECK(good == 2);
    CHECK(cache.bad_entries() == 0);
}

// ---- Trust --------------------------------------------------------------------------------------------------------

TEST_CASE("a root that others can write is not used") {
    for (const unsigned mode : {0720u, 0702u, 0722u, 0775u, 0777u, 01777u}) {
        const TempDirectory directory;
        const std::string root = directory / "cache";
        fs::create_directory(root);
        REQUIRE(chmod(root.c_str(), mode) == 0);
        TestStore cache(root);
        const Entry entry = sample_entry();
        CHECK_FALSE(cache.publish(entry));
        CHECK_FALSE(cache.load(entry));
        CHECK_FALSE(cache.store.load_any_compiler(kArch, entry.key));
        CHECK(cache.warned_of("NORMQUANT_CACHE_SHARED"));
        CHECK(cache.warned_of(root));
        REQUIRE_FALSE(cache.store.check().ok());
        CHECK(cache.store.check().error().status == NQ_ERR_CACHE_UNTRUSTED);
        CHECK(files_below(root).empty());
        CHECK(mode_of(root) == mode);  // the user's directory is left as it is

        TestStore shared(root, kShared);
        CHECK(shared.publish(entry));
        CHECK(shared.load(entry));
        CHECK(shared.store.check().ok());
        CHECK(shared.messages.warnings.empty());
    }
    for (const unsigned mode : {0700u, 0755u, 0750u, 02755u}) {
        const TempDirectory directory;
        fs::create_directory(directory / "cache");
        REQUIRE(chmod((directory / "cache").c_str(), mode) == 0);
        CHECK(TestStore(directory / "cache").publish(sample_entry()));
    }
}

TEST_CASE("a root of another user is not used") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    REQUIRE(TestStore(directory / "cache").publish(entry));
    script = {};
    script.owner = geteuid() + 4242;
    TestStore cache(directory / "cache", {}, scripted_files());
    CHECK_FALSE(cache.load(entry));
    CHECK_FALSE(cache.publish(entry));
    CHECK(cache.warned_of("belongs to uid " + std::to_string(script.owner)));
    CHECK(cache.store.check().error().status == NQ_ERR_CACHE_UNTRUSTED);
    CHECK(TestStore(directory / "cache", kShared, scripted_files()).load(entry));
    script.owner = 0;  // root may write anywhere as it is
    CHECK(TestStore(directory / "cache", {}, scripted_files()).load(entry));
}

TEST_CASE("an entry that others can write, or that is another user's, is not believed") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    TestStore writer(directory / "cache");
    REQUIRE(writer.publish(entry));
    const std::string path = writer.path_of(entry);
    SECTION("mode") {
        for (const unsigned mode : {0620u, 0602u, 0666u}) {
            REQUIRE(writer.publish(entry));
            REQUIRE(chmod(path.c_str(), mode) == 0);
            CHECK(TestStore(directory / "cache", kShared).load(entry));
            TestStore cache(directory / "cache");
            CHECK_FALSE(cache.load(entry));
            CHECK(cache.warned_of("it can be written by others"));
            CHECK_FALSE(fs::exists(path));
        }
    }
    SECTION("owner") {
        script = {};
        script.owner_of = path;
        script.owner = geteuid() + 4242;
        CHECK(TestStore(directory / "cache", kShared, scripted_files()).load(entry));
        TestStore cache(directory / "cache", {}, scripted_files());
        CHECK_FALSE(cache.load(entry));
        CHECK(cache.warned_of("it belongs to uid " + std::to_string(script.owner)));
        script = {};
    }
    SECTION("a version directory that others can write") {
        REQUIRE(chmod((directory / "cache/v1").c_str(), 0777) == 0);
        TestStore cache(directory / "cache");
        CHECK_FALSE(cache.load(entry));
        CHECK_FALSE(cache.publish(entry));
        CHECK(cache.store.check().error().status == NQ_ERR_CACHE_UNTRUSTED);
    }
}

TEST_CASE("two users on one host: each has its own, and nothing of the other's is believed", "[privileged]") {
    if (!may_change_users()) return skip("no right to become another user");
    const TempDirectory directory;
    fs::permissions(directory.path(), fs::perms::all);
    const Entry entry = sample_entry();
    const auto as_user = [&](uid_t user, const StoreOptions& options, const std::function<bool(TestStore&)>& body) {
        Child child([&] {
            umask(0002);
            if (setresgid(4000, 4000, 4000) != 0 || setresuid(user, user, user) != 0) return false;
            TestStore cache(directory / "cache", options);
            return body(cache);
        });
        return child.succeeded();
    };
    CHECK(as_user(4001, {}, [&](TestStore& cache) { return cache.publish(entry) && cache.load(entry); }));
    // Private: the second user may not even look.
    CHECK(as_user(4002, {}, [&](TestStore& cache) {
        return !cache.load(entry) && !cache.publish(entry) && cache.messages.warnings.size() == 1 &&
               cache.warned_of("belongs to uid 4001");
    }));
    fs::remove_all(directory / "cache");
    // Shared on purpose, through a common group.
    CHECK(as_user(4001, kShared, [&](TestStore& cache) { return cache.publish(entry); }));
    const Entry second = sample_entry("second");
    CHECK(as_user(4002, kShared, [&](TestStore& cache) {
        return cache.load(entry) && cache.publish(second) && cache.messages.warnings.empty();
    }));
    CHECK(as_user(4001, kShared, [&](TestStore& cache) { return cache.load(second).has_value(); }));
}

TEST_CASE("another user's entry in a directory of one's own is not believed", "[privileged]") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    TestStore writer(directory / "cache");
    REQUIRE(writer.publish(entry));
    if (chown(writer.path_of(entry).c_str(), 4242, 4242) != 0)
        return skip(std::string("chown: ") + std::strerror(errno));
    CHECK(TestStore(directory / "cache", kShared).load(entry));
    TestStore cache(directory / "cache");
    CHECK_FALSE(cache.load(entry));
    CHECK(cache.warned_of("it belongs to uid 4242"));
}

TEST_CASE("a root that is a symlink is not used, with a slash at its end or without, shared or not") {
    const TempDirectory directory;
    fs::create_directory(directory / "real");
    fs::create_directory_symlink(directory / "real", directory / "link");
    for (const std::string name : {"link", "link/", "link//"}) {
        for (const bool shared : {false, true}) {
            TestStore cache(directory / name, {.shared = shared});
            CHECK_FALSE(cache.publish(sample_entry()));
            CHECK(cache.warned_of("symbolic link"));
            CHECK(cache.store.check().error().status == NQ_ERR_CACHE_UNTRUSTED);
        }
    }
    CHECK(files_below(directory / "real").empty());
}

TEST_CASE("a root that is a file, or below one") {
    const TempDirectory directory;
    write_file(directory / "file", "mine");
    TestStore file(directory / "file");
    CHECK_FALSE(file.load(sample_entry()));
    CHECK_FALSE(file.publish(sample_entry()));
    CHECK(file.warned_of("is not a directory"));
    CHECK(file.store.check().error().status == NQ_ERR_INVALID_ARGUMENT);
    CHECK(fs::file_size(directory / "file") == 4);

    TestStore below(directory / "file/cache");
    CHECK_FALSE(below.publish(sample_entry()));
    CHECK_FALSE(below.load(sample_entry()));
    CHECK(below.warned_of("Not a directory"));
}

TEST_CASE("a root that cannot be written is still read") {
    const TempDirectory directory;
    const Entry old = sample_entry("old"), fresh = sample_entry("new");
    REQUIRE(TestStore(directory / "cache").publish(old));
    for (const int error : {EROFS, EACCES, EPERM, ENOSPC, EDQUOT}) {
        script = {};
        script.error = error;
        TestStore cache(directory / "cache", {}, scripted_files());
        REQUIRE(cache.load(old));
        // Every mkdir fails from here on.
        script.fail_from = script.calls.size();
        script.same_call_again = true;
        CHECK_FALSE(cache.publish(fresh));
        CHECK_FALSE(cache.publish(fresh));
        CHECK(cache.warned_of(std::strerror(error)));
        CHECK(cache.load(old));
    }
}

// ---- Failing system calls -----------------------------------------------------------------------------------------

namespace {

// Publishes under the script and checks what must hold whatever failed.
void check_publish_under_fault(const std::string& root, bool existing) {
    const Entry before = sample_entry("a", 1), entry = sample_entry("a", 2);
    const Script plan = std::exchange(script, {});
    if (existing) REQUIRE(TestStore(root).publish(before));
    script = plan;
    bool published = false;
    {
        TestStore cache(root, {}, scripted_files());
        published = cache.publish(entry);
        CHECK(cache.messages.warnings.size() <= 1);
        if (!published) CHECK(cache.messages.warnings.size() == 1);
    }
    const bool unlink_failed = script.failing == "unlink";
    script = {};
    // Never a partial entry: the new one whole, or what was there before.
    TestStore reader(root);
    const auto found = reader.load(entry);
    CHECK(reader.messages.warnings.empty());
    CHECK(reader.bad_entries() == 0);
    if (published)
        CHECK((found && same(*found, entry)));
    else if (existing)
        CHECK((found && same(*found, before)));
    else
        CHECK_FALSE(found);
    if (!unlink_failed) CHECK(files_below(root + "/v1/tmp").empty());
    // And the next attempt succeeds.
    CHECK(reader.publish(entry));
    CHECK((reader.load(entry) && same(*reader.load(entry), entry)));
}

std::vector<std::string> calls_of_publish(bool existing) {
    const TempDirectory directory;
    script = {};
    if (existing) REQUIRE(TestStore(directory / "a/cache").publish(sample_entry()));
    TestStore cache(directory / "a/cache", {}, scripted_files());
    REQUIRE(cache.publish(sample_entry()));
    return std::exchange(script, {}).calls;
}

}  // namespace

TEST_CASE("publish: each system call fails with each error, once and for good", "[faults]") {
    for (const bool existing : {false, true}) {
        const std::vector<std::string> calls = calls_of_publish(existing);
        for (const char* name : {"lstat", "mkdir", "open", "write", "fsync", "close", "rename"})
            REQUIRE(std::ranges::count(calls, name) >= 1);
        for (std::size_t at = 0; at < calls.size(); ++at) {
            for (const int error : {ENOSPC, EDQUOT, EIO, EINTR, EROFS, EACCES, EPERM, EMFILE, ENAMETOOLONG, ESTALE}) {
                for (const bool for_good : {false, true}) {
                    if (error == EINTR && for_good) continue;  // it would be retried for good, too
                    const TempDirectory directory;
                    INFO("call " << at << " (" << calls[at] << "): " << std::strerror(error) << ", again " << for_good
                                 << ", entry exists " << existing);
                    script = {};
                    script.fail_from = at;
                    script.error = error;
                    script.same_call_again = for_good;
                    check_publish_under_fault(directory / "a/cache", existing);
                }
            }
        }
    }
}

TEST_CASE("publish: an interrupted open, write, fsync or close is carried on") {
    const std::vector<std::string> calls = calls_of_publish(false);
    for (std::size_t at = 0; at < calls.size(); ++at) {
        if (calls[at] == "mkdir" || calls[at] == "lstat" || calls[at] == "rename") continue;  // never interrupted
        const TempDirectory directory;
        INFO("call " << at << " (" << calls[at] << ")");
        script = {};
        script.fail_from = at;
        script.error = EINTR;
        TestStore cache(directory / "a/cache", {}, scripted_files());
        CHECK(cache.publish(sample_entry()));
        CHECK(cache.messages.warnings.empty());
        script = {};
        CHECK(cache.load(sample_entry()));
    }
}

TEST_CASE("short writes and short reads are carried on") {
    for (const std::size_t most : {1, 7, 104, 1000}) {
        const TempDirectory directory;
        script = {};
        script.most_bytes = most;
        TestStore cache(directory / "cache", {}, scripted_files());
        const Entry entry = sample_entry();
        REQUIRE(cache.publish(entry));
        const auto back = cache.load(entry);
        REQUIRE(back);
        CHECK(same(*back, entry));
        CHECK(cache.messages.warnings.empty());
    }
}

TEST_CASE("a disk that fills up in the middle of an entry") {
    const auto limit = [] {
        script = {};
        script.most_bytes = 100;
    };
    std::vector<std::size_t> writes;
    {
        const TempDirectory directory;
        limit();
        REQUIRE(TestStore(directory / "cache", {}, scripted_files()).publish(sample_entry()));
        for (std::size_t i = 0; i < script.calls.size(); ++i)
            if (script.calls[i] == "write") writes.push_back(i);
    }
    REQUIRE(writes.size() > 5);
    for (const std::size_t at : writes) {
        const TempDirectory directory;
        limit();
        script.fail_from = at;
        script.error = ENOSPC;
        script.same_call_again = true;
        check_publish_under_fault(directory / "cache", false);
    }
}

TEST_CASE("a killed writer leaves no partial entry") {
    for (const bool existing : {false, true}) {
        const std::size_t calls = calls_of_publish(existing).size();
        for (std::size_t at = 0; at < calls; ++at) {
            INFO("killed at call " << at);
            const TempDirectory directory;
            const std::string root = directory / "a/cache";
            const Entry before = sample_entry("a", 1), entry = sample_entry("a", 2);
            if (existing) REQUIRE(TestStore(root).publish(before));
            Child writer([&] {
                script = {};
                script.fail_from = at;
                TestStore cache(root, {}, scripted_files());
                return cache.publish(entry);
            });
            const int status = writer.wait();
            REQUIRE(WIFSIGNALED(status));
            TestStore cache(root);
            const auto found = cache.load(entry);
            CHECK((found ? same(*found, entry) || same(*found, before) : !existing));
            CHECK(cache.bad_entries() == 0);
            CHECK(cache.publish(entry));
            CHECK(same(*cache.load(entry), entry));
            CHECK(cache.messages.warnings.empty());
        }
    }
}

TEST_CASE("load: a failing system call is a miss, warned once, and the entry stays", "[faults]") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    TestStore writer(directory / "cache");
    REQUIRE(writer.publish(entry));
    for (const bool old : {false, true}) {
        const auto set_up = [&] { set_age(writer.path_of(entry), old ? 100'000 : 0); };
        set_up();
        script = {};
        REQUIRE(TestStore(directory / "cache", {}, scripted_files()).load(entry));
        // A hit takes no lock and writes nothing, but for the time of its use.
        std::vector<std::string> expected{"lstat", "lstat", "open", "fstat", "read", "close"};
        if (old) expected.insert(expected.end() - 1, "touch");
        const std::vector<std::string> calls = std::exchange(script, {}).calls;
        CHECK(calls == expected);
        for (std::size_t at = 0; at < calls.size(); ++at) {
            for (const int error : {EIO, EACCES, EPERM, EROFS, EMFILE, ESTALE, EINTR, ENOMEM}) {
                for (const bool for_good : {false, true}) {
                    if (error == EINTR && for_good) continue;  // it would be retried for good, too
                    INFO("call " << at << " (" << calls[at] << "): " << std::strerror(error) << ", again " << for_good
                                 << ", old " << old);
                    set_up();
                    script = {};
                    script.fail_from = at;
                    script.error = error;
                    script.same_call_again = for_good;
                    TestStore cache(directory / "cache", {}, scripted_files());
                    const auto found = cache.load(entry);
                    const bool carried_on = calls[at] == "close" || calls[at] == "touch" ||
                                            (error == EINTR && (calls[at] == "open" || calls[at] == "read"));
                    CHECK(found.has_value() == carried_on);
                    if (found) CHECK(same(*found, entry));
                    CHECK(cache.messages.warnings.size() == (carried_on ? 0 : 1));
                    CHECK(cache.bad_entries() == 0);
                    script = {};
                    CHECK(cache.load(entry));
                }
            }
        }
    }
}

TEST_CASE("load of any compiler's: a failing system call is a miss or another entry, and the entries stay",
          "[faults]") {
    const TempDirectory directory;
    const Entry first = sample_entry("a", 1);
    Entry second = sample_entry("a", 2);
    second.compiler[0] ^= 0xff;
    TestStore writer(directory / "cache");
    REQUIRE(writer.publish(first));
    REQUIRE(writer.publish(second));
    script = {};
    REQUIRE(TestStore(directory / "cache", {}, scripted_files()).store.load_any_compiler(kArch, first.key));
    const auto calls = std::exchange(script, {}).calls;
    for (const char* name : {"opendir", "readdir", "closedir", "read"}) REQUIRE(std::ranges::count(calls, name) > 0);
    for (std::size_t at = 0; at < calls.size(); ++at) {
        for (const int error : {EIO, EACCES, EMFILE, ESTALE, ENOMEM, EBADF}) {
            for (const bool for_good : {false, true}) {
                INFO("call " << at << " (" << calls[at] << "): " << std::strerror(error) << ", again " << for_good);
                script = {};
                script.fail_from = at;
                script.error = error;
                script.same_call_again = for_good;
                TestStore cache(directory / "cache", {}, scripted_files());
                const auto found = cache.store.load_any_compiler(kArch, first.key);
                CHECK((!found || same(*found, first) || same(*found, second)));
                if (calls[at].starts_with("close")) CHECK(found);
                CHECK(cache.messages.warnings.size() <= 1);
                CHECK(cache.bad_entries() == 0);
                script = {};
                CHECK(writer.load(first));
                CHECK(writer.load(second));
            }
        }
    }
    CHECK(writer.messages.warnings.empty());
}

TEST_CASE("a damaged entry that cannot be moved or removed is a miss every time, and warned of once") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    TestStore writer(directory / "cache");
    REQUIRE(writer.publish(entry));
    write_file(writer.path_of(entry), "damaged");
    FileOps read_only = system_files();
    read_only.mkdir = [](const char*, mode_t) { return errno = EROFS, -1; };
    read_only.rename = [](const char*, const char*) { return errno = EROFS, -1; };
    read_only.unlink = [](const char*) { return errno = EROFS, -1; };
    TestStore reader(directory / "cache", {}, read_only);
    for (std::uint64_t i = 1; i <= 3; ++i) {
        CHECK_FALSE(reader.load(entry));
        CHECK(reader.bad_entries() == i);
    }
    CHECK(reader.warned_of(std::strerror(EROFS)));
    CHECK(fs::exists(reader.path_of(entry)));
}

TEST_CASE("an entry that was replaced by a good one while it was judged stays") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    static std::string path, replacement;
    TestStore writer(directory / "cache");
    REQUIRE(writer.publish(entry));
    path = writer.path_of(entry);
    replacement = directory / "replacement";
    fs::rename(path, replacement);
    write_file(path, "damaged");
    // Another process publishes: the rename of the good file.
    static const auto publish = [] {
        std::error_code ignored;
        fs::rename(replacement, path, ignored);
    };
    FileOps files = system_files();
    SECTION("before the last look at it") {
        files.fstat = [](int fd, struct stat* out) {
            const int result = system_files().fstat(fd, out);
            publish();
            return result;
        };
    }
    SECTION("between the look and the move") {
        files.rename = [](const char* from, const char* to) {
            publish();
            return system_files().rename(from, to);
        };
    }
    SECTION("between the look and the move, and once more before it is put back") {
        files.rename = [](const char* from, const char* to) {
            publish();
            fs::copy_file(path, replacement);
            const int result = system_files().rename(from, to);
            publish();
            return result;
        };
    }
    TestStore reader(directory / "cache", {}, files);
    CHECK_FALSE(reader.load(entry));
    CHECK(reader.bad_entries() == 1);
    CHECK(reader.warned_of("it has been replaced"));
    TestStore after(directory / "cache");
    const auto found = after.load(entry);
    REQUIRE(found);
    CHECK(same(*found, entry));
    CHECK(files_below(directory / "cache/v1/bad").empty());
}

TEST_CASE("a bad entry is set aside, or a good one put back, under each failing system call: a miss, and no wrong entry",
          "[faults]") {
    const Entry entry = sample_entry();
    static std::string path, replacement;
    static bool replaced;
    FileOps files = scripted_files();
    // With `replaced`, another process publishes between the last look at the bad entry and its move.
    files.rename = [](const char* from, const char* to) {
        std::error_code ignored;
        if (replaced) fs::rename(replacement, path, ignored);
        return scripted_files().rename(from, to);
    };
    for (const bool with_replacement : {false, true}) {
        const TempDirectory directory;
        TestStore writer(directory / "cache");
        path = writer.path_of(entry);
        replacement = directory / "replacement";
        const auto set_up = [&] {
            replaced = with_replacement;
            REQUIRE(writer.publish(entry));
            fs::copy_file(path, replacement, fs::copy_options::overwrite_existing);
            write_file(path, "damaged");
            script = {};
        };
        set_up();
        { REQUIRE_FALSE(TestStore(directory / "cache", {}, files).load(entry)); }
        const auto calls = std::exchange(script, {}).calls;
        for (const char* name : {"mkdir", "opendir", "readdir", "rename"}) REQUIRE(std::ranges::count(calls, name) > 0);
        if (with_replacement) REQUIRE(std::ranges::count(calls, "link") == 1);
        for (std::size_t at = 0; at < calls.size(); ++at) {
            for (const int error : {EIO, EACCES, EPERM, EROFS, ENOSPC, EMFILE, EMLINK, ESTALE}) {
                for (const bool for_good : {false, true}) {
                    INFO("call " << at << " (" << calls[at] << "): " << std::strerror(error) << ", again " << for_good
                                 << ", replaced " << with_replacement);
                    set_up();
                    script.fail_from = at;
                    script.error = error;
                    script.same_call_again = for_good;
                    TestStore cache(directory / "cache", {}, files);
                    CHECK_FALSE(cache.load(entry));
                    CHECK(cache.messages.warnings.size() == 1);
                    script = {};
                    // At worst the bad one is still there, for the next to find.
                    TestStore next(directory / "cache");
                    if (const auto found = next.load(entry)) CHECK(same(*found, entry));
                    CHECK(next.publish(entry));
                    CHECK(next.load(entry));
                }
            }
        }
        CHECK(writer.messages.warnings.empty());
    }
}

TEST_CASE("two readers that meet one bad entry: one sets it aside, and the new one survives") {
    for (int round = 0; round < 50; ++round) {
        const TempDirectory directory;
        const Entry entry = sample_entry();
        TestStore cache(directory / "cache");
        REQUIRE(cache.publish(entry));
        write_file(cache.path_of(entry), "damaged");
        std::vector<Child> readers;
        for (int i = 0; i < 2; ++i) {
            readers.emplace_back([&] {
                TestStore reader(directory / "cache");
                if (const auto found = reader.load(entry)) return same(*found, entry);
                return reader.publish(entry);
            });
        }
        for (Child& reader : readers) CHECK(reader.succeeded());
        TestStore after(directory / "cache");
        const auto found = after.load(entry);
        REQUIRE(found);
        CHECK(same(*found, entry));
        CHECK(after.messages.warnings.empty());
        CHECK(files_below(directory / "cache/v1/bad").size() <= 1);
    }
}

// ---- Many at once -------------------------------------------------------------------------------------------------

TEST_CASE("many processes publish one key: one entry, no temp files") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    std::vector<Child> children;
    for (int i = 0; i < 16; ++i) {
        children.emplace_back([&] {
            TestStore cache(directory / "a/b/cache");
            bool good = true;
            for (int round = 0; round < 8; ++round) {
                if (const auto found = cache.load(entry)) good = good && same(*found, entry);
                good = good && cache.publish(entry);
                const auto found = cache.load(entry);
                good = good && found && same(*found, entry);
            }
            return good && cache.messages.warnings.empty() && cache.bad_entries() == 0;
        });
    }
    for (Child& child : children) CHECK(child.succeeded());
    CHECK(cache_files(directory / "a/b/cache").size() == 1);
}

TEST_CASE("many threads share a store, and some processes damage it") {
    const TempDirectory directory;
    const std::string root = directory / "cache";
    const Entry entries[] = {sample_entry("0"), sample_entry("1"), sample_entry("2")};
    TestStore cache(root);
    for (const Entry& entry : entries) REQUIRE(cache.publish(entry));
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (int round = 0; round < 100; ++round) {
                const Entry& entry = entries[(t + round) % 3];
                if (const auto found = cache.load(entry)) {
                    if (!same(*found, entry)) ++wrong;
                } else {
                    cache.publish(entry);
                }
                if (t == 0) {
                    // In one step: what is renamed in is whole, though damaged.
                    const std::string path = cache.path_of(entry), temp = root + "/damage";
                    std::ofstream(temp) << "damaged";
                    std::error_code ignored;
                    fs::rename(temp, path, ignored);
                }
                if (t == 1) (void)list(cache.store);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(cache.messages.warnings.size() <= 1);
    CHECK(files_below(root + "/v1/tmp").empty());
}

// ---- Use, and what happens to the directory while it is in use ----------------------------------------------------

TEST_CASE("a hit renews the mtime, at most once an hour, and writes nothing else") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    TestStore writer(directory / "cache");
    REQUIRE(writer.publish(entry));
    const std::string path = writer.path_of(entry);
    const auto calls_of_hit = [&](StoreOptions options) {
        script = {};
        TestStore cache(directory / "cache", options, scripted_files());
        REQUIRE(cache.load(entry));
        return std::exchange(script, {}).calls;
    };
    const std::vector<std::string> hit{"lstat", "lstat", "open", "fstat", "read", "close"};
    set_age(path, 3500);
    CHECK(calls_of_hit({}) == hit);
    CHECK(age_of(path) >= 3500);
    set_age(path, 3700);
    CHECK(calls_of_hit({.read_only = true}) == hit);
    CHECK(age_of(path) >= 3700);
    CHECK(calls_of_hit({}) == std::vector<std::string>{"lstat", "lstat", "open", "fstat", "read", "touch", "close"});
    CHECK(age_of(path) < 3000);
    CHECK(calls_of_hit({}) == hit);
    // A clock that ran ahead once.
    set_age(path, -100000);
    CHECK(calls_of_hit({}) == hit);
}

TEST_CASE("a read-only store changes nothing, bad entries included") {
    const TempDirectory directory;
    const Entry good = sample_entry("good"), bad = sample_entry("bad");
    TestStore writer(directory / "cache");
    REQUIRE(writer.publish(good));
    REQUIRE(writer.publish(bad));
    write_file(writer.path_of(bad), "damaged");
    const auto before = files_below(directory / "cache");
    TestStore cache(directory / "cache", {.read_only = true});
    CHECK(cache.load(good));
    CHECK_FALSE(cache.load(bad));
    CHECK(cache.bad_entries() == 1);
    CHECK(cache.warned_of("left in place"));
    CHECK_FALSE(cache.publish(sample_entry("new")));
    CHECK(cache.store.publish(kArch, good).error().status == NQ_ERR_CACHE_IO);
    CHECK(cache.store.try_lock(kArch, good.key, good.compiler).status() == nq::FileLock::Status::unavailable);
    CHECK_FALSE(cache.store.evict({1, 0}).ran);
    CHECK_FALSE(cache.store.clear().ran);
    cache.store.add_statistics({});
    CHECK(files_below(directory / "cache") == before);
    CHECK(cache.messages.warnings.size() == 1);

    TestStore absent(directory / "absent", {.read_only = true});
    CHECK_FALSE(absent.load(good));
    CHECK_FALSE(absent.publish(good));
    CHECK_FALSE(fs::exists(directory / "absent"));
    CHECK(absent.messages.warnings.empty());
}

TEST_CASE("a directory that is removed while it is in use is made again") {
    const TempDirectory directory;
    const std::string root = directory / "a/cache";
    const Entry entry = sample_entry();
    TestStore cache(root);
    for (const char* gone : {"a", "a/cache", "a/cache/v1", "a/cache/v1/sm_90", "a/cache/v1/tmp", "a/cache/v1/locks"}) {
        INFO(gone);
        REQUIRE(cache.publish(entry));
        fs::remove_all(directory / gone);
        (void)cache.load(entry);
        CHECK(cache.publish(entry));
        CHECK(cache.load(entry));
        CHECK(cache.store.try_lock(kArch, entry.key, entry.compiler).status() == nq::FileLock::Status::held);
    }
    CHECK(cache.messages.warnings.empty());
}

TEST_CASE("a directory that is removed in the middle of a publication: once more, from the root") {
    static std::string root;
    static int at, calls;
    FileOps files = quick_files();
    // Removes everything at the given call of those that need a directory.
    static const auto step = [] {
        if (calls++ == at) fs::remove_all(root);
    };
    files.open = [](const char* path, int flags, mode_t mode) {
        step();
        return system_files().open(path, flags, mode);
    };
    files.rename = [](const char* from, const char* to) {
        step();
        return system_files().rename(from, to);
    };
    for (at = 0; at < 3; ++at) {
        INFO(at);
        const TempDirectory directory;
        root = directory / "cache";
        TestStore cache(root, {}, files);
        calls = -1000;
        REQUIRE(cache.publish(sample_entry("before")));
        calls = 0;
        const Entry entry = sample_entry();
        CHECK(cache.publish(entry));
        if (at < 2) CHECK(cache.load(entry));  // at 2 it had been placed already, and went with the rest
    }
}
