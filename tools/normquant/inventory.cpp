#include "inventory.h"

#include "cache/layout.h"
#include "units.h"

namespace nq::cli {

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

}  // namespace nq::cli
