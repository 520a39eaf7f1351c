// normquant doctor: the cache directory and the layers.
#include "cache/layout.h"
#include "cache/lock.h"
#include "cache_view.h"
#include "doctor_checks.h"
#include "inventory.h"
#include "runtime/cubin.h"
#include "units.h"

#include <fmt/core.h>

#include <linux/magic.h>
#include <pwd.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

namespace nq::cli {
namespace {

constexpr std::uint64_t kLittleSpace = 64u << 20;
constexpr std::uint64_t kFewInodes = 1000;

struct FileSystem {
    long magic;
    const char* name;
    const char* trait;  // "" for an ordinary one
};

constexpr const char* kNetwork = "a network file system: each hit is a round trip, and locks may not work everywhere";
constexpr const char* kVolatile = "gone with the next boot";
constexpr const char* kOverlay = "the layer of a container: gone with it, unless it is part of the image";

// Numbers that linux/magic.h does not have are from statfs(2).
constexpr FileSystem kFileSystems[] = {
    {EXT4_SUPER_MAGIC, "ext2/3/4", ""}, {0x58465342, "xfs", ""},
    {BTRFS_SUPER_MAGIC, "btrfs", ""},   {0x2fc12fc1, "zfs", ""},
    {F2FS_SUPER_MAGIC, "f2fs", ""},     {SQUASHFS_MAGIC, "squashfs", ""},
    {0x65735546, "fuse", ""},           {TMPFS_MAGIC, "tmpfs", kVolatile},
    {RAMFS_MAGIC, "ramfs", kVolatile},  {OVERLAYFS_SUPER_MAGIC, "overlay", kOverlay},
    {NFS_SUPER_MAGIC, "nfs", kNetwork}, {0x517b, "smb", kNetwork},
    {0xff534d42, "cifs", kNetwork},     {0xfe534d42, "smb2", kNetwork},
    {0x01021997, "9p", kNetwork},       {0x00c36400, "ceph", kNetwork},
    {0x0bd00bd0, "lustre", kNetwork},   {0x47504653, "gpfs", kNetwork},
    {AFS_SUPER_MAGIC, "afs", kNetwork},
};

bool exists(const std::string& path) {
    struct stat info {};
    return system_files().lstat(path.c_str(), &info) == 0;
}

std::string nearest_existing(std::string path) {
    while (path.size() > 1 && !exists(path)) path = std::filesystem::path(path).parent_path().string();
    return path;
}

void check_file_system(const std::string& path, Findings& findings) {
    struct statfs info {};
    if (statfs(path.c_str(), &info) != 0) {
        findings.warning("file system", io_error("statfs", path, errno).message, "look at the mount of this path");
        return;
    }
    const auto magic = static_cast<unsigned long>(info.f_type) & 0xffffffff;
    for (const FileSystem& known : kFileSystems) {
        if (static_cast<unsigned long>(known.magic) != magic) continue;
        if (*known.trait == '\0') {
            findings.ok("file system", known.name);
        } else if (known.trait == kNetwork) {
            findings.warning("file system", fmt::format("{}, {}", known.name, known.trait),
                             "set NORMQUANT_CACHE_DIR to a local directory, and share kernels as a bundle in "
                             "NORMQUANT_BUNDLES (normquant cache export)");
        } else {
            findings.note("file system", fmt::format("{}, {}", known.name, known.trait),
                          "to keep kernels, set NORMQUANT_CACHE_DIR to a lasting directory");
        }
        return;
    }
    findings.note("file system", fmt::format("of a type that is not known, {:#x}", magic));
}

void check_space(const std::string& path, std::uint64_t limit, Findings& findings) {
    struct statvfs info {};
    if (statvfs(path.c_str(), &info) != 0) {
        findings.warning("free space", io_error("statvfs", path, errno).message, "look at the mount of this path");
        return;
    }
    const std::uint64_t bytes = static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
    // Some file systems have no fixed number of inodes, and say 0.
    const bool few_inodes = info.f_files != 0 && info.f_favail < kFewInodes;
    const std::string text = fmt::format("{} and {} inodes", size_text(bytes),
                                         info.f_files == 0 ? "any number of" : std::to_string(info.f_favail));
    if (bytes < kLittleSpace || few_inodes) {
        findings.warning("free space", text + ": kernels may not be stored any more",
                         "free some, set NORMQUANT_CACHE_DIR to another place, or run normquant cache gc");
    } else if (limit != 0 && bytes < limit) {
        findings.note("free space", fmt::format("{}, less than the size limit of {}", text, size_text(limit)),
                      "set NORMQUANT_CACHE_SIZE to less");
    } else {
        findings.ok("free space", text);
    }
}

std::string user_name(uid_t uid) {
    char buffer[4096];
    passwd record;
    passwd* found = nullptr;
    if (getpwuid_r(uid, &record, buffer, sizeof buffer, &found) == 0 && found != nullptr) return found->pw_name;
    return fmt::format("uid {}", uid);
}

void describe_owner(const std::string& path, Findings& findings) {
    struct stat info {};
    if (system_files().lstat(path.c_str(), &info) == 0)
        findings.ok("permissions",
                    fmt::format("{}: owner {}, mode {:04o}", path, user_name(info.st_uid), info.st_mode & 07777));
}

// Files of its own in a directory that is there, removed again.
void check_writing(const std::string& directory, bool shared, Findings& findings) {
    const FileOps& files = system_files();
    const std::string first = directory + "/" + unique_name(), second = directory + "/" + unique_name();
    if (const Outcome written = write_new_file(files, first, "normquant doctor\n", 0600, Durability::durable);
        !written) {
        findings.warning(
            "writing", fmt::format("new kernels cannot be stored: {}", written.error().message),
            "make it writable for this user, set NORMQUANT_CACHE_DIR to another place, or, if this is meant "
            "to be so, set NORMQUANT_CACHE_READONLY=on");
        return;
    }
    if (files.rename(first.c_str(), second.c_str()) != 0) {
        findings.problem("writing",
                         fmt::format("kernels cannot be put in place: {}", io_error("rename", first, errno).message),
                         "set NORMQUANT_CACHE_DIR to a directory of another file system");
        files.unlink(first.c_str());
        return;
    }
    files.unlink(second.c_str());
    findings.ok("writing", "files are written, renamed and removed");

    const std::string path = directory + "/" + unique_name();
    const FileLock lock = FileLock::try_acquire(files, path, shared ? 0666 : 0600);
    if (lock.status() != FileLock::Status::held) {
        findings.warning("locks",
                         fmt::format("they do not work: {}; processes may compile a kernel more than once",
                                     lock.status() == FileLock::Status::busy ? "busy" : lock.fault()),
                         "set NORMQUANT_CACHE_DIR to a file system with fcntl locks");
        files.unlink(path.c_str());
        return;
    }
    if (FileLock::try_acquire(files, path, 0600).status() == FileLock::Status::busy) {
        findings.ok("locks", "a lock that is held keeps others out");
    } else {
        findings.warning("locks", "they exclude nobody; processes may compile a kernel more than once",
                         "set NORMQUANT_CACHE_DIR to a file system with fcntl locks");
    }
}

// A directory that is closed hides its kernels, or makes every store in it fail, however well the others are.
bool check_directories(const std::string& root, bool written, Findings& findings) {
    constexpr std::size_t kNamed = 3;
    const std::vector<DirectoryFault> faults = directory_faults(root, written);
    if (faults.empty()) return true;
    std::string text;
    for (std::size_t i = 0; i < faults.size() && i < kNamed; ++i)
        text += fmt::format("{}{}: {}", i == 0 ? "" : "; ", faults[i].path, faults[i].error);
    if (faults.size() > kNamed) text += fmt::format("; and {} more", faults.size() - kNamed);
    findings.problem("permissions", fmt::format("kernels cannot be {}: {}", written ? "read, or stored" : "read", text),
                     written ? "make them directories that this user can read and write (chmod -R u+rwX), set "
                               "NORMQUANT_CACHE_DIR to another place, or, if this is meant to be so, set "
                               "NORMQUANT_CACHE_READONLY=on"
                             : "make them directories that this user can read (chmod -R u+rX)");
    return false;
}

void check_contents(const std::string& root, std::uint64_t limit, Findings& findings) {
    const Inventory there = take_inventory(root);
    const std::string text = fmt::format("{} entries, {} of {}", there.entries, size_text(there.disk_bytes),
                                         limit == 0 ? "no limit" : size_text(limit));
    if (limit != 0 && there.disk_bytes > limit) {
        findings.warning("size", text, "run normquant cache gc, or set NORMQUANT_CACHE_SIZE to more");
    } else if (limit != 0 && there.disk_bytes > limit / 10 * 9) {
        findings.note("size", text + ": kernels may be evicted and compiled again",
                      "if all are needed, set NORMQUANT_CACHE_SIZE to more");
    } else {
        findings.ok("size", text);
    }
    if (there.bad_files != 0) {
        findings.note(
            "set aside",
            fmt::format("{} bad entries in {}/v1/bad; the disk, or a program, damaged them", there.bad_files, root),
            "look at them; they are removed after 7 days (normquant cache gc)");
    }
    if (there.temp_files != 0) {
        findings.note("leftovers", fmt::format("{} files of interrupted writes in {}/v1/tmp", there.temp_files, root),
                      "run normquant cache gc");
    }
}

// A directory that cannot be read: check_directories() says more.
bool is_closed(const Place& place) { return place.store != nullptr && place.fault->status == NQ_ERR_CACHE_IO; }

void check_root(const Place& root, const ContextConfig& config, Findings& findings) {
    const StoreOptions& options = config.cache.store;
    const std::string existing = nearest_existing(root.path);
    check_file_system(existing, findings);
    check_space(existing, options.size_limit, findings);
    if (struct stat info{}; system_files().lstat(root.path.c_str(), &info) != 0 && errno == EACCES) {
        findings.problem("permissions", fmt::format("{} cannot be looked at: {}", root.path, std::strerror(errno)),
                         "let this user pass through the directories above it (chmod a+x), or set NORMQUANT_CACHE_DIR "
                         "to another place");
        return;
    }
    if (existing != root.path) {
        if (options.read_only) {
            findings.problem("permissions", fmt::format("{} does not exist, and is read-only", root.path),
                             "fill it first (normquant warmup), or unset NORMQUANT_CACHE_READONLY");
        } else if (::access(existing.c_str(), W_OK | X_OK) != 0) {
            findings.problem("permissions",
                             fmt::format("{} does not exist, and cannot be created in {}: {}", root.path, existing,
                                         std::strerror(errno)),
                             "create it for this user, or set NORMQUANT_CACHE_DIR to another place");
        } else {
            findings.note("permissions",
                          fmt::format("{} does not exist yet; it is made when a kernel is stored", root.path));
        }
        return;
    }
    describe_owner(root.path, findings);
    if (exists(root.path + "/v1")) describe_owner(root.path + "/v1", findings);
    if (root.fault && !is_closed(root)) {
        findings.problem("permissions", fmt::format("not used: {}", root.fault->message),
                         "do what it says, or set NORMQUANT_CACHE_DIR to a directory of your own");
        return;
    }
    const bool open = check_directories(root.path, !options.read_only, findings);
    if (options.read_only) {
        findings.ok("writing", "not tried: NORMQUANT_CACHE_READONLY is on");
    } else if (open) {
        const std::string temp = layout::temp(root.path + "/v1");
        check_writing(exists(temp) ? temp : root.path, options.shared, findings);
    }
    check_contents(root.path, options.size_limit, findings);
}

struct Contents {
    std::size_t entries = 0;
    std::size_t foreign = 0;  // of other kernel sources: what an upgrade of the library leaves behind
    std::size_t bad = 0;
};

Contents contents_of(const Place& layer) {
    Contents found;
    const auto count = [&](const Result<Entry>& entry) {
        ++found.entries;
        if (!entry) {
            ++found.bad;
        } else if (!of_these_sources(*entry)) {
            ++found.foreign;
        }
    };
    if (layer.bundle) {
        for (const BundleItem& item : layer.bundle->items()) count(layer.bundle->read(item));
    } else {
        layer.store->visit([&](const StoredEntry& stored) { count(stored.entry); });
    }
    return found;
}

void check_layer(const Place& layer, Findings& findings) {
    if (layer.fault && !is_closed(layer)) {
        findings.problem("layer", fmt::format("not used: {}", layer.fault->message),
                         "do what it says, or take it out of NORMQUANT_BUNDLES");
        return;
    }
    if (!layer.bundle && !check_directories(layer.path, /*written=*/false, findings)) return;
    const Contents found = contents_of(layer);
    const std::string text = fmt::format("{} {}, {} entries", name(layer.kind), layer.path, found.entries);
    const std::string again = fmt::format("make it again: this version's normquant warmup, with what it was made from and {} {}",
                                          layer.bundle ? "--bundle" : "--cache-dir", layer.path);
    if (found.foreign != 0 && found.foreign + found.bad == found.entries) {
        findings.problem("layer", text + ", all of other kernel sources than this library has: never used", again);
    } else if (found.bad != 0) {
        findings.warning("layer", fmt::format("{}, {} of them bad", text, found.bad), "look with normquant cache verify, and make them again");
    } else if (found.foreign != 0 && layer.bundle) {
        findings.warning("layer", fmt::format("{}, {} of them of other kernel sources than this library has: never used", text, found.foreign),
                         again);
    } else {  // a directory keeps what several versions have made
        findings.ok("layer", text);
    }
}

}  // namespace

void check_cache(const ContextConfig& config, const Environment& environment, Findings& findings) {
    const auto view = CacheView::create(config, Access::look);
    for (const Place& place : view->places()) {
        if (place.kind != Place::Kind::root) check_layer(place, findings);
    }
    if (view->root_path().empty()) {
        const bool chosen = environment.cache_dir.has_value();
        if (config.jit) {
            findings.warning(
                "cache directory",
                chosen ? "none: NORMQUANT_CACHE_DIR is empty; every process compiles for itself"
                       : "none: no home directory is known; every process compiles for itself",
                chosen ? "unset NORMQUANT_CACHE_DIR, unless this is meant to be so" : "set NORMQUANT_CACHE_DIR or HOME");
        } else if (config.cache.layers.empty()) {
            findings.problem("cache directory", "none, NORMQUANT_BUNDLES names nothing, and NORMQUANT_JIT is off: no kernel can be had",
                             "set NORMQUANT_BUNDLES or NORMQUANT_CACHE_DIR");
        } else {
            findings.ok("cache directory", "none: kernels are those of NORMQUANT_BUNDLES alone, for NORMQUANT_JIT is off");
        }
        return;
    }
    findings.ok("cache directory", fmt::format("{}, chosen by {}", view->root_path(), environment.cache_dir_source));
    check_root(view->places().back(), config, findings);
}

}  // namespace nq::cli
