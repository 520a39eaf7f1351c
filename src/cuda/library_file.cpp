#include "cuda/library_file.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>

#include <memory>

namespace nq {

namespace {

const char* name_of(void* handle) {
    struct link_map* map = nullptr;
    return ::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr ? map->l_name : nullptr;
}

}  // namespace

OpenedLibrary open_library(const std::string& name) {
    OpenedLibrary library;
    library.handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle == nullptr) {
        const char* error = ::dlerror();
        library.error = error != nullptr ? error : name + ": not loaded";
        return library;
    }
    const char* found = name_of(library.handle);
    const std::unique_ptr<char, void (*)(void*)> resolved(found ? ::realpath(found, nullptr) : nullptr, ::free);
    library.path = resolved ? resolved.get() : found ? found : name;
    return library;
}

std::string loaded_as(const std::string& soname) {
    void* handle = ::dlopen(soname.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) return "";
    const char* found = name_of(handle);
    const std::string path = found ? found : "";
    ::dlclose(handle);
    return path;
}

}  // namespace nq
