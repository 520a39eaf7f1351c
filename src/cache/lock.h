// A lock among processes: one file a key, locked by the kernel, so that the death of its holder releases it. The file
// holds who has it, for people. A child forked by the holder keeps the lock alive, file systems may know no locks: a
// caller must be able to go on without.
#pragma once

#include "support/file.h"

#include <optional>
#include <string>

namespace nq {

class FileLock {
public:
    enum class Status { held, busy, unavailable };

    // One attempt. The directory of `path` must exist.
    static FileLock try_acquire(const FileOps& files, const std::string& path, mode_t mode);

    static FileLock none(std::string fault);

    FileLock(FileLock&&) = default;
    FileLock& operator=(FileLock&&) = delete;
    // Removes the file of a held lock: whoever waits on it finds it gone, and opens the next one.
    ~FileLock();

    Status status() const { return status_; }
    const std::string& holder() const { return text_; }  // busy: "process 123 on host", or "another process"
    const std::string& fault() const { return text_; }   // unavailable: why

private:
    FileLock(Status status, std::string text, Descriptor fd)
        : status_(status), text_(std::move(text)), fd_(std::move(fd)) {}

    Status status_;
    std::string text_;
    Descriptor fd_;
    std::string path_;
    const FileOps* files_ = nullptr;
};

}  // namespace nq
