// The environment, read once when a context is created. A value that cannot be parsed is reported by name.
#pragma once

#include "support/result.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nq {

struct NamedPath {
    std::string variable;  // that named it
    std::string path;
    friend bool operator==(const NamedPath&, const NamedPath&) = default;
};

struct Environment {
    std::optional<std::string> cache_dir;   // NORMQUANT_CACHE_DIR; "" means no disk cache
    std::optional<std::uint64_t> cache_size;  // NORMQUANT_CACHE_SIZE in bytes; 0 means no limit
    bool cache_readonly = false;              // NORMQUANT_CACHE_READONLY=on|off
    std::vector<std::string> bundles;         // NORMQUANT_BUNDLES: bundles and directories, separated by colons
    std::optional<bool> jit;                // NORMQUANT_JIT=on|off
    std::optional<std::string> nvrtc;       // NORMQUANT_NVRTC
    std::optional<std::string> libcuda;     // NORMQUANT_LIBCUDA
    std::optional<nq_log_level> log_level;  // NORMQUANT_LOG=debug|info|warn|error|off
    std::string record;                     // NORMQUANT_RECORD: file to which prepared problems are added; "" for none
    std::string dump_dir;                   // NORMQUANT_DUMP_DIR: directory for what each compile reads and makes; "" for none
    bool cache_shared = false;              // NORMQUANT_CACHE_SHARED=on|off: the directory may be writable by others
    std::string default_cache_dir;          // $XDG_CACHE_HOME/normquant, else $HOME/.cache/normquant, else passwd home
    std::string cache_dir_source;           // which of these chose it, for people; "" if none did
    std::vector<NamedPath> cuda_homes;           // CUDA_HOME, CUDA_PATH, where set
    std::vector<NamedPath> python_environments;  // VIRTUAL_ENV, CONDA_PREFIX, where set
};

// "1073741824", "512M": bytes, or times 2^10 (K), 2^20 (M), 2^30 (G). Nothing for any other text.
std::optional<std::uint64_t> parse_size(std::string_view text);
// "a:b" -> a, b; empty parts are dropped.
std::vector<std::string> split_paths(std::string_view text);

// getter: as secure_getenv; nullptr for an unset variable.
Result<Environment> read_environment(const std::function<const char*(const char*)>& getter);
Result<Environment> read_environment();

}  // namespace nq
