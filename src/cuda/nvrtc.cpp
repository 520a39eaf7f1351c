#include "cuda/nvrtc.h"

#include "cuda/library_file.h"

#include <dirent.h>
#include <dlfcn.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

namespace nq {
namespace {

std::string directory_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

std::string builtins_name(NvrtcVersion version) { return "libnvrtc-builtins.so." + text(version); }

// Where builtins may lie beside a library: package managers link both into one folder from two.
std::vector<std::string> folders_of(const NvrtcFile& file) {
    std::vector<std::string> folders{directory_of(file.path)};
    const std::string linked = directory_of(file.found_as);
    if (linked != folders[0]) folders.push_back(linked);
    return folders;
}

std::vector<std::string> builtins_in(const std::string& folder) {
    std::vector<std::string> names;
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(folder.c_str()), ::closedir);
    if (!directory) return names;
    while (const dirent* entry = ::readdir(directory.get())) {
        if (std::string_view(entry->d_name).starts_with("libnvrtc-builtins.so.")) names.emplace_back(entry->d_name);
    }
    std::ranges::sort(names);
    return names;
}

// libnvrtc opens its builtins by bare name and has no RUNPATH, so that a copy beside it is found only when it is in the
// process already. Where there is none the loader's path may still have it: the compile says so if not.
void preload_builtins(const Nvrtc& nvrtc) {
    for (const std::string& folder : folders_of(nvrtc)) {
        if (open_library(folder + "/" + builtins_name(nvrtc.version)).handle != nullptr) return;
    }
}

// nullptr: `why` says what is wrong with the library.
std::shared_ptr<const Nvrtc> bind(void* library, NvrtcFile file, std::string& why) {
    auto nvrtc = std::make_shared<Nvrtc>();
    static_cast<NvrtcFile&>(*nvrtc) = std::move(file);
    const std::string& path = nvrtc->path;

    // The version first: a library that is too old may lack the rest.
    nvrtc->nvrtcVersion = reinterpret_cast<decltype(nvrtc->nvrtcVersion)>(::dlsym(library, "nvrtcVersion"));
    if (nvrtc->nvrtcVersion == nullptr ||
        nvrtc->nvrtcVersion(&nvrtc->version.major, &nvrtc->version.minor) != NVRTC_SUCCESS) {
        why = fmt::format("{} is not NVRTC", path);
        return nullptr;
    }
    if (nvrtc->version < kOldestNvrtc) {
        why = fmt::format("{} is NVRTC {}, too old: {} or newer is needed", path, text(nvrtc->version),
                          text(kOldestNvrtc));
        return nullptr;
    }
#define NQ_BIND(function)                                                                       \
    nvrtc->function = reinterpret_cast<decltype(nvrtc->function)>(::dlsym(library, #function)); \
    if (nvrtc->function == nullptr) {                                                           \
        why = fmt::format("{} (NVRTC {}) lacks {}", path, text(nvrtc->version), #function);     \
        return nullptr;                                                                         \
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
        why = fmt::format("{} does not list its architectures: {}", path, nvrtc->nvrtcGetErrorString(result));
        return nullptr;
    }
    preload_builtins(*nvrtc);
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

std::string Nvrtc::explain_builtins() const {
    const std::string name = builtins_name(version);
    const std::vector<std::string> folders = folders_of(*this);
    std::vector<std::string> found;
    for (const std::string& folder : folders) {
        for (const std::string& builtins : builtins_in(folder)) {
            std::string file = folder + "/" + builtins;
            if (builtins == name) {
                const OpenedLibrary library = open_library(file);
                file += library.handle == nullptr ? fmt::format(" (cannot be loaded: {})", library.error)
                                                  : " (not the one that belongs to this libnvrtc)";
            }
            found.push_back(std::move(file));
        }
    }
    return fmt::format(
        "NVRTC {} needs its {}: looked for in {} and on the loader's path; there {}. Put {} of the same package into "
        "{}, "
        "or name another NVRTC in NORMQUANT_NVRTC",
        text(version), name, fmt::join(folders, ", "),
        found.empty() ? "are no builtins beside libnvrtc" : fmt::format("is {}", fmt::join(found, ", ")), name,
        folders[0]);
}

Result<std::shared_ptr<const Nvrtc>> load_nvrtc(const NvrtcSearch& search) {
    std::shared_ptr<const Nvrtc> nvrtc;
    std::vector<std::string> faults;
    const auto take = [&](NvrtcFile file) {
        const OpenedLibrary library = open_library(file.path);
        std::string why = library.error;
        if (library.handle != nullptr) nvrtc = bind(library.handle, std::move(file), why);
        if (!nvrtc) faults.push_back(std::move(why));
        return nvrtc != nullptr;
    };
    each_nvrtc(search, take, faults);
    if (nvrtc) return nvrtc;
    if (faults.empty() && search.path.empty() && search.ask_loader) {
        for (const char* soname : kNvrtcSonames) {
            const OpenedLibrary library = open_library(soname);
            if (library.handle == nullptr) continue;
            Result<NvrtcFile> file = nvrtc_file(library.path, "loader");
            std::string why;
            if (file) nvrtc = bind(library.handle, std::move(*file), why);
            if (nvrtc) return nvrtc;
            faults.push_back(file ? why : file.error().message);
        }
    }
    return nvrtc_missing(search, faults);
}

}  // namespace nq
