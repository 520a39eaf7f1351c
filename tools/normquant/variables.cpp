#include "variables.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

namespace nq::cli {
namespace {

constexpr Variable kVariables[] = {
    {"NORMQUANT_CACHE_DIR",
     "root of the disk cache; empty: no disk cache",
     "$XDG_CACHE_HOME/normquant, else $HOME/.cache/normquant, else the same in the passwd home"},
    {"NORMQUANT_CACHE_SIZE",
     "limit of the root in bytes, or with K, M, G; 0: no limit. Over it the least recently used kernels go, down to 90 %",
     "1G"},
    {"NORMQUANT_CACHE_READONLY",
     "on, off: the root is read and never written",
     "off"},
    {"NORMQUANT_CACHE_SHARED",
     "on, off: directories and bundles may be writable by others, on purpose",
     "off: they are refused"},
    {"NORMQUANT_BUNDLES",
     "bundles and read-only cache directories, separated by colons, searched before the root",
     "none"},
    {"NORMQUANT_JIT",
     "on, off: off uses cached kernels only, and a miss is an error",
     "on"},
    {"NORMQUANT_NVRTC",
     "libnvrtc, or the folder that holds it: the only place tried",
     "the first of: one that the process has loaded, the loader's path, CUDA_HOME, CUDA_PATH, the wheels "
     "(nvidia-cuda-nvrtc) and packages of VIRTUAL_ENV and CONDA_PREFIX, /usr/local/cuda. A cache hit never opens it"},
    {"NORMQUANT_LIBCUDA",
     "path of libcuda",
     "the loader's libcuda.so.1"},
    {"NORMQUANT_LOG",
     "debug, info, warn, error, off: least severity that is logged",
     "warn"},
    {"NORMQUANT_RECORD",
     "file to which each problem that is prepared is added, for normquant warmup --manifest",
     "none"},
    {"NORMQUANT_DUMP_DIR",
     "directory for source, PTX, cubin, log and plan of each compile, and the headers",
     "none"},
    {"NORMQUANT_LIBRARY",
     "libnormquant.so, for normquant.py alone",
     "the one beside normquant.py, else the loader's"},
};

constexpr std::size_t kIndent = 28, kColumns = 128;

}  // namespace

std::span<const Variable> variables() { return kVariables; }

std::string variables_text() {
    std::string text;
    for (const Variable& variable : variables()) {
        std::string line = fmt::format("  {:<{}}", variable.name, kIndent - 3);
        const std::string words = fmt::format("{} [{}]", variable.meaning, variable.otherwise);
        for (std::string_view left = words; !left.empty();) {
            const std::string_view word = left.substr(0, left.find(' '));
            left.remove_prefix(std::min(left.size(), word.size() + 1));
            if (line.size() + 1 + word.size() > kColumns) {
                text += line + "\n";
                line.assign(kIndent - 1, ' ');
            }
            line += fmt::format(" {}", word);
        }
        text += line + "\n";
    }
    text.pop_back();
    return text;
}

}  // namespace nq::cli
