#include "cuda/nvrtc.h"

#include "cuda/library_file.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace nq {
namespace {

constexpr const char* kSonames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};

struct Candidate {
    std::string name;
    int flags = 0;
    const char* note = "";
};

std::string directory_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

bool is_directory(const std::string& path) {
    struct stat info = {};
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::vector<Candidate> candidates(const std::string& explicit_path, const std::vector<std::string>& cuda_homes) {
    std::vector<Candidate> list;
    if (!explicit_path.empty() && !is_directory(explicit_path)) return {{explicit_path}};
    if (!explicit_path.empty()) {
        for (const char* soname : kSonames) list.push_back({explicit_path + "/" + soname});
        return list;
    }
    for (const char* soname : kSonames) list.push_back({soname, RTLD_NOLOAD, " (already loaded)"});
    for (const char* soname : kSonames) list.push_back({soname});
    std::vector<std::string> homes = cuda_homes;
    homes.emplace_back("/usr/local/cuda");
    for (const std::string& home : homes) {
        for (const char* folder : {"lib64", "lib"}) {
            for (const char* soname : kSonames) list.push_back({fmt::format("{}/{}/{}", home, folder, soname)});
        }
    }
    return list;
}

// libnvrtc opens its builtins by bare name and has no RUNPATH, so that a copy beside it is found only when it is in the
// process already. Where there is none the loader's path may still have it: the compile says so if not.
void preload_builtins(const OpenedLibrary& library, NvrtcVersion version) {
    for (const std::string& beside : {library.path, library.found_as}) {
        const std::string name = fmt::format("{}/libnvrtc-builtins.so.{}", directory_of(beside), text(version));
        if (open_library(name).handle != nullptr) return;
    }
}

// NVRTC_APPEND_FLAGS is appended to every compile's options, NV_NVVM_VERSION selects a code generator.
std::string environment_of_nvrtc() {
    std::string found;
    for (const char* name : {"NVRTC_APPEND_FLAGS", "NV_NVVM_VERSION"}) {
        if (const char* value = ::getenv(name)) found += fmt::format("{}={};", name, value);
    }
    return found;
}

// nullptr: `why` says what is wrong with the library.
std::shared_ptr<const Nvrtc> bind(const OpenedLibrary& library, std::string& why) {
    auto nvrtc = std::make_shared<Nvrtc>();
    nvrtc->path = library.path;

    // The version first: a library that is too old may lack the rest.
    nvrtc->nvrtcVersion = reinterpret_cast<decltype(nvrtc->nvrtcVersion)>(::dlsym(library.handle, "nvrtcVersion"));
    if (nvrtc->nvrtcVersion == nullptr ||
        nvrtc->nvrtcVersion(&nvrtc->version.major, &nvrtc->version.minor) != NVRTC_SUCCESS) {
        why = fmt::format("{} is not NVRTC", library.path);
        return nullptr;
    }
    if (nvrtc->version < kOldestNvrtc) {
        why = fmt::format("{} is NVRTC {}, too old: {} or newer is needed", library.path, text(nvrtc->version),
                          text(kOldestNvrtc));
        return nullptr;
    }
#define NQ_BIND(function)                                                                              \
    nvrtc->function = reinterpret_cast<decltype(nvrtc->function)>(::dlsym(library.handle, #function)); \
    if (nvrtc->function == nullptr) {                                                                  \
        why = fmt::format("{} (NVRTC {}) lacks {}", library.path, text(nvrtc->version), #function);    \
        return nullptr;                                                                                \
    }
    NQ_NVRTC_FUNCTIONS(NQ_BIND)
#undef NQ_BIND

    int count = 0;
    nvrtcResult result = nvrtc->nvrtcGetNumSupportedArchs(&count);
    if (result == NVRTC_SUCCESS) {
        nvrtc->archs.resize(static_cast<std::size_t>(std::max(count, 0)));
        result = nvrtc->nvrtcGetSupportedArchs(nvrtc->archs.data());
    }
    if (result != NVRTC_SUCCESS) {
        why = fmt::format("{} does not list its architectures: {}", library.path, nvrtc->nvrtcGetErrorString(result));
        return nullptr;
    }
    Result<std::string> identity = library_identity(library.path);
    if (!identity) {
        why = identity.error().message;
        return nullptr;
    }
    nvrtc->identity = std::move(*identity);
    nvrtc->environment = environment_of_nvrtc();
    preload_builtins(library, nvrtc->version);
    return nvrtc;
}

}  // namespace

std::string text(NvrtcVersion version) { return fmt::format("{}.{}", version.major, version.minor); }

bool Nvrtc::lists(const Arch& arch) const {
    const auto oldest = oldest_nvrtc(arch);
    return oldest && version >= *oldest &&
           std::find(archs.begin(), archs.end(), arch.major * 10 + arch.minor) != archs.end();
}

Outcome Nvrtc::check(const Arch& arch) const {
    if (lists(arch)) return Unit{};
    const auto oldest = oldest_nvrtc(arch);
    if (oldest && version < *oldest) {
        return Error{
            NQ_ERR_UNSUPPORTED_DEVICE,
            fmt::format("{} needs NVRTC >= {}; loaded {} from {}", arch.name(), text(*oldest), text(version), path),
            {}};
    }
    return Error{NQ_ERR_UNSUPPORTED_DEVICE,
                 fmt::format("{} is not among the targets of NVRTC {} from {}: sm_{}", arch.name(), text(version), path,
                             fmt::join(archs, ", sm_")),
                 {}};
}

Result<std::shared_ptr<const Nvrtc>> load_nvrtc(const std::string& explicit_path,
                                                const std::vector<std::string>& cuda_homes) {
    std::vector<std::string> tried;
    std::string unusable;
    for (const Candidate& candidate : candidates(explicit_path, cuda_homes)) {
        const OpenedLibrary library = open_library(candidate.name, candidate.flags);
        if (library.handle == nullptr) {
            // The loader's reason matters where one file was asked for: it may exist and lack a dependency.
            tried.push_back(explicit_path.empty() ? candidate.name + candidate.note : library.error);
            continue;
        }
        std::string why;
        if (auto nvrtc = bind(library, why)) return nvrtc;
        // One that is already loaded is met again on the loader's path.
        if (std::find(tried.begin(), tried.end(), why) == tried.end()) tried.push_back(why);
        if (unusable.empty()) unusable = why;
    }
    std::string message = unusable.empty() ? "libnvrtc was not found" : "no usable libnvrtc: " + unusable;
    message += fmt::format("; tried: {}. Install CUDA's NVRTC {} or newer, or name the file in NORMQUANT_NVRTC",
                           fmt::join(tried, ", "), text(kOldestNvrtc));
    return Error{NQ_ERR_NVRTC_MISSING, std::move(message), {}};
}

}  // namespace nq
