#include "cuda/nvrtc_file.h"

#include "cuda/library_file.h"
#include "cuda/nvrtc.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

namespace nq {
namespace {

// One place of the search.
struct Place {
    std::string origin;
    std::string description;                          // the origin, and where that is
    std::function<std::vector<std::string>()> files;  // that may be there; asked for when the search comes this far
};

constexpr const char* kExplicit = "NORMQUANT_NVRTC or nq_context_options.nvrtc";

bool is_directory(const std::string& path) {
    struct stat info = {};
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// A file that is there but out of reach is not missing.
bool is_missing(const std::string& path) {
    struct stat info = {};
    return ::stat(path.c_str(), &info) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

std::vector<std::string> files_in(const std::vector<std::string>& directories) {
    std::vector<std::string> files;
    for (const std::string& directory : directories) {
        for (const char* soname : kNvrtcSonames) files.push_back(directory + "/" + soname);
    }
    return files;
}

// lib/python3.X/site-packages, the newest Python first.
std::vector<std::string> site_packages(const std::string& prefix) {
    const std::string lib = prefix + "/lib";
    std::vector<std::string> found;
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(lib.c_str()), ::closedir);
    if (!directory) return found;
    while (const dirent* entry = ::readdir(directory.get())) {
        if (std::string_view(entry->d_name).starts_with("python3")) found.emplace_back(entry->d_name);
    }
    // By length first: 3.9 before 3.10.
    std::ranges::sort(found, std::greater(), [](const std::string& name) { return std::pair(name.size(), name); });
    for (std::string& name : found) name = lib + "/" + name + "/site-packages";
    return found;
}

// Of nvidia-cuda-nvrtc (13) and nvidia-cuda-nvrtc-cu12.
std::vector<std::string> wheel_directories(const std::string& prefix) {
    std::vector<std::string> directories;
    for (const std::string& packages : site_packages(prefix)) {
        for (const char* wheel : {"cu13", "cuda_nvrtc"}) {
            directories.push_back(fmt::format("{}/nvidia/{}/lib", packages, wheel));
        }
    }
    return directories;
}

std::vector<std::string> loaded_files() {
    std::vector<std::string> files;
    for (const char* soname : kNvrtcSonames) {
        if (std::string path = loaded_as(soname); !path.empty()) files.push_back(std::move(path));
    }
    return files;
}

std::vector<Place> places_of(const NvrtcSearch& search) {
    std::vector<Place> places;
    const auto add = [&](const std::string& origin, const std::string& where, auto files) {
        places.push_back({origin, where.empty() ? origin : fmt::format("{} ({})", origin, where), std::move(files)});
    };
    if (!search.path.empty()) {
        const std::vector<std::string> files =
            is_directory(search.path) ? files_in({search.path}) : std::vector{search.path};
        add(kExplicit, fmt::format("{}", fmt::join(files, ", ")), [files] { return files; });
        return places;
    }
    if (search.ask_loader) add("already loaded in the process", "", loaded_files);
    add("loader path", "", [loader = search.loader] {
        const LoaderPath path = loader ? *loader : loader_path();
        std::vector<std::string> files;
        for (const char* soname : kNvrtcSonames) {
            for (std::string& file : files_on(path, soname)) files.push_back(std::move(file));
        }
        return files;
    });
    const auto add_home = [&](const std::string& origin, const std::string& where, const std::string& home) {
        add(origin, where, [home] { return files_in({home + "/lib64", home + "/lib"}); });
    };
    for (const NamedPath& home : search.cuda_homes) add_home(home.variable, home.path, home.path);
    for (const NamedPath& prefix : search.python_environments) {
        add("wheel in " + prefix.variable, prefix.path,
            [path = prefix.path] { return files_in(wheel_directories(path)); });
        add(prefix.variable, prefix.path, [path = prefix.path] { return files_in({path + "/lib"}); });
    }
    add_home(search.default_home, "", search.default_home);
    return places;
}

}  // namespace

std::string absolute_path(const std::string& path) {
    std::error_code error;
    const std::filesystem::path absolute = std::filesystem::absolute(path, error);
    return path.empty() || error ? path : absolute.string();
}

Result<NvrtcFile> nvrtc_file(const std::string& path, const std::string& origin) {
    const std::unique_ptr<char, void (*)(void*)> resolved(::realpath(path.c_str(), nullptr), ::free);
    if (!resolved) {
        return Error{NQ_ERR_NVRTC_MISSING, fmt::format("cannot read {}: {}", path, std::strerror(errno)), {}};
    }
    Result<std::string> identity = library_identity(resolved.get());
    if (!identity) return std::move(identity).error();
    return NvrtcFile{resolved.get(), path, origin, std::move(*identity)};
}

void each_nvrtc(const NvrtcSearch& search, const std::function<bool(NvrtcFile)>& take,
                std::vector<std::string>& faults) {
    std::vector<std::string> seen;
    for (const Place& place : places_of(search)) {
        for (const std::string& path : place.files()) {
            if (is_missing(path)) continue;
            Result<NvrtcFile> file = nvrtc_file(path, place.origin);
            if (!file) {
                faults.push_back(std::move(file).error().message);
                continue;
            }
            // One that is already loaded, say, is met again on the loader's path.
            if (std::ranges::find(seen, file->path) != seen.end()) continue;
            seen.push_back(file->path);
            if (take(std::move(*file))) return;
        }
    }
}

std::string nvrtc_environment() {
    std::string found;
    // NVRTC_APPEND_FLAGS is appended to every compile's options, NV_NVVM_VERSION selects a code generator.
    for (const char* name : {"NVRTC_APPEND_FLAGS", "NV_NVVM_VERSION"}) {
        if (const char* value = ::getenv(name)) found += fmt::format("{}={};", name, value);
    }
    return found;
}

Result<NvrtcFile> locate_nvrtc(const NvrtcSearch& search) {
    std::optional<NvrtcFile> found;
    std::vector<std::string> faults;
    const auto take = [&](NvrtcFile file) {
        found = std::move(file);
        return true;
    };
    each_nvrtc(search, take, faults);
    if (!found) return nvrtc_missing(search, faults);
    return std::move(*found);
}

Error nvrtc_missing(const NvrtcSearch& search, const std::vector<std::string>& faults) {
    std::vector<std::string> tried;
    for (const Place& place : places_of(search)) tried.push_back(place.description);
    return Error{
        NQ_ERR_NVRTC_MISSING,
        fmt::format(
            "{}; tried: {}. {}",
            faults.empty() ? "libnvrtc was not found" : fmt::format("no usable libnvrtc: {}", fmt::join(faults, "; ")),
            fmt::join(tried, ", "),
            search.path.empty()
                ? fmt::format("Install CUDA's NVRTC {} or newer (the PyPI package nvidia-cuda-nvrtc will do), "
                              "or name the file in NORMQUANT_NVRTC",
                              text(kOldestNvrtc))
                : fmt::format("Name the file of an NVRTC {} or newer, or its folder, in NORMQUANT_NVRTC; unset, "
                              "it is searched for",
                              text(kOldestNvrtc))),
        {}};
}

}  // namespace nq
