#include "support/file.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <system_error>

namespace nq {

const FileOps& system_files() {
    // Lambdas where libc's function is variadic, overloaded or might be a macro.
    static constexpr FileOps kSystem = {
        .open = [](const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); },
        .close = ::close,
        .read = ::read,
        .pread = ::pread,
        .write = ::write,
        .ftruncate = ::ftruncate,
        .fsync = ::fsync,
        .fstat = [](int fd, struct stat* out) { return ::fstat(fd, out); },
        .lstat = [](const char* path, struct stat* out) { return ::lstat(path, out); },
        .touch = [](int fd) { return ::futimens(fd, nullptr); },
        .lock =
            [](int fd) {
                // Open file description locks: dropped by the kernel when the last descriptor of the opened file goes,
                // however the process ends, and not by an unrelated close of the same file as classic ones are.
                struct flock whole = {};
                whole.l_type = F_WRLCK;
                whole.l_whence = SEEK_SET;
                return ::fcntl(fd, F_OFD_SETLK, &whole);
            },
        .mkdir = ::mkdir,
        .rename = ::rename,
        .link = ::link,
        .unlink = ::unlink,
        .rmdir = ::rmdir,
        .opendir = [](const char* path) -> DIR* {
            // Never through a symlink: what is listed may be deleted.
            const int fd = ::open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            DIR* const directory = fd >= 0 ? ::fdopendir(fd) : nullptr;
            if (fd >= 0 && directory == nullptr) ::close(fd);
            return directory;
        },
        .readdir = ::readdir,
        .closedir = [](DIR* directory) { return ::closedir(directory); },
    };
    return kSystem;
}

std::string error_text(int error) { return std::generic_category().message(error); }

Error io_error(std::string_view step, const std::string& path, int error) {
    return Error{NQ_ERR_CACHE_IO, fmt::format("{} {}: {}", step, path, error_text(error)), {}};
}

OpenedFile open_regular(const FileOps& files, const std::string& path) {
    using Status = OpenedFile::Status;
    // O_NONBLOCK is for a FIFO that nobody writes to.
    constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    OpenedFile out{Status::failed, {}, Descriptor(files, -1), {}};
    out.fd = Descriptor(files, retry_interrupted([&] { return files.open(path.c_str(), kFlags, 0); }));
    const auto end = [&out](Status status, std::string fault) {
        out.status = status;
        out.fault = std::move(fault);
        return std::move(out);
    };
    if (!out.fd.valid()) {
        switch (errno) {
            case ENOENT:
            case ENOTDIR:
                return end(Status::absent, {});
            case ELOOP:
                return end(Status::wrong_kind, "it is a symbolic link");
            case ENXIO:
                return end(Status::wrong_kind, "it is a socket");
            default:
                return end(Status::failed, io_error("open", path, errno).message);
        }
    }
    struct stat info {};
    if (files.fstat(out.fd.get(), &info) != 0) return end(Status::failed, io_error("fstat", path, errno).message);
    out.info = info;
    if (!S_ISREG(info.st_mode)) return end(Status::wrong_kind, "it is not a regular file");
    return end(Status::opened, {});
}

std::optional<std::vector<unsigned char>> read_up_to(const FileOps& files, int fd, std::uint64_t bytes) {
    std::vector<unsigned char> content(bytes);
    std::size_t done = 0;
    while (done < bytes) {
        const ssize_t n = retry_interrupted([&] { return files.read(fd, content.data() + done, bytes - done); });
        if (n < 0) return std::nullopt;
        if (n == 0) break;
        done += static_cast<std::size_t>(n);
    }
    content.resize(done);
    return content;
}

bool write_all(const FileOps& files, int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t n = retry_interrupted([&] { return files.write(fd, bytes.data(), bytes.size()); });
        if (n == 0) errno = EIO;
        if (n <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
}

Outcome write_new_file(const FileOps& files, const std::string& path, std::string_view bytes, mode_t mode,
                       Durability durability) {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    Descriptor fd(files, retry_interrupted([&] { return files.open(path.c_str(), kFlags, mode); }));
    if (!fd.valid()) return io_error("create", path, errno);
    const auto give_up = [&](std::string_view step, int error) {
        files.unlink(path.c_str());
        return io_error(step, path, error);
    };
    if (!write_all(files, fd.get(), bytes)) return give_up("write", errno);
    if (durability == Durability::durable && retry_interrupted([&] { return files.fsync(fd.get()); }) != 0)
        return give_up("fsync", errno);
    // Quota and network file systems may report a lost write here. EINTR is none: the descriptor is closed all the
    // same.
    if (fd.close() != 0 && errno != EINTR) return give_up("close", errno);
    return Unit{};
}

Result<bool> make_directories(const FileOps& files, const std::string& path, mode_t mode) {
    if (files.mkdir(path.c_str(), mode) == 0) return true;
    if (errno == ENOENT) {
        if (const std::size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0)
            if (auto parent = make_directories(files, path.substr(0, slash), mode); !parent) return parent;
        if (files.mkdir(path.c_str(), mode) == 0) return true;
    }
    if (errno == EEXIST) return false;
    return io_error("mkdir", path, errno);
}

std::vector<std::string> names_in(const FileOps& files, const std::string& path) {
    std::vector<std::string> names;
    DIR* const directory = files.opendir(path.c_str());
    if (!directory) return names;
    while (const dirent* item = files.readdir(directory)) {
        const std::string_view name = item->d_name;
        if (name != "." && name != "..") names.emplace_back(name);
    }
    files.closedir(directory);
    std::ranges::sort(names);
    return names;
}

bool is_unique_name(std::string_view name) {
    const std::size_t dash = name.find('-');
    return dash != 0 && dash != name.npos && name.size() == dash + 1 + 16 &&
           name.find_first_not_of("0123456789") == dash &&
           name.find_first_not_of("0123456789abcdef", dash + 1) == name.npos;
}

std::string unique_name() {
    std::uint64_t random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof random))
        random = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    return fmt::format("{}-{:016x}", getpid(), random);
}

}  // namespace nq
