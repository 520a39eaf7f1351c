// How much is in a root, by the directory entries alone: nothing is opened.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace nq::cli {

struct Inventory {
    std::uint64_t entries = 0;
    std::uint64_t bytes = 0;       // of the files
    std::uint64_t disk_bytes = 0;  // that they take on disk, as the size limit counts them
    std::map<std::string, std::uint64_t> by_arch;
    std::uint64_t temp_files = 0;  // that no process is writing any more
    std::uint64_t bad_files = 0;   // set aside
};

Inventory take_inventory(const std::string& root);

}  // namespace nq::cli
