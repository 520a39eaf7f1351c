// libnvrtc, loaded at run time and never unloaded. One X-macro list names every function used.
#pragma once

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

struct Nvrtc {
#define NQ_DECLARE(name) decltype(&::name) name = nullptr;
    NQ_NVRTC_FUNCTIONS(NQ_DECLARE)
#undef NQ_DECLARE

    std::string path;  // resolved path of the library file
    NvrtcVersion version;
    std::vector<int> archs;   // base numbers it supports: 80, 90, 100, ...
    std::string identity;     // build id of the library file (or a digest of it): part of the compiler id
    std::string environment;  // variables that libnvrtc reads by itself and that may change code: likewise

    // Can it compile for this target? The list has base numbers only; `a` and `f` follow from the version.
    bool lists(const Arch& arch) const;
    // UNSUPPORTED_DEVICE naming the NVRTC that is needed and the one loaded.
    Outcome check(const Arch& arch) const;
};

std::string text(NvrtcVersion version);  // "12.8"

// Where a libnvrtc is looked for, in order: one that is already loaded in the process; the loader's path
// (libnvrtc.so.13, .so.12); CUDA_HOME and CUDA_PATH (lib64, lib); /usr/local/cuda. An explicit path (a library, or the
// folder that holds one, such as nvidia/cu13/lib of the PyPI wheel) is the only place tried.
// Preloads libnvrtc-builtins from beside the library when it is there.
Result<std::shared_ptr<const Nvrtc>> load_nvrtc(const std::string& explicit_path,
                                                const std::vector<std::string>& cuda_homes);

// The identity of a library file without loading it: its build-id note, else XXH3-128 of its bytes. Reads the whole
// file in the second case; a caller that asks often keeps the answer.
Result<std::string> library_identity(const std::string& path);

}  // namespace nq
