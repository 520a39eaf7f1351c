#include "cache/lock.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace nq {
namespace {

std::string self() {
    std::array<char, 65> host{};
    if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
    return fmt::format("process {} on {}", getpid(), host.data());
}

// Anybody who may write the cache wrote it: plain text of one short line, or nothing.
std::string holder_of(const FileOps& files, int fd) {
    std::array<char, 128> text{};
    const ssize_t n = files.pread(fd, text.data(), text.size(), 0);
    std::string holder(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
    const bool plain = std::ranges::all_of(holder, [](char c) { return c >= ' ' && c <= '~'; });
    return holder.empty() || !plain ? "another process" : holder;
}

}  // namespace

FileLock FileLock::none(std::string fault) {
    return FileLock(Status::unavailable, std::move(fault), Descriptor(system_files(), -1));
}

FileLock FileLock::try_acquire(const FileOps& files, const std::string& path, mode_t mode) {
    const auto unavailable = [&](std::string_view step) {
        return FileLock(Status::unavailable, io_error(step, path, errno).message, Descriptor(files, -1));
    };
    // A holder removes the file before it lets go. Who locks it after that has a file without a name, which excludes
    // nobody: again with the file that has the name by then. Each turn means that somebody else made progress.
    for (int turn = 0; turn < 100; ++turn) {
        constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
        Descriptor fd(files, retry_interrupted([&] { return files.open(path.c_str(), kFlags, mode); }));
        if (!fd.valid()) return unavailable("open");
        if (retry_interrupted([&] { return files.lock(fd.get()); }) != 0) {
            if (errno != EAGAIN && errno != EACCES) return unavailable("lock");
            return FileLock(Status::busy, holder_of(files, fd.get()), Descriptor(files, -1));
        }
        struct stat mine {};
        if (files.fstat(fd.get(), &mine) != 0) return unavailable("fstat");
        if (!S_ISREG(mine.st_mode)) {
            errno = EINVAL;
            return unavailable("lock");
        }
        if (mine.st_nlink == 0) continue;
        // For people only: the lock holds without it.
        if (files.ftruncate(fd.get(), 0) == 0) (void)write_all(files, fd.get(), self());
        FileLock lock(Status::held, {}, std::move(fd));
        lock.path_ = path;
        lock.files_ = &files;
        return lock;
    }
    errno = EAGAIN;
    return unavailable("lock");
}

FileLock::~FileLock() {
    if (status_ == Status::held && fd_.valid()) files_->unlink(path_.c_str());
}

}  // namespace nq
