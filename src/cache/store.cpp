#include "cache/store.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

namespace nq {
namespace {

constexpr std::size_t kMaxBadEntries = 32;
constexpr std::string_view kSuffix = ".nqc";
constexpr std::string_view kCacheDirTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This file is a cache directory tag created by normquant. See https://bford.info/cachedir/\n";

std::string error_text(int error) { return std::generic_category().message(error); }

Error failed(std::string_view step, const std::string& path, int error) {
    return Error{NQ_ERR_INTERNAL, fmt::format("{} {}: {}", step, path, error_text(error)), {}};
}

template <class Call>
auto retry(Call call) {
    auto result = call();
    while (result < 0 && errno == EINTR) result = call();
    return result;
}

// lstat() follows a symlink whose path ends in a slash, and a relative path would change with the working directory.
std::string normalized(std::string root) {
    std::error_code error;
    if (std::filesystem::path absolute = std::filesystem::absolute(root, error); !error) root = absolute.string();
    while (root.size() > 1 && root.back() == '/') root.pop_back();
    return root;
}

class Descriptor {
public:
    Descriptor(const FileOps& files, int fd) : files_(files), fd_(fd) {}
    ~Descriptor() {
        if (fd_ >= 0) files_.close(fd_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return fd_; }
    int close() { return files_.close(std::exchange(fd_, -1)); }

private:
    const FileOps& files_;
    int fd_;
};

// Names in a directory, sorted; none if it cannot be read.
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

enum class ReadStatus { kRead, kAbsent, kBad, kFailed };

struct FileContent {
    ReadStatus status = ReadStatus::kFailed;
    std::string fault;                // when bad or failed
    std::optional<struct stat> seen;  // what was opened
    std::vector<unsigned char> bytes;
};

// Reads a regular file, and nothing else, without ever blocking: O_NONBLOCK is for a FIFO that nobody writes to.
FileContent read_regular(const FileOps& files, const std::string& path) {
    FileContent out;
    const auto fail = [&out](ReadStatus status, std::string fault) {
        out.status = status;
        out.fault = std::move(fault);
        return out;
    };
    constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    const Descriptor fd(files, retry([&] { return files.open(path.c_str(), kFlags, 0); }));
    if (fd.get() < 0) {
        switch (errno) {
            case ENOENT:
            case ENOTDIR:
                return fail(ReadStatus::kAbsent, {});
            case ELOOP:
                return fail(ReadStatus::kBad, "it is a symbolic link");
            case ENXIO:
                return fail(ReadStatus::kBad, "it is a socket");
            default:
                return fail(ReadStatus::kFailed, failed("open", path, errno).message);
        }
    }
    struct stat info {};
    if (files.fstat(fd.get(), &info) != 0) return fail(ReadStatus::kFailed, failed("fstat", path, errno).message);
    out.seen = info;
    if (!S_ISREG(info.st_mode)) return fail(ReadStatus::kBad, "it is not a regular file");
    const auto size = static_cast<std::uint64_t>(info.st_size);
    if (size > kMaxEntryBytes)
        return fail(ReadStatus::kBad, fmt::format("{} bytes, more than the limit of {}", size, kMaxEntryBytes));

    out.bytes.resize(size);
    std::size_t done = 0;
    while (done < size) {
        const ssize_t n = retry([&] { return files.read(fd.get(), out.bytes.data() + done, size - done); });
        if (n < 0) return fail(ReadStatus::kFailed, failed("read", path, errno).message);
        if (n == 0) break;  // it shrank; verification will say so
        done += static_cast<std::size_t>(n);
    }
    out.bytes.resize(done);
    out.status = ReadStatus::kRead;
    return out;
}

// Unique among processes, containers that share process ids, threads and stores.
std::string temp_name(std::uint64_t count) {
    std::uint64_t random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof random))
        random = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    return fmt::format("{}-{}-{:016x}{}", getpid(), count, random, kSuffix);
}

}  // namespace

Store::Store(std::string root, bool shared, const FileOps& files, Logger& log)
    : root_(normalized(std::move(root))), version_root_(root_ + "/v1"), shared_(shared), files_(files), log_(log) {}

std::string Store::shard_of(const std::string& arch, const RequestKey& key) const {
    return fmt::format("{}/{}/{}", version_root_, arch, hex(key).substr(0, 2));
}

std::string Store::path_of(const std::string& arch, const RequestKey& key, const CompilerId& compiler) const {
    return fmt::format("{}/{}-{}{}", shard_of(arch, key), hex(key).substr(2), hex(compiler).substr(0, 16), kSuffix);
}

Outcome Store::trust_of(const struct stat& root) const {
    const auto reject = [](nq_status status, std::string text) { return Error{status, std::move(text), {}}; };
    if (S_ISLNK(root.st_mode))
        return reject(NQ_ERR_CACHE_UNTRUSTED,
                      fmt::format("cache directory {} is a symbolic link; name the directory itself", root_));
    if (!S_ISDIR(root.st_mode))
        return reject(NQ_ERR_INVALID_ARGUMENT, fmt::format("cache directory {} is not a directory", root_));
    if (shared_) return Unit{};
    const uid_t user = geteuid();
    if (root.st_uid != user && root.st_uid != 0)
        return reject(
            NQ_ERR_CACHE_UNTRUSTED,
            fmt::format("cache directory {} belongs to uid {}, not to uid {} or root; use another one, or set "
                        "NORMQUANT_CACHE_SHARED=on if everyone who can write it is trusted",
                        root_, root.st_uid, user));
    if ((root.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return reject(
            NQ_ERR_CACHE_UNTRUSTED,
            fmt::format("cache directory {} can be written by others (mode {:04o}); run chmod go-w on it, or set "
                        "NORMQUANT_CACHE_SHARED=on if everyone who can write it is trusted",
                        root_, root.st_mode & 07777));
    return Unit{};
}

Outcome Store::check() {
    usable(false);
    const std::lock_guard lock(trust_mutex_);
    if (rejection_) return *rejection_;
    return Unit{};
}

bool Store::usable(bool create) {
    if (const Trust known = trust_.load(std::memory_order_acquire); known != Trust::kUnknown)
        return known == Trust::kTrusted;
    const std::lock_guard lock(trust_mutex_);
    if (const Trust known = trust_.load(std::memory_order_relaxed); known != Trust::kUnknown)
        return known == Trust::kTrusted;

    struct stat root {};
    int error = files_.lstat(root_.c_str(), &root) == 0 ? 0 : errno;
    if (error == ENOENT) {
        if (!create) return false;
        if (const auto made = make_directories(root_); !made) {
            warn_once(fmt::format("no disk cache: {}", made.error().message));
            return false;
        }
        error = files_.lstat(root_.c_str(), &root) == 0 ? 0 : errno;
    }
    if (error != 0) {  // perhaps for the moment only: asked again next time
        warn_once(fmt::format("no disk cache: {}", failed("lstat", root_, error).message));
        return false;
    }
    if (Outcome trust = trust_of(root); !trust) {
        rejection_ = trust.error();
        trust_.store(Trust::kRejected, std::memory_order_release);
        warn_once(fmt::format("no disk cache: {}", rejection_->message));
        return false;
    }
    trust_.store(Trust::kTrusted, std::memory_order_release);
    return true;
}

std::optional<Entry> Store::load(const std::string& arch, const RequestKey& key, const CompilerId& compiler) {
    if (!usable(false)) return std::nullopt;
    std::optional<Entry> entry = load_file(path_of(arch, key, compiler), arch, key);
    // The name holds half of the compiler id. Two compilers whose ids share that half would take turns; none is at
    // fault.
    if (entry && entry->compiler != compiler) return std::nullopt;
    return entry;
}

std::optional<Entry> Store::load_any_compiler(const std::string& arch, const RequestKey& key) {
    if (!usable(false)) return std::nullopt;
    const std::string shard = shard_of(arch, key);
    const std::string prefix = hex(key).substr(2) + "-";
    for (const std::string& name : names_in(files_, shard)) {
        if (!name.starts_with(prefix) || !name.ends_with(kSuffix)) continue;
        if (std::optional<Entry> entry = load_file(fmt::format("{}/{}", shard, name), arch, key)) return entry;
    }
    return std::nullopt;
}

std::optional<Entry> Store::load_file(const std::string& path, const std::string& arch, const RequestKey& key) {
    const FileContent file = read_regular(files_, path);
    switch (file.status) {
        case ReadStatus::kAbsent:
            return std::nullopt;
        case ReadStatus::kFailed:
            warn_once(fmt::format("cache entry not read: {}", file.fault));
            return std::nullopt;
        case ReadStatus::kBad:
            set_aside(path, arch, file.seen, file.fault);
            return std::nullopt;
        case ReadStatus::kRead:
            break;
    }
    Result<Entry> entry = decode_entry(file.bytes.data(), file.bytes.size());
    if (!entry) {
        set_aside(path, arch, file.seen, entry.error().message);
        return std::nullopt;
    }
    if (entry->key != key || path_of(arch, entry->key, entry->compiler) != path) {
        set_aside(path, arch, file.seen,
                  fmt::format("it holds key {} of compiler {}", hex(entry->key), hex(entry->compiler)));
        return std::nullopt;
    }
    return *std::move(entry);
}

// seen: the file that was found wanting. Another process may have replaced it by a good one since.
void Store::set_aside(const std::string& path, const std::string& arch, const std::optional<struct stat>& seen,
                      std::string_view fault) {
    bad_entries_.fetch_add(1, std::memory_order_relaxed);
    const auto report = [&](std::string_view what) {
        warn_once(fmt::format("cache entry {} is not usable: {}; {}", path, fault, what));
    };
    struct stat now {};
    if (files_.lstat(path.c_str(), &now) != 0) return report("it is gone");
    if (seen && (now.st_ino != seen->st_ino || now.st_dev != seen->st_dev)) return report("it has been replaced");
    if (S_ISDIR(now.st_mode)) return report("left in place; remove it");

    const std::string bad = version_root_ + "/bad";
    const std::string name = path.substr(version_root_.size() + 1 + arch.size() + 1);
    std::string target = fmt::format("{}/{}-{}", bad, arch, name);
    std::replace(target.begin() + static_cast<std::ptrdiff_t>(bad.size()) + 1, target.end(), '/', '-');
    if (make_directories(bad) && names_in(files_, bad).size() < kMaxBadEntries &&
        files_.rename(path.c_str(), target.c_str()) == 0)
        return report(fmt::format("moved to {}", target));
    if (files_.unlink(path.c_str()) == 0) return report("removed");
    report(fmt::format("it cannot be removed: {}", error_text(errno)));
}

bool Store::publish(const std::string& arch, const Entry& entry) {
    const auto give_up = [&](const Error& error) {
        warn_once(fmt::format("cache entry not stored: {}", error.message));
        return false;
    };
    const std::vector<unsigned char> bytes = encode_entry(entry);
    // What would be refused on load is not worth a file.
    if (const auto decoded = decode_entry(bytes.data(), bytes.size()); !decoded) return give_up(decoded.error());
    if (!usable(true)) return false;

    const std::string tmp = version_root_ + "/tmp";
    const auto tmp_made = make_directories(tmp);
    if (!tmp_made) return give_up(tmp_made.error());
    // A cache without its tag works as well, so a failure here is no news.
    if (*tmp_made) (void)write_new(version_root_ + "/CACHEDIR.TAG", kCacheDirTag);
    const std::string shard = shard_of(arch, entry.key);
    if (const auto made = make_directories(shard); !made) return give_up(made.error());

    const std::string temp = fmt::format("{}/{}", tmp, temp_name(temp_files_.fetch_add(1, std::memory_order_relaxed)));
    if (const Outcome written = write_new(temp, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}); !written)
        return give_up(written.error());
    const std::string path = path_of(arch, entry.key, entry.compiler);
    if (files_.rename(temp.c_str(), path.c_str()) != 0) {
        const Error error = failed("rename to", path, errno);
        files_.unlink(temp.c_str());
        return give_up(error);
    }
    // The entry is in place. Should a power cut undo the rename, that is a miss.
    const Descriptor directory(
        files_, retry([&] { return files_.open(shard.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY, 0); }));
    const bool synced = directory.get() >= 0 && retry([&] { return files_.fsync(directory.get()); }) == 0;
    if (!synced && errno != EINVAL)  // EINVAL: a file system that cannot sync directories
        warn_once(fmt::format("cache entry may be lost at a power cut: {}", failed("fsync", shard, errno).message));
    return true;
}

// A new file with all of the bytes on disk, or no file.
Outcome Store::write_new(const std::string& path, std::string_view bytes) {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    Descriptor fd(files_, retry([&] { return files_.open(path.c_str(), kFlags, shared_ ? 0666 : 0600); }));
    if (fd.get() < 0) return failed("create", path, errno);
    const auto give_up = [&](std::string_view step, int error) {
        files_.unlink(path.c_str());
        return failed(step, path, error);
    };
    while (!bytes.empty()) {
        const ssize_t n = retry([&] { return files_.write(fd.get(), bytes.data(), bytes.size()); });
        if (n <= 0) return give_up("write", n < 0 ? errno : EIO);
        bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    if (retry([&] { return files_.fsync(fd.get()); }) != 0) return give_up("fsync", errno);
    // Quota and network file systems may report a lost write here. EINTR is none: the descriptor is closed all the
    // same.
    if (fd.close() != 0 && errno != EINTR) return give_up("close", errno);
    return Unit{};
}

// True if the last directory of the path was made here.
Result<bool> Store::make_directories(const std::string& path) {
    const mode_t mode = shared_ ? 0777 : 0700;
    if (files_.mkdir(path.c_str(), mode) == 0) return true;
    if (errno == ENOENT) {
        if (const std::size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0)
            if (auto parent = make_directories(path.substr(0, slash)); !parent) return parent;
        if (files_.mkdir(path.c_str(), mode) == 0) return true;
    }
    if (errno == EEXIST) return false;
    return failed("mkdir", path, errno);
}

std::vector<StoredEntry> Store::list() const {
    std::vector<StoredEntry> found;
    for (const std::string& arch : names_in(files_, version_root_)) {
        if (!arch.starts_with("sm_")) continue;
        const std::string arch_root = fmt::format("{}/{}", version_root_, arch);
        for (const std::string& shard : names_in(files_, arch_root)) {
            for (const std::string& name : names_in(files_, fmt::format("{}/{}", arch_root, shard))) {
                if (!name.ends_with(kSuffix)) continue;
                const std::string path = fmt::format("{}/{}/{}", arch_root, shard, name);
                struct stat info {};
                if (files_.lstat(path.c_str(), &info) != 0) continue;  // gone meanwhile
                const FileContent file = read_regular(files_, path);
                if (file.status == ReadStatus::kAbsent) continue;
                Result<Entry> entry = file.status == ReadStatus::kRead
                                          ? decode_entry(file.bytes.data(), file.bytes.size())
                                          : Result<Entry>(Error{NQ_ERR_INVALID_ARGUMENT, file.fault, {}});
                if (entry && path_of(arch, entry->key, entry->compiler) != path)
                    entry = Error{NQ_ERR_INVALID_ARGUMENT,
                                  fmt::format("it holds key {} of compiler {}", hex(entry->key), hex(entry->compiler)),
                                  {}};
                found.push_back(
                    {path, arch, static_cast<std::uint64_t>(info.st_size), info.st_mtime, std::move(entry)});
            }
        }
    }
    return found;
}

void Store::warn_once(const std::string& text) {
    if (!warned_.exchange(true, std::memory_order_relaxed))
        log_.warn(text);
    else
        log_.debug(text);
}

}  // namespace nq
