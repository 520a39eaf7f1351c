// dlopen and what a library file says about itself.
#pragma once

#include <string>

namespace nq {

struct OpenedLibrary {
    void* handle = nullptr;  // nullptr: `error` says why
    std::string path;        // of the file, symlinks resolved
    std::string error;
};

// RTLD_LOCAL always: another libnvrtc or libcuda in the process keeps its own symbols. Never closed: NVRTC and the
// driver have threads and exit handlers of their own, and unloading them under these crashes.
OpenedLibrary open_library(const std::string& name);

// The file of a library that the process has loaded already, by its soname; "" if there is none. Loads nothing.
std::string loaded_as(const std::string& soname);

}  // namespace nq
