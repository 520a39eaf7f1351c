#include "support/file.h"

#include <unistd.h>

#include <cstdio>

namespace nq {

const FileOps& system_files() {
    // Lambdas where libc's function is variadic, overloaded or might be a macro.
    static constexpr FileOps kSystem = {
        .open = [](const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); },
        .close = ::close,
        .read = ::read,
        .write = ::write,
        .fsync = ::fsync,
        .fstat = [](int fd, struct stat* out) { return ::fstat(fd, out); },
        .lstat = [](const char* path, struct stat* out) { return ::lstat(path, out); },
        .mkdir = ::mkdir,
        .rename = ::rename,
        .unlink = ::unlink,
        .opendir = ::opendir,
        .readdir = ::readdir,
        .closedir = [](DIR* directory) { return ::closedir(directory); },
    };
    return kSystem;
}

}  // namespace nq
