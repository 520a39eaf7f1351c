#include "inventory.h"

#include "cache/layout.h"
#include "units.h"

#include <unistd.h>

#include <cstring>

namespace nq::cli {
namespace {

class DirectoryCheck {
public:
    // Can its contents be seen?
    bool look(const std::string& path, int wanted) {
        struct stat info {};
        if (system_files().lstat(path.c_str(), &info) != 0) {
            if (errno != ENOENT) add(path, std::strerror(errno));
            return false;
        }
        if (!S_ISDIR(info.st_mode)) {
            add(path, S_ISLNK(info.st_mode) ? "a symbolic link, where a directory is expected" : "not a directory");
            return false;
        }
        if (::access(path.c_str(), wanted) == 0) return true;
        add(path, std::strerror(errno));
        return ::access(path.c_str(), R_OK | X_OK) == 0;
    }

    std::vector<DirectoryFault> take() { return std::move(faults_); }

private:
    void add(const std::string& path, std::string error) { faults_.push_back({path, std::move(error)}); }

    std::vector<DirectoryFault> faults_;
};

}  // namespace

Inventory take_inventory(const std::string& root) {
    Inventory inventory;
    if (root.empty()) return inventory;
    const FileOps& files = system_files();
    const std::string version_root = root + "/v1";
    layout::for_each_entry(files, version_root, [&](const std::string& arch, const std::string& path) {
        struct stat info {};
        if (files.lstat(path.c_str(), &info) != 0) return;
        ++inventory.entries;
        ++inventory.by_arch[arch];
        inventory.bytes += static_cast<std::uint64_t>(info.st_size);
        inventory.disk_bytes += static_cast<std::uint64_t>(info.st_blocks) * 512;
    });
    constexpr std::int64_t kAbandonedSeconds = 3600;  // as eviction has it
    for (const std::string& name : names_in(files, layout::temp(version_root))) {
        struct stat info {};
        const std::string path = layout::temp(version_root) + "/" + name;
        if (files.lstat(path.c_str(), &info) == 0 && info.st_mtime < seconds_now() - kAbandonedSeconds)
            ++inventory.temp_files;
    }
    inventory.bad_files = names_in(files, layout::bad(version_root)).size();
    return inventory;
}

std::vector<DirectoryFault> directory_faults(const std::string& root, bool written) {
    const std::string version_root = root + "/v1";
    DirectoryCheck check;
    const int wanted = R_OK | X_OK | (written ? W_OK : 0);
    struct stat info {};
    const bool fresh = system_files().lstat(version_root.c_str(), &info) != 0 && errno == ENOENT;
    // The root itself is only passed through, once it has its one directory.
    check.look(root, X_OK | (written && fresh ? W_OK : 0));
    if (!check.look(version_root, wanted)) return check.take();
    if (written) {
        for (const std::string& path : {layout::temp(version_root), layout::locks(version_root)})
            check.look(path, wanted);
    }
    for (const std::string& arch : names_in(system_files(), version_root)) {
        if (!arch.starts_with(layout::kArchPrefix)) continue;
        const std::string arch_root = version_root + "/" + arch;
        if (!check.look(arch_root, wanted)) continue;
        for (const std::string& shard : names_in(system_files(), arch_root)) {
            // Other files are none of the cache's.
            if (shard.size() == 2) check.look(arch_root + "/" + shard, wanted);
        }
    }
    return check.take();
}

}  // namespace nq::cli
