// Every system call the cache makes, behind one table, so that tests can make each of them fail. Thin: errno is the
// error.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>

namespace nq {

struct FileOps {
    int (*open)(const char* path, int flags, mode_t mode);
    int (*close)(int fd);
    ssize_t (*read)(int fd, void* buffer, size_t bytes);
    ssize_t (*write)(int fd, const void* buffer, size_t bytes);
    int (*fsync)(int fd);
    int (*fstat)(int fd, struct stat* out);
    int (*lstat)(const char* path, struct stat* out);
    int (*mkdir)(const char* path, mode_t mode);
    int (*rename)(const char* from, const char* to);
    int (*unlink)(const char* path);
    DIR* (*opendir)(const char* path);
    struct dirent* (*readdir)(DIR* directory);
    int (*closedir)(DIR* directory);
};

const FileOps& system_files();

}  // namespace nq
