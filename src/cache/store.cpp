#include "cache/store.h"

#include "cache/layout.h"
#include "cache/statistics.h"
#include "cache/trust.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

namespace nq {
namespace {

constexpr std::size_t kMaxBadEntries = 32;
constexpr std::int64_t kTouchAfterSeconds = 3600;
constexpr std::string_view kCacheDirTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This file is a cache directory tag created by normquant. See https://bford.info/cachedir/\n";

// lstat() follows a symlink whose path ends in a slash, and a relative path would change with the working directory.
std::string normalized(std::string root) {
    std::error_code error;
    if (std::filesystem::path absolute = std::filesystem::absolute(root, error); !error) root = absolute.string();
    while (root.size() > 1 && root.back() == '/') root.pop_back();
    return root;
}

std::int64_t seconds_now() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Store::Store(std::string root, StoreOptions options, const FileOps& files, Logger& log, Counters& counters)
    : root_(normalized(std::move(root))),
      version_root_(root_ + "/v1"),
      options_(options),
      files_(files),
      log_(log),
      counters_(counters) {}

std::string Store::shard_of(const std::string& arch, const RequestKey& key) const {
    return fmt::format("{}/{}/{}", version_root_, arch, hex(key).substr(0, 2));
}

std::string Store::path_of(const std::string& arch, const RequestKey& key, const CompilerId& compiler) const {
    return fmt::format("{}/{}-{}{}", shard_of(arch, key), hex(key).substr(2), hex(compiler).substr(0, 16),
                       layout::kEntrySuffix);
}

Outcome Store::check() {
    usable(false);
    const std::lock_guard lock(trust_mutex_);
    if (rejection_) return *rejection_;
    return Unit{};
}

bool Store::usable(bool create) {
    if (const Trust known = trust_.load(std::memory_order_acquire); known != Trust::unknown)
        return known == Trust::trusted;
    const std::lock_guard lock(trust_mutex_);
    if (const Trust known = trust_.load(std::memory_order_relaxed); known != Trust::unknown)
        return known == Trust::trusted;

    struct stat root {}, version {};
    const auto look = [&](const std::string& path, struct stat& info) {
        return files_.lstat(path.c_str(), &info) == 0 ? 0 : errno;
    };
    // Perhaps for the moment only: asked again next time.
    const auto not_now = [&](const Error& error) {
        warn_once(fmt::format("no disk cache: {}", error.message));
        return false;
    };
    int error = look(root_, root);
    if (error == ENOENT) {
        if (!create) return false;
        if (const auto made = make_directories(files_, root_, directory_mode()); !made) return not_now(made.error());
        error = look(root_, root);
    }
    if (error != 0) return not_now(io_error("lstat", root_, error));
    Outcome trust = trust_directory(root, root_, options_.shared);
    // Below a root that nobody else can write, only v1 itself could have been opened to others.
    if (trust) {
        error = look(version_root_, version);
        if (error != 0 && error != ENOENT) return not_now(io_error("lstat", version_root_, error));
        if (error == 0) trust = trust_directory(version, version_root_, options_.shared);
    }
    if (!trust) {
        rejection_ = trust.error();
        trust_.store(Trust::rejected, std::memory_order_release);
        warn_once(fmt::format("no disk cache: {}", rejection_->message));
        return false;
    }
    trust_.store(Trust::trusted, std::memory_order_release);
    return true;
}

std::optional<Entry> Store::load(const std::string& arch, const RequestKey& key, const CompilerId& compiler) {
    if (!usable(false)) return std::nullopt;
    std::optional<Entry> entry = load_file(path_of(arch, key, compiler), arch);
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
        if (!name.starts_with(prefix) || !name.ends_with(layout::kEntrySuffix)) continue;
        if (std::optional<Entry> entry = load_file(fmt::format("{}/{}", shard, name), arch)) return entry;
    }
    return std::nullopt;
}

// What an opened entry file holds, if that belongs where the file is.
Store::Read Store::read_placed(const OpenedFile& file, const std::string& path, const std::string& arch) const {
    if (file.status == OpenedFile::Status::wrong_kind) return {std::nullopt, file.fault};
    if (file.status != OpenedFile::Status::opened) return {std::nullopt, file.fault, true};
    if (auto distrust = distrust_of_entry(*file.info, options_.shared)) return {std::nullopt, *distrust};
    const auto size = static_cast<std::uint64_t>(file.info->st_size);
    if (size > kMaxEntryBytes)
        return {std::nullopt, fmt::format("{} bytes, more than the limit of {}", size, kMaxEntryBytes)};
    // One that shrinks meanwhile is too short for its header.
    const auto bytes = read_up_to(files_, file.fd.get(), size);
    if (!bytes) return {std::nullopt, fmt::format("read: {}", error_text(errno)), true};
    Result<Entry> entry = decode_entry(bytes->data(), bytes->size());
    if (!entry) return {std::nullopt, entry.error().message};
    if (path_of(arch, entry->key, entry->compiler) != path)
        return {std::nullopt, fmt::format("it holds key {} of compiler {}", hex(entry->key), hex(entry->compiler))};
    return {*std::move(entry), {}};
}

std::optional<Entry> Store::load_file(const std::string& path, const std::string& arch) {
    // Open until a bad one is out of the way: while it is, no other file can have its inode number.
    const OpenedFile file = open_regular(files_, path);
    if (file.status == OpenedFile::Status::absent) return std::nullopt;
    Read read = read_placed(file, path, arch);
    if (read.failed) {
        warn_once(fmt::format("cache entry {} not read: {}", path, read.fault));
        return std::nullopt;
    }
    if (!read.entry) {
        set_aside(path, arch, file, read.fault);
        return std::nullopt;
    }
    add(counters_.loaded_bytes, static_cast<std::uint64_t>(file.info->st_size));
    // Fails where the file is another user's, whose own hits have to do.
    if (!options_.read_only && file.info->st_mtime < seconds_now() - kTouchAfterSeconds) files_.touch(file.fd.get());
    return std::move(read.entry);
}

// seen: the file that was found wanting. Another process may have replaced it by a good one since.
bool Store::set_aside(const std::string& path, const std::string& arch, const OpenedFile& seen,
                      std::string_view fault) {
    add(counters_.bad_entries);
    const auto report = [&](bool gone, std::string_view what) {
        warn_once(fmt::format("cache entry {} is not usable: {}; {}", path, fault, what));
        return gone;
    };
    if (options_.read_only) return report(false, "left in place, as the directory is read-only");
    const auto is_seen = [&](const struct stat& file) {
        // What could not even be opened was a symlink or a socket: a regular file has replaced it.
        if (!seen.info) return !S_ISREG(file.st_mode);
        return file.st_ino == seen.info->st_ino && file.st_dev == seen.info->st_dev;
    };
    struct stat now {};
    const auto is_there = [&] { return files_.lstat(path.c_str(), &now) == 0; };
    if (!is_there()) return report(true, "it is gone");
    if (!is_seen(now)) return report(true, "it has been replaced");
    if (S_ISDIR(now.st_mode)) return report(false, "left in place; remove it");

    const std::string bad = layout::bad(version_root_);
    const std::string name = path.substr(version_root_.size() + 1 + arch.size() + 1);
    std::string target = fmt::format("{}/{}-{}", bad, arch, name);
    std::replace(target.begin() + static_cast<std::ptrdiff_t>(bad.size()) + 1, target.end(), '/', '-');
    if (make_directories(files_, bad, directory_mode()) && names_in(files_, bad).size() < kMaxBadEntries &&
        files_.rename(path.c_str(), target.c_str()) == 0) {
        // It was replaced between the look and the move: the good one goes back, unless there is a newer one.
        if (files_.lstat(target.c_str(), &now) == 0 && !is_seen(now)) {
            files_.link(target.c_str(), path.c_str());
            files_.unlink(target.c_str());
            return report(true, "it has been replaced");
        }
        // Its stay there begins now, whenever it was written.
        if (seen.status == OpenedFile::Status::opened) files_.touch(seen.fd.get());
        return report(true, fmt::format("moved to {}", target));
    }
    if (!is_there()) return report(true, "it is gone");
    if (!is_seen(now)) return report(true, "it has been replaced");
    if (files_.unlink(path.c_str()) == 0) return report(true, "removed");
    return report(false, fmt::format("it cannot be removed: {}", error_text(errno)));
}

bool Store::repair(const StoredEntry& bad) {
    if (bad.entry) return true;
    const OpenedFile file = open_regular(files_, bad.path);
    if (file.status == OpenedFile::Status::absent) return true;
    const Read read = read_placed(file, bad.path, bad.arch);
    if (read.entry) return true;  // replaced meanwhile
    if (read.failed) {
        warn_once(fmt::format("cache entry {} not read: {}", bad.path, read.fault));
        return false;
    }
    return set_aside(bad.path, bad.arch, file, read.fault);
}

Outcome Store::publish(const std::string& arch, const Entry& entry) {
    if (options_.read_only)
        return Error{NQ_ERR_CACHE_IO, fmt::format("the cache {} is read-only (NORMQUANT_CACHE_READONLY)", root_), {}};
    const std::vector<unsigned char> image = encode_entry(entry);
    const std::string_view bytes(reinterpret_cast<const char*>(image.data()), image.size());
    // What would be refused on load is not worth a file.
    const auto decoded = decode_entry(image.data(), image.size());
    Outcome stored = Unit{};
    if (!decoded) {
        stored = decoded.error();
    } else if (!usable(true)) {
        add(counters_.failed_stores);
        const std::lock_guard lock(trust_mutex_);
        return rejection_ ? *rejection_
                          : Error{NQ_ERR_CACHE_IO, fmt::format("the cache {} cannot be created", root_), {}};
    } else {
        stored = place(arch, entry, bytes);
        // Somebody removed directories at this very moment: once more from the root.
        const auto absent = [&](const std::string& path) {
            struct stat info {};
            return files_.lstat(path.c_str(), &info) != 0 && errno == ENOENT;
        };
        if (!stored && (absent(shard_of(arch, entry.key)) || absent(layout::temp(version_root_))))
            stored = place(arch, entry, bytes);
    }
    if (!stored) {
        add(counters_.failed_stores);
        warn_once(fmt::format("cache entry not stored: {}", stored.error().message));
        return stored;
    }
    add(counters_.stored_entries);
    add(counters_.stored_bytes, bytes.size());
    add(added_, bytes.size());
    return stored;
}

// The directories that every writer needs.
Outcome Store::make_own_directories() {
    const auto made = make_directories(files_, layout::temp(version_root_), directory_mode());
    if (!made) return made.error();
    // A cache without its tag works as well, so a failure here is no news.
    if (*made)
        (void)write_new_file(files_, layout::tag(version_root_), kCacheDirTag, file_mode(), Durability::none);
    const auto locks = make_directories(files_, layout::locks(version_root_), directory_mode());
    if (!locks) return locks.error();
    return Unit{};
}

Outcome Store::place(const std::string& arch, const Entry& entry, std::string_view bytes) {
    if (Outcome made = make_own_directories(); !made) return made;
    const std::string shard = shard_of(arch, entry.key);
    if (const auto made = make_directories(files_, shard, directory_mode()); !made) return made.error();

    const std::string temp = fmt::format("{}/{}{}", layout::temp(version_root_), unique_name(), layout::kEntrySuffix);
    if (Outcome written = write_new_file(files_, temp, bytes, file_mode(), Durability::durable); !written)
        return written;
    const std::string path = path_of(arch, entry.key, entry.compiler);
    if (files_.rename(temp.c_str(), path.c_str()) != 0) {
        Error error = io_error("rename to", path, errno);
        files_.unlink(temp.c_str());
        return error;
    }
    // The entry is in place. Should a power cut undo the rename, that is a miss.
    constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_DIRECTORY;
    const Descriptor directory(files_,
                               retry_interrupted([&] { return files_.open(shard.c_str(), kFlags, 0); }));
    const bool synced =
        directory.valid() && retry_interrupted([&] { return files_.fsync(directory.get()); }) == 0;
    if (!synced && errno != EINVAL)  // EINVAL: a file system that cannot sync directories
        warn_once(fmt::format("cache entry may be lost at a power cut: {}", io_error("fsync", shard, errno).message));
    return Unit{};
}

FileLock Store::try_lock(const std::string& arch, const RequestKey& key, const CompilerId& compiler) {
    const std::string path = fmt::format("{}/{}-{}-{}", layout::locks(version_root_), arch, hex(key),
                                         hex(compiler).substr(0, 16));
    if (options_.read_only || !usable(true)) return FileLock::none("the cache cannot be written");
    const auto unavailable = [&](const std::string& fault) {
        log_.info(fmt::format("compiling without a lock: {}", fault));
        return FileLock::none(fault);
    };
    // A waiter asks often: one look where making all of them would be several calls.
    struct stat locks {};
    if (files_.lstat(layout::locks(version_root_).c_str(), &locks) != 0) {
        if (Outcome made = make_own_directories(); !made) return unavailable(made.error().message);
    }
    FileLock lock = FileLock::try_acquire(files_, path, file_mode());
    if (lock.status() == FileLock::Status::unavailable) return unavailable(lock.fault());
    return lock;
}

void Store::visit(const std::function<void(StoredEntry)>& visitor) const {
    layout::for_each_entry(files_, version_root_, [&](const std::string& arch, const std::string& path) {
        struct stat info {};
        if (files_.lstat(path.c_str(), &info) != 0) return;  // gone meanwhile
        const OpenedFile file = open_regular(files_, path);
        if (file.status == OpenedFile::Status::absent) return;
        Read read = read_placed(file, path, arch);
        visitor({path, arch, static_cast<std::uint64_t>(info.st_size), info.st_mtime,
                 read.entry ? Result<Entry>(*std::move(read.entry))
                            : Error{read.failed ? NQ_ERR_CACHE_IO : NQ_ERR_INVALID_ARGUMENT, read.fault, {}}});
    });
}

void Store::keep_within_limit() {
    if (options_.size_limit == 0) return;
    const std::unique_lock lock(size_mutex_, std::try_to_lock);
    if (!lock) return;  // another thread is at it
    const std::uint64_t added = added_;
    if (added == 0) return;
    // Other processes add as well: measured anew when what was added here is a good part of the limit. Not at each store
    // even where what cannot be removed is above it.
    const std::uint64_t part = options_.size_limit / 16;
    const bool over = measured_ && *measured_ <= options_.size_limit && *measured_ + added > options_.size_limit;
    if (measured_ && added < part && !over) return;
    const EvictionReport report = evict({options_.size_limit, 0});
    if (!report.ran) return;
    measured_ = report.left_bytes;
    added_ -= added;
}

EvictionReport Store::evict(const EvictionLimits& limits) {
    if (options_.read_only || !usable(false)) return {};
    const EvictionReport report = nq::evict(files_, version_root_, file_mode(), limits, seconds_now());
    add(counters_.evicted_entries, report.entries);
    add(counters_.evicted_bytes, report.bytes);
    if (report.entries != 0)
        log_.info(fmt::format("cache {}: {} entries of {} bytes, not used for longest, were evicted; {} of {} bytes left",
                              root_, report.entries, report.bytes, report.left_entries, report.left_bytes));
    return report;
}

EvictionReport Store::clear() {
    if (options_.read_only || !usable(false)) return {};
    return nq::clear(files_, version_root_, file_mode(), seconds_now());
}

CounterTotals Store::statistics() const { return read_statistics(files_, version_root_); }

void Store::add_statistics(const CounterTotals& totals) {
    if (options_.read_only || !usable(false)) return;
    if (!nq::add_statistics(files_, version_root_, file_mode(), totals))
        log_.debug(fmt::format("cache {}: statistics not updated", root_));
}

bool Store::reset_statistics() {
    if (options_.read_only || !usable(false)) return false;
    return nq::reset_statistics(files_, version_root_, file_mode());
}

void Store::warn_once(const std::string& text) {
    if (!warned_.exchange(true, std::memory_order_relaxed))
        log_.warn(text);
    else
        log_.info(text);
}

}  // namespace nq
