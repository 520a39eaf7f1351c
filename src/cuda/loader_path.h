// Where the dynamic loader would find a library, without loading it.
#pragma once

#include "support/bytes.h"

#include <string>
#include <string_view>
#include <vector>

namespace nq {

struct LoaderPath {
    std::vector<std::string> directories;  // LD_LIBRARY_PATH, RUNPATH of the module that this code is in, the defaults
    std::string cache;                     // the loader's cache file; "" for none
};

// Of this process.
LoaderPath loader_path();

// Files that may exist. The cache comes last, after the default directories: glibc does not tell which these are.
std::vector<std::string> files_on(const LoaderPath& path, std::string_view soname);

// What a cache (the contents of /etc/ld.so.cache) has for a library of this machine's class. None if it is of a format
// that is not known.
std::vector<std::string> files_in_loader_cache(ByteSpan cache, std::string_view soname);

}  // namespace nq
