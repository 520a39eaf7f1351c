// libnvrtc, loaded at run time and never unloaded. One X-macro list names every function used.
#pragma once

#include "problem/arch.h"
#include "support/result.h"

#include <memory>
#include <string>
#include <vector>

#include <nvrtc.h>

// X(name): every function must be present.
#define NQ_NVRTC_FUNCTIONS(X) \
    X(nvrtcVersion)           \
    X(nvrtcGetNumSupportedArchs) \
    X(nvrtcGetSupportedArchs) \
    X(nvrtcCreateProgram)     \
    X(nvrtcDestroyProgram)    \
    X(nvrtcCompileProgram)    \
    X(nvrtcGetCUBINSize)      \
    X(nvrtcGetCUBIN)          \
    X(nvrtcGetPTXSize)        \
    X(nvrtcGetPTX)            \
    X(nvrtcGetProgramLogSize) \
    X(nvrtcGetProgramLog)     \
    X(nvrtcGetErrorString)

namespace nq {

struct Nvrtc {
#define NQ_DECLARE(name) decltype(&::name) name = nullptr;
    NQ_NVRTC_FUNCTIONS(NQ_DECLARE)
#undef NQ_DECLARE

    std::string path;             // resolved path of the library file
    NvrtcVersion version;
    std::vector<int> archs;       // base numbers it supports: 80, 90, 100, ...
    std::string identity;         // build id of the library file (or a digest of it): part of the compiler id

    bool lists(const Arch& arch) const;
};

// Where a libnvrtc was looked for, in order: an explicit path; else one that is already loaded in the process; the loader's
// path (libnvrtc.so.13, .so.12); CUDA_HOME and CUDA_PATH (lib64, lib); /usr/local/cuda. An explicit path is the only place tried.
// Preloads libnvrtc-builtins from beside the library when it is there.
Result<std::shared_ptr<const Nvrtc>> load_nvrtc(const std::string& explicit_path, const std::vector<std::string>& cuda_homes);

// The identity of a library file without loading it: its build-id note, else XXH3-128 of its bytes.
Result<std::string> library_identity(const std::string& path);

}  // namespace nq
