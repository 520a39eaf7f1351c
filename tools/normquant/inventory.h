// What is in a root, by the directories alone: no entry is opened.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

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

struct DirectoryFault {
    std::string path;
    std::string error;
};

// The directories of a root that are there, and are none or do not let this process do what the cache does in them:
// list and read, and `written`, create and remove. What does not exist is no fault.
std::vector<DirectoryFault> directory_faults(const std::string& root, bool written);

}  // namespace nq::cli
