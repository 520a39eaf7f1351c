// Every system call the cache makes, behind one table, so that tests can make each of them fail. Thin: errno is the
// error. What is built on the table stands below it.
#pragma once

#include "support/result.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nq {

struct FileOps {
    int (*open)(const char* path, int flags, mode_t mode);
    int (*close)(int fd);
    ssize_t (*read)(int fd, void* buffer, size_t bytes);
    ssize_t (*pread)(int fd, void* buffer, size_t bytes, off_t offset);
    ssize_t (*write)(int fd, const void* buffer, size_t bytes);
    int (*ftruncate)(int fd, off_t bytes);
    int (*fsync)(int fd);
    int (*fstat)(int fd, struct stat* out);
    int (*lstat)(const char* path, struct stat* out);
    int (*touch)(int fd);                     // both times of the file: now
    int (*lock)(int fd);                      // exclusive OFD lock of the whole file, without waiting: EAGAIN
    int (*mkdir)(const char* path, mode_t mode);
    int (*rename)(const char* from, const char* to);
    int (*link)(const char* from, const char* to);
    int (*unlink)(const char* path);
    int (*rmdir)(const char* path);
    DIR* (*opendir)(const char* path);        // not through a symlink
    struct dirent* (*readdir)(DIR* directory);
    int (*closedir)(DIR* directory);
};

const FileOps& system_files();

std::string error_text(int error);
// CACHE_IO: "step path: reason".
Error io_error(std::string_view step, const std::string& path, int error);

template <class Call>
auto retry_interrupted(Call call) {
    auto result = call();
    while (result < 0 && errno == EINTR) result = call();
    return result;
}

class Descriptor {
public:
    Descriptor(const FileOps& files, int fd) : files_(&files), fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : files_(other.files_), fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(files_, other.files_);
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Descriptor() {
        if (fd_ >= 0) files_->close(fd_);
    }
    int get() const { return fd_; }
    bool valid() const { return fd_ >= 0; }
    int close() { return files_->close(std::exchange(fd_, -1)); }

private:
    const FileOps* files_;
    int fd_;
};

// A regular file opened for reading. Never blocks and follows no symlink in the last component.
struct OpenedFile {
    enum class Status { opened, absent, wrong_kind, failed };
    Status status = Status::failed;
    std::string fault;  // of wrong_kind and failed
    Descriptor fd;
    std::optional<struct stat> info;
};
OpenedFile open_regular(const FileOps& files, const std::string& path);

// `bytes` bytes from the file's current position; fewer if it ends before. nullopt and errno on failure.
std::optional<std::vector<unsigned char>> read_up_to(const FileOps& files, int fd, std::uint64_t bytes);
// All of the bytes, whatever the number of write calls that takes.
bool write_all(const FileOps& files, int fd, std::string_view bytes);

// A new file with all of the bytes, or no file; never overwrites. Durable: the bytes are on disk.
enum class Durability { none, durable };
Outcome write_new_file(const FileOps& files, const std::string& path, std::string_view bytes, mode_t mode,
                       Durability durability);

// True if the last directory of the path was made here; parents are made as needed.
Result<bool> make_directories(const FileOps& files, const std::string& path, mode_t mode);

// Names in a directory, sorted, without "." and ".."; none if it cannot be read.
std::vector<std::string> names_in(const FileOps& files, const std::string& path);

// Unique among processes, containers that share process ids, and threads.
std::string unique_name();
bool is_unique_name(std::string_view name);

}  // namespace nq
