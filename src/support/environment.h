// The environment, read once when a context is created. A value that cannot be parsed is reported by name.
#pragma once

#include "support/result.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace nq {

struct Environment {
    std::optional<std::string> cache_dir;   // NORMQUANT_CACHE_DIR; "" means no disk cache
    std::optional<bool> jit;                // NORMQUANT_JIT=on|off
    std::optional<std::string> nvrtc;       // NORMQUANT_NVRTC
    std::optional<std::string> libcuda;     // NORMQUANT_LIBCUDA
    std::optional<nq_log_level> log_level;  // NORMQUANT_LOG=debug|info|warn|error|off
    bool cache_shared = false;              // NORMQUANT_CACHE_SHARED=on|off: the directory may be writable by others
    std::string default_cache_dir;          // $XDG_CACHE_HOME/normquant, else $HOME/.cache/normquant, else passwd home
    std::string cache_dir_source;           // which of these chose it, for people; "" if none did
    std::vector<std::string> cuda_homes;    // CUDA_HOME, CUDA_PATH, where set
};

// getter: as secure_getenv; nullptr for an unset variable.
Result<Environment> read_environment(const std::function<const char*(const char*)>& getter);
Result<Environment> read_environment();

}  // namespace nq
