#include "unit/cache_fixture.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>

namespace nq::test {
namespace {

namespace fs = std::filesystem;

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

int with_owner(int result, struct stat* out) {
    if (result != 0 || script.owner == static_cast<uid_t>(-1)) return result;
    struct stat only {};
    if (!script.owner_of.empty() && (lstat(script.owner_of.c_str(), &only) != 0 || only.st_ino != out->st_ino))
        return result;
    out->st_uid = script.owner;
    return result;
}

}  // namespace

Script script;

void Messages::record(uint32_t level, const char* message, void* self) {
    auto* const messages = static_cast<Messages*>(self);
    const std::lock_guard lock(messages->mutex);
    if (level >= NQ_LOG_WARN) messages->warnings.emplace_back(message);
    if (level == NQ_LOG_INFO) messages->infos.emplace_back(message);
}

const FileOps& quick_files() {
    static const FileOps files = [] {
        FileOps quick = system_files();
        quick.fsync = [](int) { return 0; };
        return quick;
    }();
    return files;
}

std::vector<StoredEntry> list(const Store& store) {
    std::vector<StoredEntry> found;
    store.visit([&](StoredEntry entry) { found.push_back(std::move(entry)); });
    return found;
}

std::vector<std::string> files_below(const std::string& root) {
    std::vector<std::string> files;
    std::error_code error;
    for (const auto& item : fs::recursive_directory_iterator(root, error))
        if (!item.is_directory()) files.push_back(item.path().lexically_relative(root).string());
    std::ranges::sort(files);
    return files;
}

std::vector<std::string> cache_files(const std::string& root) {
    std::vector<std::string> files = files_below(root);
    std::erase(files, "v1/CACHEDIR.TAG");
    return files;
}

std::optional<std::string> make_device(const std::string& path) {
    if (mknod(path.c_str(), S_IFCHR | 0600, makedev(1, 5)) != 0) return std::string("mknod: ") + std::strerror(errno);
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return "a device cannot be opened at " + path + ": " + std::strerror(errno);
    close(fd);
    return std::nullopt;
}

void write_file(const std::string& path, const std::string& bytes) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    // Whatever the umask: others could not have written it.
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
}

std::string text_of(const std::vector<unsigned char>& bytes) { return {bytes.begin(), bytes.end()}; }

unsigned mode_of(const std::string& path) {
    struct stat info {};
    REQUIRE(lstat(path.c_str(), &info) == 0);
    return info.st_mode & 07777;
}

void set_age(const std::string& path, std::int64_t seconds) {
    const timespec times[2] = {{std::time(nullptr) - seconds, 0}, {std::time(nullptr) - seconds, 0}};
    REQUIRE(utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
}

std::int64_t age_of(const std::string& path) {
    struct stat info {};
    REQUIRE(lstat(path.c_str(), &info) == 0);
    return std::time(nullptr) - info.st_mtime;
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
        .pread = [](int fd, void* buffer, size_t bytes, off_t offset) -> ssize_t {
            return fails("pread") ? -1 : system_files().pread(fd, buffer, std::min(bytes, script.most_bytes), offset);
        },
        .write = [](int fd, const void* buffer, size_t bytes) -> ssize_t {
            return fails("write") ? -1 : system_files().write(fd, buffer, std::min(bytes, script.most_bytes));
        },
        .ftruncate = [](int fd, off_t bytes) { return fails("ftruncate") ? -1 : system_files().ftruncate(fd, bytes); },
        .fsync = [](int fd) { return fails("fsync") ? -1 : quick_files().fsync(fd); },
        .fstat = [](int fd,
                    struct stat* out) { return fails("fstat") ? -1 : with_owner(system_files().fstat(fd, out), out); },
        .lstat =
            [](const char* path, struct stat* out) {
                return fails("lstat") ? -1 : with_owner(system_files().lstat(path, out), out);
            },
        .touch = [](int fd) { return fails("touch") ? -1 : system_files().touch(fd); },
        .lock = [](int fd) { return fails("lock") ? -1 : system_files().lock(fd); },
        .mkdir = [](const char* path, mode_t mode) { return fails("mkdir") ? -1 : system_files().mkdir(path, mode); },
        .rename = [](const char* from,
                     const char* to) { return fails("rename") ? -1 : system_files().rename(from, to); },
        .link = [](const char* from, const char* to) { return fails("link") ? -1 : system_files().link(from, to); },
        .unlink = [](const char* path) { return fails("unlink") ? -1 : system_files().unlink(path); },
        .rmdir = [](const char* path) { return fails("rmdir") ? -1 : system_files().rmdir(path); },
        .opendir = [](const char* path) -> DIR* { return fails("opendir") ? nullptr : system_files().opendir(path); },
        .readdir = [](DIR* directory) { return fails("readdir") ? nullptr : system_files().readdir(directory); },
        .closedir =
            [](DIR* directory) {
                const bool failed = fails("closedir");
                const int error = errno;
                const int result = system_files().closedir(directory);
                errno = failed ? error : errno;
                return failed ? -1 : result;
            },
    };
    return files;
}

Child::Child(const std::function<bool()>& function) : pid_(fork()) {
    REQUIRE(pid_ >= 0);
    if (pid_ != 0) return;
    bool good = false;
    try {
        good = function();
    } catch (...) {  // a failed REQUIRE, or no memory: not for the rest of the test program to go on with
    }
    _exit(good ? 0 : 1);
}

Child::~Child() {
    if (!running_) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
}

int Child::wait() {
    int status = 0;
    running_ = false;
    REQUIRE(waitpid(pid_, &status, 0) == pid_);
    return status;
}

void Child::kill_now() {
    REQUIRE(kill(pid_, SIGKILL) == 0);
    wait();
}

Orphan::~Orphan() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);  // if it is our own child
}

Pipe::Pipe() { REQUIRE(pipe2(ends_, O_CLOEXEC) == 0); }

Pipe::~Pipe() {
    close_writer();
    close(ends_[0]);
}

void Pipe::close_writer() {
    if (ends_[1] >= 0) close(std::exchange(ends_[1], -1));
}

bool Pipe::write_to(const void* bytes, std::size_t size) {
    return write(ends_[1], bytes, size) == static_cast<ssize_t>(size);
}

std::size_t Pipe::read_from(void* bytes, std::size_t size) {
    close_writer();
    std::size_t done = 0;
    while (done < size) {
        const ssize_t n = read(ends_[0], static_cast<char*>(bytes) + done, size - done);
        if (n <= 0) break;
        done += static_cast<std::size_t>(n);
    }
    return done;
}

void Pipe::wait_for_end() {
    char byte = 0;
    REQUIRE(read_from(&byte, 1) == 0);
}

bool within_memory(std::size_t bytes, const std::function<bool()>& function) {
    Child child([&] {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        std::ifstream statm("/proc/self/statm");
        std::size_t pages = 0;
        if (!(statm >> pages)) return false;
        const rlim_t limit = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + bytes;
        const rlimit both{limit, limit};
        if (setrlimit(RLIMIT_AS, &both) != 0) return false;
#else
        (void)bytes;
#endif
        return function();
    });
    return child.succeeded();
}

Mount Mount::tmpfs(const std::string& at, const std::string& options) {
    fs::create_directories(at);
    const bool mounted = mount("tmpfs", at.c_str(), "tmpfs", MS_NODEV | MS_NOSUID, options.c_str()) == 0;
    return Mount(mounted ? at : "");
}

Mount Mount::read_only(const std::string& what, const std::string& at) {
    fs::create_directories(at);
    if (mount(what.c_str(), at.c_str(), nullptr, MS_BIND, nullptr) != 0) return Mount("");
    Mount bound(at);
    REQUIRE(mount(nullptr, at.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) == 0);
    return bound;
}

bool Mount::end() { return umount(std::exchange(at_, {}).c_str()) == 0; }

Mount::~Mount() {
    // Lazily: a test that failed half-way must not leave a mount for the removal of its directory to run into.
    if (ok()) umount2(at_.c_str(), MNT_DETACH);
}

}  // namespace nq::test
