// Which libnvrtc a process would use, found and identified by its file. Opening one costs milliseconds and tens of MB;
// a process that only hits the cache never does.
#pragma once

#include "cuda/loader_path.h"
#include "support/environment.h"
#include "support/result.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace nq {

struct NvrtcSearch {
    std::string path;                            // a library, or the folder of one: the only place tried. "" to search
    std::vector<NamedPath> cuda_homes;           // CUDA_HOME, CUDA_PATH
    std::vector<NamedPath> python_environments;  // VIRTUAL_ENV, CONDA_PREFIX

    // What belongs to the machine and the process. Tests have their own.
    bool ask_loader = true;            // for one that the process has loaded and, as the last resort, by bare name
    std::optional<LoaderPath> loader;  // nullopt: loader_path()
    std::string default_home = "/usr/local/cuda";
};

// Taken from the working directory once, so that a later chdir changes nothing. "" stays "".
std::string absolute_path(const std::string& path);

struct NvrtcFile {
    std::string path;         // symlinks resolved
    std::string found_as;     // the path under which it was found, symlinks and all
    std::string origin;       // the place that had it, for people: "CUDA_HOME"
    std::string identity;     // build id, or a digest of the file
};

// Variables that libnvrtc reads by itself at each compile, and that may change code: "NAME=value;" of those that are set.
std::string nvrtc_environment();

inline constexpr const char* kNvrtcSonames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};

// Hands over each that exists, in order, until `take` returns true: one that is already loaded in the process; the
// loader's path (libnvrtc.so.13, .so.12); CUDA_HOME and CUDA_PATH; the PyPI wheels and the packages of the active
// Python environment; /usr/local/cuda. faults: what is wrong with those that exist but cannot be read is added to it.
void each_nvrtc(const NvrtcSearch& search, const std::function<bool(NvrtcFile)>& take,
                std::vector<std::string>& faults);

// The first one that exists: what load_nvrtc loads, if it is usable. Loads nothing.
Result<NvrtcFile> locate_nvrtc(const NvrtcSearch& search);

// The file that is at `path`; NVRTC_MISSING with the reason if it cannot be read.
Result<NvrtcFile> nvrtc_file(const std::string& path, const std::string& origin);

// NVRTC_MISSING, saying what was wrong with those found, where it was looked for, and what to do.
Error nvrtc_missing(const NvrtcSearch& search, const std::vector<std::string>& faults);

// The identity of a library file without loading it: its build-id note, else XXH3-128 of its bytes.
Result<std::string> library_identity(const std::string& path);

}  // namespace nq
