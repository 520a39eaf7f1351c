// libnvrtc, loaded at run time and never unloaded. One X-macro list names every function used.
#pragma once

#include "cuda/nvrtc_file.h"
#include "problem/arch.h"
#include "support/result.h"

#include <memory>
#include <string>
#include <vector>

#include <nvrtc.h>

// X(name): every function must be present.
#define NQ_NVRTC_FUNCTIONS(X)    \
    X(nvrtcVersion)              \
    X(nvrtcGetNumSupportedArchs) \
    X(nvrtcGetSupportedArchs)    \
    X(nvrtcCreateProgram)        \
    X(nvrtcDestroyProgram)       \
    X(nvrtcCompileProgram)       \
    X(nvrtcGetCUBINSize)         \
    X(nvrtcGetCUBIN)             \
    X(nvrtcGetPTXSize)           \
    X(nvrtcGetPTX)               \
    X(nvrtcGetProgramLogSize)    \
    X(nvrtcGetProgramLog)        \
    X(nvrtcGetErrorString)

namespace nq {

inline constexpr NvrtcVersion kOldestNvrtc{12, 4};

struct Nvrtc : NvrtcFile {
#define NQ_DECLARE(name) decltype(&::name) name = nullptr;
    NQ_NVRTC_FUNCTIONS(NQ_DECLARE)
#undef NQ_DECLARE

    NvrtcVersion version;
    std::vector<int> archs;  // base numbers it supports: 80, 90, 100, ...

    // Can it compile for this target? The list has base numbers only; `a` and `f` follow from the version.
    bool lists(const Arch& arch) const;
    // UNSUPPORTED_DEVICE naming the NVRTC that is needed and the one loaded.
    Outcome check(const Arch& arch) const;
    // Loads of 32 bytes are of PTX 8.8. Of the targets that have them, sm_100, sm_120 and their `a` forms are older.
    bool loads_256() const { return version >= NvrtcVersion{12, 9}; }
    // For a compile that failed because NVRTC could not open its builtins: which file that is, where it was looked for,
    // what lies there instead, and what to do.
    std::string explain_builtins() const;
};

std::string text(NvrtcVersion version);  // "12.8"

// The first usable one of each_nvrtc's, by its full path; by bare name as the last resort. Preloads libnvrtc-builtins
// from beside the library when it is there. Two contexts may have two: by path, a second file is loaded beside the
// first whatever its soname is. But builtins are asked for by bare name, so that of two builds of one version the
// second uses the builtins of the first.
Result<std::shared_ptr<const Nvrtc>> load_nvrtc(const NvrtcSearch& search);

}  // namespace nq
