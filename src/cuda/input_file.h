// A regular file opened for reading at any offset. Never mapped: a mapped file that is truncated kills its reader.
#pragma once

#include "support/bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nq {

class InputFile {
public:
    explicit InputFile(const std::string& path)
        // Not blocking: the path may turn out to be a FIFO.
        : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), error_(fd_ < 0 ? errno : 0) {
        struct stat info = {};
        if (fd_ < 0) return;
        if (::fstat(fd_, &info) != 0) {
            error_ = errno;
        } else if (!S_ISREG(info.st_mode)) {
            error_ = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
        } else {
            size_ = static_cast<std::uint64_t>(info.st_size);
        }
    }
    ~InputFile() {
        if (fd_ >= 0) ::close(fd_);
    }
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;

    int error() const { return error_; }  // errno of what failed when it was opened; else 0
    std::uint64_t size() const { return size_; }

    // All of `out`, or false.
    bool read(std::uint64_t offset, std::span<unsigned char> out) const {
        if (offset > size_ || out.size() > size_ - offset) return false;
        while (!out.empty()) {
            const ssize_t got = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) return false;
            out = out.subspan(static_cast<std::size_t>(got));
            offset += static_cast<std::uint64_t>(got);
        }
        return true;
    }
    std::optional<std::vector<unsigned char>> read(std::uint64_t offset, std::uint64_t size, std::uint64_t most) const {
        if (size > most || offset > size_ || size > size_ - offset) return std::nullopt;
        std::vector<unsigned char> bytes(size);
        if (!read(offset, bytes)) return std::nullopt;
        return bytes;
    }

private:
    int fd_;
    int error_;
    std::uint64_t size_ = 0;
};

}  // namespace nq
