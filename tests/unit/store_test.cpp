#include "cache/store.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "support/temp_directory.h"
#include "unit/entry_samples.h"

namespace {

namespace fs = std::filesystem;
using nq::Entry;
using nq::FileOps;
using nq::Logger;
using nq::Store;
using nq::system_files;
using nq::test::same;
using nq::test::sample_cubin;
using nq::test::sample_entry;
using nq::test::TempDirectory;

const std::string kArch = "sm_90";

struct Warnings {
    std::vector<std::string> lines;
    static void record(uint32_t level, const char* message, void* self) {
        if (level >= NQ_LOG_WARN) static_cast<Warnings*>(self)->lines.emplace_back(message);
    }
};

// The system's calls but for fsync, which takes most of the time and changes nothing that a test could see.
const FileOps& quick_files() {
    static const FileOps files = [] {
        FileOps quick = system_files();
        quick.fsync = [](int) { return 0; };
        return quick;
    }();
    return files;
}

// A store with its logger.
struct Cache {
    explicit Cache(const std::string& root, bool shared = false, const FileOps& files = quick_files())
        : log(&Warnings::record, &warnings, NQ_LOG_DEBUG), store(root, shared, files, log) {}

    Warnings warnings;
    Logger log;
    Store store;

    std::optional<Entry> load(const Entry& wanted) { return store.load(kArch, wanted.key, wanted.compiler); }
    std::string path_of(const Entry& entry) const { return store.path_of(kArch, entry.key, entry.compiler); }
    bool warned_of(const std::string& text) const {
        return warnings.lines.size() == 1 && warnings.lines[0].find(text) != std::string::npos;
    }
};

std::vector<std::string> files_below(const std::string& root) {
    std::vector<std::string> files;
    std::error_code error;
    for (const auto& item : fs::recursive_directory_iterator(root, error))
        if (!item.is_directory()) files.push_back(item.path().lexically_relative(root).string());
    std::ranges::sort(files);
    return files;
}

// Entries, temp files and entries set aside; without the cache directory tag.
std::vector<std::string> cache_files(const std::string& root) {
    std::vector<std::string> files = files_below(root);
    std::erase(files, "v1/CACHEDIR.TAG");
    return files;
}

void write_file(const std::string& path, const std::string& bytes) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

std::string text_of(const std::vector<unsigned char>& bytes) { return {bytes.begin(), bytes.end()}; }

unsigned mode_of(const std::string& path) {
    struct stat info {};
    REQUIRE(lstat(path.c_str(), &info) == 0);
    return info.st_mode & 07777;
}

class Umask {
public:
    explicit Umask(mode_t mask) : old_(umask(mask)) {}
    ~Umask() { umask(old_); }

private:
    mode_t old_;
};

// ---- A table of system calls that fail on command. Function pointers carry no state, hence the static script.
// ----------

struct Script {
    std::vector<std::string> calls;     // what was called, in order
    std::size_t fail_from = SIZE_MAX;   // the call that fails
    bool same_call_again = false;       // and all later calls of the same name
    int error = 0;                      // 0: kill the process instead
    std::size_t most_bytes = SIZE_MAX;  // a write or read transfers at most that many
    std::string failing;
    uid_t owner = static_cast<uid_t>(-1);  // what stat says, unless -1
};
Script script;

bool fails(const char* name) {
    const std::size_t index = script.calls.size();
    script.calls.emplace_back(name);
    if (index == script.fail_from) {
        script.failing = name;
        if (script.error == 0) kill(getpid(), SIGKILL);
        errno = script.error;
        return true;
    }
    if (index > script.fail_from && script.same_call_again && script.failing == name) {
        errno = script.error;
        return true;
    }
    return false;
}

const FileOps& scripted_files() {
    static const FileOps files = {
        .open = [](const char* path, int flags,
                   mode_t mode) { return fails("open") ? -1 : system_files().open(path, flags, mode); },
        .close =
            [](int fd) {
                const bool failed = fails("close");
                const int error = errno;
                const int result = system_files().close(fd);
                errno = failed ? error : errno;
                return failed ? -1 : result;
            },
        .read = [](int fd, void* buffer, size_t bytes) -> ssize_t {
            return fails("read") ? -1 : system_files().read(fd, buffer, std::min(bytes, script.most_bytes));
        },
        .write = [](int fd, const void* buffer, size_t bytes) -> ssize_t {
            return fails("write") ? -1 : system_files().write(fd, buffer, std::min(bytes, script.most_bytes));
        },
        .fsync = [](int fd) { return fails("fsync") ? -1 : quick_files().fsync(fd); },
        .fstat = [](int fd, struct stat* out) { return fails("fstat") ? -1 : system_files().fstat(fd, out); },
        .lstat =
            [](const char* path, struct stat* out) {
                if (fails("lstat")) return -1;
                const int result = system_files().lstat(path, out);
                if (script.owner != static_cast<uid_t>(-1)) out->st_uid = script.owner;
                return result;
            },
        .mkdir = [](const char* path, mode_t mode) { return fails("mkdir") ? -1 : system_files().mkdir(path, mode); },
        .rename = [](const char* from,
                     const char* to) { return fails("rename") ? -1 : system_files().rename(from, to); },
        .unlink = [](const char* path) { return fails("unlink") ? -1 : system_files().unlink(path); },
        .opendir = [](const char* path) -> DIR* { return fails("opendir") ? nullptr : system_files().opendir(path); },
        .readdir = [](DIR* directory) { return system_files().readdir(directory); },
        .closedir = [](DIR* directory) { return system_files().closedir(directory); },
    };
    return files;
}

// Runs a function in a child process; true if it returned true there.
class Child {
public:
    explicit Child(const std::function<bool()>& function) : pid_(fork()) {
        REQUIRE(pid_ >= 0);
        if (pid_ == 0) _exit(function() ? 0 : 1);
    }
    int wait() {
        int status = 0;
        REQUIRE(waitpid(pid_, &status, 0) == pid_);
        return status;
    }
    bool succeeded() { return wait() == 0; }

private:
    pid_t pid_;
};

}  // namespace

TEST_CASE("published entries come back, to every store on the root") {
    const TempDirectory directory;
    const std::string root = directory / "a/b/cache";
    Cache cache(root, false, system_files());
    const Entry entry = sample_entry();
    CHECK_FALSE(cache.load(entry));
    CHECK_FALSE(fs::exists(root));  // a look creates nothing
    REQUIRE(cache.store.publish(kArch, entry));
    for (int i = 0; i < 2; ++i) {
        Cache other(root);
        const auto back = other.load(entry);
        REQUIRE(back);
        CHECK(same(*back, entry));
        CHECK(other.warnings.lines.empty());
        CHECK(other.store.bad_entries() == 0);
    }
    CHECK(cache.warnings.lines.empty());
    CHECK(cache.load(entry));
    CHECK_FALSE(cache.load(sample_entry("other")));
    CHECK_FALSE(cache.store.load("sm_80", entry.key, entry.compiler));
    CHECK(cache.warnings.lines.empty());
}

TEST_CASE("paths") {
    const TempDirectory directory;
    Cache cache(directory / "cache");
    const Entry entry = sample_entry();
    const std::string key = nq::hex(entry.key), compiler = nq::hex(entry.compiler);
    const std::string name =
        "v1/sm_90/" + key.substr(0, 2) + "/" + key.substr(2) + "-" + compiler.substr(0, 16) + ".nqc";
    CHECK(cache.path_of(entry) == directory / "cache/" + name);
    REQUIRE(cache.store.publish(kArch, entry));
    CHECK(files_below(directory / "cache") == std::vector<std::string>{"v1/CACHEDIR.TAG", name});
    std::ifstream tag(directory / "cache/v1/CACHEDIR.TAG");
    std::string line;
    std::getline(tag, line);
    CHECK(line == "Signature: 8a477f597d28d172789f06886806bc55");

    CHECK(Cache(directory / "cache///").store.root() == directory / "cache");
    CHECK(Cache("/").store.root() == "/");
    const fs::path here = fs::current_path();
    CHECK(Cache("relative").store.root() == (here / "relative").string());
}

TEST_CASE("publishing again replaces") {
    const TempDirectory directory;
    Cache cache(directory / "cache");
    const Entry first = sample_entry("a", 1), second = sample_entry("a", 2);
    REQUIRE(cache.store.publish(kArch, first));
    REQUIRE(cache.store.publish(kArch, second));
    CHECK(same(*cache.load(first), second));
    CHECK(cache_files(directory / "cache").size() == 1);
}

TEST_CASE("permissions are private, whatever the umask") {
    for (const mode_t mask : {0000, 0022, 0077}) {
        const TempDirectory directory;
        const Umask umask(mask);
        Cache cache(directory / "cache");
        const Entry entry = sample_entry();
        REQUIRE(cache.store.publish(kArch, entry));
        CHECK(mode_of(cache.path_of(entry)) == 0600);
        CHECK(mode_of(directory / "cache") == 0700);
        CHECK(mode_of(directory / "cache/v1") == 0700);
        CHECK(mode_of(fs::path(cache.path_of(entry)).parent_path().string()) == 0700);
    }
}

TEST_CASE("permissions of a shared cache are the umask's") {
    const TempDirectory directory;
    const Umask umask(0002);
    Cache cache(directory / "cache", true);
    const Entry entry = sample_entry();
    REQUIRE(cache.store.publish(kArch, entry));
    CHECK(mode_of(cache.path_of(entry)) == 0664);
    CHECK(mode_of(directory / "cache") == 0775);
    CHECK(cache.load(entry));
    Cache wary(directory / "cache", false);
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
        Cache cache(directory / "cache");
        REQUIRE((i > 0 || cache.store.publish(kArch, entry)));
        write_file(cache.path_of(entry), damaged[i]);
        REQUIRE_FALSE(cache.load(entry));
        REQUIRE(cache.store.bad_entries() == 1);
        REQUIRE(cache.warned_of(cache.path_of(entry)));
        REQUIRE_FALSE(fs::exists(cache.path_of(entry)));
        REQUIRE_FALSE(cache.load(entry));  // simply absent now
        REQUIRE(cache.store.bad_entries() == 1);
    }
    Cache cache(directory / "cache");
    REQUIRE(cache.store.publish(kArch, entry));
    CHECK(same(*cache.load(entry), entry));
}

TEST_CASE("what is set aside is bounded") {
    const TempDirectory directory;
    Cache cache(directory / "cache");
    for (int i = 0; i < 100; ++i) {
        const Entry entry = sample_entry("entry " + std::to_string(i));
        write_file(cache.path_of(entry), "damaged");
        if (i == 0) fs::permissions(directory / "cache", fs::perms::owner_all);  // whatever the umask left
        CHECK_FALSE(cache.load(entry));
        CHECK_FALSE(fs::exists(cache.path_of(entry)));
    }
    CHECK(cache.store.bad_entries() == 100);
    CHECK(cache.warnings.lines.size() == 1);
    CHECK(files_below(directory / "cache/v1/bad").size() == 32);
    CHECK(cache_files(directory / "cache").size() == 32);
}

TEST_CASE("an entry of the right name and a compiler id that differs in its unnamed half is a plain miss") {
    const TempDirectory directory;
    Cache cache(directory / "cache");
    const Entry entry = sample_entry();
    REQUIRE(cache.store.publish(kArch, entry));
    Entry other = entry;
    other.compiler[15] ^= 1;
    REQUIRE(cache.path_of(other) == cache.path_of(entry));
    CHECK_FALSE(cache.load(other));
    CHECK(cache.load(entry));
    CHECK(cache.warnings.lines.empty());
}

TEST_CASE("something that is no file in the place of an entry neither hangs nor harms") {
    const TempDirectory directory;
    Cache cache(directory / "cache");
    const Entry entry = sample_entry();
    REQUIRE(cache.store.publish(kArch, entry));
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
    SECTION("file beyond the size limit") {
        write_file(path, "x");
        fs::resize_file(path, nq::kMaxEntryBytes + 1);
        CHECK_FALSE(cache.load(entry));
        CHECK_FALSE(fs::exists(path));
    }
    SECTION("directory") {
        fs::create_directory(path);
        CHECK_FALSE(cache.load(entry));
        CHECK(fs::is_directory(path));  // it may hold something
        CHECK_FALSE(cache.store.publish(kArch, entry));
        CHECK(cache.warned_of(path));
        CHECK(files_below(directory / "cache/v1/tmp").empty());
        fs::remove(path);
    }
    CHECK(cache.store.bad_entries() == 1);
    CHECK(cache.warned_of(path));
    CHECK(cache.store.publish(kArch, entry));
    CHECK(cache.load(entry));
}

TEST_CASE("metadata is data: nothing in it is parsed on a hit") {
    const TempDirectory directory;
    Cache cache(directory / "cache");
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
        REQUIRE(cache.store.publish(kArch, entry));
        const auto back = cache.load(entry);
        REQUIRE(back);
        CHECK(back->metadata == metadata);
    }
    CHECK(cache.warnings.lines.empty());
}

TEST_CASE("what could not be loaded is not published") {
    const TempDirectory directory;
    Cache cache(directory / "cache");
    Entry entry = sample_entry();
    entry.cubin = {1, 2, 3};
    CHECK_FALSE(cache.store.publish(kArch, entry));
    CHECK(cache.warned_of("ELF"));
    CHECK_FALSE(fs::exists(directory / "cache"));
}

TEST_CASE("entries of any compiler") {
    const TempDirectory directory;
    Cache cache(directory / "cache");
    const Entry entry = sample_entry();
    CHECK_FALSE(cache.store.load_any_compiler(kArch, entry.key));
    Entry second = sample_entry("a", 2);
    second.compiler[0] ^= 0xff;
    REQUIRE(cache.store.publish(kArch, entry));
    REQUIRE(cache.store.publish(kArch, second));
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
    CHECK(cache.store.bad_entries() == 1);
}

TEST_CASE("list shows what is there, the damaged too, and changes nothing") {
    const TempDirectory directory;
    Cache cache(directory / "cache");
    CHECK(cache.store.list().empty());
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

    const auto list = cache.store.list();
    CHECK(files_below(directory / "cache") == before);
    REQUIRE(list.size() == 5);
    CHECK(std::ranges::is_sorted(list, {}, &nq::StoredEntry::path));
    std::size_t good = 0;
    for (const nq::StoredEntry& item : list) {
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
    CHECK(cache.store.bad_entries() == 0);
}

// ---- Trust
// ---------------------------------------------------------------------------------------------------------------

TEST_CASE("a root that others can write is not used") {
    for (const unsigned mode : {0720u, 0702u, 0722u, 0775u, 0777u, 01777u}) {
        const TempDirectory directory;
        const std::string root = directory / "cache";
        fs::create_directory(root);
        REQUIRE(chmod(root.c_str(), mode) == 0);
        Cache cache(root);
        const Entry entry = sample_entry();
        CHECK_FALSE(cache.store.publish(kArch, entry));
        CHECK_FALSE(cache.load(entry));
        CHECK_FALSE(cache.store.load_any_compiler(kArch, entry.key));
        CHECK(cache.warned_of("NORMQUANT_CACHE_SHARED"));
        CHECK(cache.warned_of(root));
        REQUIRE_FALSE(cache.store.check().ok());
        CHECK(cache.store.check().error().status == NQ_ERR_CACHE_UNTRUSTED);
        CHECK(files_below(root).empty());
        CHECK(mode_of(root) == mode);  // the user's directory is left as it is

        Cache shared(root, true);
        CHECK(shared.store.publish(kArch, entry));
        CHECK(shared.load(entry));
        CHECK(shared.store.check().ok());
        CHECK(shared.warnings.lines.empty());
    }
    for (const unsigned mode : {0700u, 0755u, 0750u, 02755u}) {
        const TempDirectory directory;
        fs::create_directory(directory / "cache");
        REQUIRE(chmod((directory / "cache").c_str(), mode) == 0);
        CHECK(Cache(directory / "cache").store.publish(kArch, sample_entry()));
    }
}

TEST_CASE("a root of another user is not used") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    REQUIRE(Cache(directory / "cache").store.publish(kArch, entry));
    script = {};
    script.owner = geteuid() + 4242;
    Cache cache(directory / "cache", false, scripted_files());
    CHECK_FALSE(cache.load(entry));
    CHECK_FALSE(cache.store.publish(kArch, entry));
    CHECK(cache.warned_of("belongs to uid " + std::to_string(script.owner)));
    CHECK(cache.store.check().error().status == NQ_ERR_CACHE_UNTRUSTED);
    CHECK(Cache(directory / "cache", true, scripted_files()).load(entry));
    script.owner = 0;  // root may write anywhere as it is
    CHECK(Cache(directory / "cache", false, scripted_files()).load(entry));
}

TEST_CASE("a root that is a symlink is not used, with a slash at its end or without, shared or not") {
    const TempDirectory directory;
    fs::create_directory(directory / "real");
    fs::create_directory_symlink(directory / "real", directory / "link");
    for (const std::string name : {"link", "link/", "link//"}) {
        for (const bool shared : {false, true}) {
            Cache cache(directory / name, shared);
            CHECK_FALSE(cache.store.publish(kArch, sample_entry()));
            CHECK(cache.warned_of("symbolic link"));
            CHECK(cache.store.check().error().status == NQ_ERR_CACHE_UNTRUSTED);
        }
    }
    CHECK(files_below(directory / "real").empty());
}

TEST_CASE("a root that is a file, or below one") {
    const TempDirectory directory;
    write_file(directory / "file", "mine");
    Cache file(directory / "file");
    CHECK_FALSE(file.load(sample_entry()));
    CHECK_FALSE(file.store.publish(kArch, sample_entry()));
    CHECK(file.warned_of("is not a directory"));
    CHECK(file.store.check().error().status == NQ_ERR_INVALID_ARGUMENT);
    CHECK(fs::file_size(directory / "file") == 4);

    Cache below(directory / "file/cache");
    CHECK_FALSE(below.store.publish(kArch, sample_entry()));
    CHECK_FALSE(below.load(sample_entry()));
    CHECK(below.warned_of("Not a directory"));
}

TEST_CASE("a root that cannot be written is still read") {
    const TempDirectory directory;
    const Entry old = sample_entry("old"), fresh = sample_entry("new");
    REQUIRE(Cache(directory / "cache").store.publish(kArch, old));
    for (const int error : {EROFS, EACCES, EPERM, ENOSPC, EDQUOT}) {
        script = {};
        script.error = error;
        Cache cache(directory / "cache", false, scripted_files());
        REQUIRE(cache.load(old));
        // Every mkdir fails from here on.
        script.fail_from = script.calls.size();
        script.same_call_again = true;
        CHECK_FALSE(cache.store.publish(kArch, fresh));
        CHECK_FALSE(cache.store.publish(kArch, fresh));
        CHECK(cache.warned_of(std::strerror(error)));
        CHECK(cache.load(old));
    }
}

// ---- Failing system calls
// ------------------------------------------------------------------------------------------------

namespace {

// Publishes under the script and checks what must hold whatever failed.
void check_publish_under_fault(const std::string& root, bool existing) {
    const Entry before = sample_entry("a", 1), entry = sample_entry("a", 2);
    const Script plan = std::exchange(script, {});
    if (existing) REQUIRE(Cache(root).store.publish(kArch, before));
    script = plan;
    bool published = false;
    {
        Cache cache(root, false, scripted_files());
        published = cache.store.publish(kArch, entry);
        CHECK(cache.warnings.lines.size() <= 1);
        if (!published) CHECK(cache.warnings.lines.size() == 1);
    }
    const bool unlink_failed = script.failing == "unlink";
    script = {};
    // Never a partial entry: the new one whole, or what was there before.
    Cache reader(root);
    const auto found = reader.load(entry);
    CHECK(reader.warnings.lines.empty());
    CHECK(reader.store.bad_entries() == 0);
    if (published)
        CHECK((found && same(*found, entry)));
    else if (existing)
        CHECK((found && same(*found, before)));
    else
        CHECK_FALSE(found);
    if (!unlink_failed) CHECK(files_below(root + "/v1/tmp").empty());
    // And the next attempt succeeds.
    CHECK(reader.store.publish(kArch, entry));
    CHECK((reader.load(entry) && same(*reader.load(entry), entry)));
}

std::vector<std::string> calls_of_publish(bool existing) {
    const TempDirectory directory;
    script = {};
    if (existing) REQUIRE(Cache(directory / "a/cache").store.publish(kArch, sample_entry()));
    Cache cache(directory / "a/cache", false, scripted_files());
    REQUIRE(cache.store.publish(kArch, sample_entry()));
    return std::exchange(script, {}).calls;
}

}  // namespace

TEST_CASE("publish: each system call fails with each error, once and for good") {
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
        Cache cache(directory / "a/cache", false, scripted_files());
        CHECK(cache.store.publish(kArch, sample_entry()));
        CHECK(cache.warnings.lines.empty());
        script = {};
        CHECK(cache.load(sample_entry()));
    }
}

TEST_CASE("short writes and short reads are carried on") {
    for (const std::size_t most : {1, 7, 104, 1000}) {
        const TempDirectory directory;
        script = {};
        script.most_bytes = most;
        Cache cache(directory / "cache", false, scripted_files());
        const Entry entry = sample_entry();
        REQUIRE(cache.store.publish(kArch, entry));
        const auto back = cache.load(entry);
        REQUIRE(back);
        CHECK(same(*back, entry));
        CHECK(cache.warnings.lines.empty());
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
        REQUIRE(Cache(directory / "cache", false, scripted_files()).store.publish(kArch, sample_entry()));
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
            if (existing) REQUIRE(Cache(root).store.publish(kArch, before));
            Child writer([&] {
                script = {};
                script.fail_from = at;
                Cache cache(root, false, scripted_files());
                return cache.store.publish(kArch, entry);
            });
            const int status = writer.wait();
            REQUIRE(WIFSIGNALED(status));
            Cache cache(root);
            const auto found = cache.load(entry);
            CHECK((found ? same(*found, entry) || same(*found, before) : !existing));
            CHECK(cache.store.bad_entries() == 0);
            CHECK(cache.store.publish(kArch, entry));
            CHECK(same(*cache.load(entry), entry));
            CHECK(cache.warnings.lines.empty());
        }
    }
}

TEST_CASE("load: a failing system call is a miss, warned once, and the entry stays") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    REQUIRE(Cache(directory / "cache").store.publish(kArch, entry));
    script = {};
    REQUIRE(Cache(directory / "cache", false, scripted_files()).load(entry));
    // A hit takes no lock and writes nothing.
    CHECK(script.calls == std::vector<std::string>{"lstat", "open", "fstat", "read", "close"});
    const std::vector<std::string> calls = script.calls;
    for (std::size_t at = 0; at < calls.size(); ++at) {
        for (const int error : {EIO, EACCES, EMFILE, ESTALE, EINTR, ENOMEM}) {
            INFO("call " << at << " (" << calls[at] << "): " << std::strerror(error));
            script = {};
            script.fail_from = at;
            script.error = error;
            Cache cache(directory / "cache", false, scripted_files());
            const auto found = cache.load(entry);
            const bool carried_on =
                calls[at] == "close" || (error == EINTR && (calls[at] == "open" || calls[at] == "read"));
            CHECK(found.has_value() == carried_on);
            CHECK(cache.warnings.lines.size() == (carried_on ? 0 : 1));
            CHECK(cache.store.bad_entries() == 0);
            script = {};
            CHECK(cache.load(entry));
        }
    }
}

TEST_CASE("a damaged entry that cannot be moved or removed is a miss every time, and warned of once") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    Cache writer(directory / "cache");
    REQUIRE(writer.store.publish(kArch, entry));
    write_file(writer.path_of(entry), "damaged");
    FileOps read_only = system_files();
    read_only.mkdir = [](const char*, mode_t) { return errno = EROFS, -1; };
    read_only.rename = [](const char*, const char*) { return errno = EROFS, -1; };
    read_only.unlink = [](const char*) { return errno = EROFS, -1; };
    Cache reader(directory / "cache", false, read_only);
    for (std::uint64_t i = 1; i <= 3; ++i) {
        CHECK_FALSE(reader.load(entry));
        CHECK(reader.store.bad_entries() == i);
    }
    CHECK(reader.warned_of(std::strerror(EROFS)));
    CHECK(fs::exists(reader.path_of(entry)));
}

TEST_CASE("an entry that was replaced by a good one while it was judged stays") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    static std::string path, replacement;
    Cache writer(directory / "cache");
    REQUIRE(writer.store.publish(kArch, entry));
    path = writer.path_of(entry);
    replacement = directory / "replacement";
    fs::rename(path, replacement);
    write_file(path, "damaged");
    FileOps files = system_files();
    files.close = [](int fd) {  // the reader is done with the damaged file; another process publishes now
        std::error_code ignored;
        fs::rename(replacement, path, ignored);
        return system_files().close(fd);
    };
    Cache reader(directory / "cache", false, files);
    CHECK_FALSE(reader.load(entry));
    CHECK(reader.store.bad_entries() == 1);
    const auto found = reader.load(entry);
    REQUIRE(found);
    CHECK(same(*found, entry));
}

// ---- Many at once
// --------------------------------------------------------------------------------------------------------

TEST_CASE("many processes publish one key: one entry, no temp files") {
    const TempDirectory directory;
    const Entry entry = sample_entry();
    std::vector<Child> children;
    for (int i = 0; i < 16; ++i) {
        children.emplace_back([&] {
            Cache cache(directory / "a/b/cache");
            bool good = true;
            for (int round = 0; round < 8; ++round) {
                if (const auto found = cache.load(entry)) good = good && same(*found, entry);
                good = good && cache.store.publish(kArch, entry);
                const auto found = cache.load(entry);
                good = good && found && same(*found, entry);
            }
            return good && cache.warnings.lines.empty() && cache.store.bad_entries() == 0;
        });
    }
    for (Child& child : children) CHECK(child.succeeded());
    CHECK(cache_files(directory / "a/b/cache").size() == 1);
}

TEST_CASE("many threads share a store, and some processes damage it") {
    const TempDirectory directory;
    const std::string root = directory / "cache";
    const Entry entries[] = {sample_entry("0"), sample_entry("1"), sample_entry("2")};
    Cache cache(root);
    for (const Entry& entry : entries) REQUIRE(cache.store.publish(kArch, entry));
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (int round = 0; round < 100; ++round) {
                const Entry& entry = entries[(t + round) % 3];
                if (const auto found = cache.load(entry)) {
                    if (!same(*found, entry)) ++wrong;
                } else {
                    cache.store.publish(kArch, entry);
                }
                if (t == 0) {
                    // In one step: what is renamed in is whole, though damaged.
                    const std::string path = cache.path_of(entry), temp = root + "/damage";
                    std::ofstream(temp) << "damaged";
                    std::error_code ignored;
                    fs::rename(temp, path, ignored);
                }
                if (t == 1) (void)cache.store.list();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(cache.warnings.lines.size() <= 1);
    CHECK(files_below(root + "/v1/tmp").empty());
}
