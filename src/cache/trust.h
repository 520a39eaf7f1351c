// Whose files are believed. A kernel runs with the rights of the process: whoever can write an entry can run code as
// that process. So: the user's own files and root's, that nobody else can write, unless told that everybody with write
// access is trusted ("shared").
#pragma once

#include "support/result.h"

#include <sys/stat.h>

#include <optional>
#include <string>

namespace nq {

// CACHE_UNTRUSTED, or INVALID_ARGUMENT for something that is no directory.
Outcome trust_directory(const struct stat& info, const std::string& path, bool shared);
Outcome trust_bundle(const struct stat& info, const std::string& path, bool shared);
// Why an entry in a trusted directory is not to be used, if so.
std::optional<std::string> distrust_of_entry(const struct stat& info, bool shared);

}  // namespace nq
