#include "files.h"

#include "errors.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace nq::cli {
namespace {

class Descriptor {
public:
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() { close(); }

    int get() const { return fd_; }
    bool close() { return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0; }

private:
    int fd_;
};

bool write_all(int fd, Bytes bytes) {
    while (!bytes.empty()) {
        const ssize_t written = ::write(fd, bytes.data(), bytes.size());
        if (written < 0) {
            if (errno == EINTR) continue;
            return false;
        }
        bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return true;
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
    // Not to hang on a FIFO that nobody writes; a regular file does not care.
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.get() < 0) return usage_error(std::strerror(errno));
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) {
        return usage_error(std::strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) return usage_error("it is not a regular file");
    const auto size = static_cast<std::size_t>(status.st_size);
    if (size == 0) return MappedFile(nullptr, 0);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (data == MAP_FAILED) return failure(fmt::format("cannot map it: {}", std::strerror(errno)));
    return MappedFile(static_cast<const unsigned char*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<unsigned char*>(data_), size_);
}

Outcome check_output_dir(const std::string& path) {
    std::error_code error;
    std::filesystem::path existing = std::filesystem::absolute(path, error);
    while (existing.has_relative_path() && !std::filesystem::exists(existing, error)) existing = existing.parent_path();
    const auto refuse = [&](std::string_view reason) {
        return usage_error(
            fmt::format("the directory '{}' cannot be written: '{}' {}", path, existing.string(), reason));
    };
    if (!std::filesystem::is_directory(existing, error)) return refuse("is not a directory");
    if (::access(existing.c_str(), W_OK | X_OK) != 0) return refuse(fmt::format("is closed: {}", std::strerror(errno)));
    return Unit{};
}

Outcome create_output_dir(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return usage_error(fmt::format("cannot create the directory '{}': {}", path, error.message()));
    if (!std::filesystem::is_directory(path, error)) return usage_error(fmt::format("'{}' is not a directory", path));
    return Unit{};
}

Outcome write_file(const std::string& path, std::string_view head, Bytes body) {
    std::string temporary = path + ".XXXXXX";
    Descriptor file(::mkostemp(temporary.data(), O_CLOEXEC));
    bool created = false;
    const auto failed = [&](const char* what) {
        const int reason = errno;
        if (created) ::unlink(temporary.c_str());
        return failure(fmt::format("cannot {} '{}': {}", what, path, std::strerror(reason)));
    };
    if (file.get() < 0) return failed("create");
    created = true;
    // mkostemp makes it private to the user; results get the permissions any new file would.
    const mode_t mask = ::umask(0);
    ::umask(mask);
    const auto* text = reinterpret_cast<const unsigned char*>(head.data());
    if (::fchmod(file.get(), 0666 & ~mask) != 0 || !write_all(file.get(), {text, head.size()}) ||
        !write_all(file.get(), body) || ::fsync(file.get()) != 0 || !file.close()) {
        return failed("write");
    }
    if (::rename(temporary.c_str(), path.c_str()) != 0) return failed("replace");
    return Unit{};
}

}  // namespace nq::cli
