#include "cuda/library_file.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>

#include <memory>

namespace nq {

OpenedLibrary open_library(const std::string& name, int extra_flags) {
    OpenedLibrary library;
    library.handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | extra_flags);
    if (library.handle == nullptr) {
        const char* error = ::dlerror();
        library.error = error != nullptr ? error : name + ": not loaded";
        return library;
    }
    library.path = library.found_as = name;
    struct link_map* map = nullptr;
    if (::dlinfo(library.handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name != nullptr) {
        if (name.find('/') == std::string::npos) library.found_as = map->l_name;
        const std::unique_ptr<char, void (*)(void*)> resolved(::realpath(map->l_name, nullptr), ::free);
        library.path = resolved ? resolved.get() : map->l_name;
    }
    return library;
}

}  // namespace nq
