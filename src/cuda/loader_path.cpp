#include "cuda/loader_path.h"

#include "cuda/input_file.h"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <utility>

namespace nq {
namespace {

// glibc's format, native endian: this header, entries, strings. Offsets of strings count from the header.
struct CacheHeader {
    char magic[20];  // "glibc-ld.so.cache1.1", no NUL
    std::uint32_t entries;
    std::uint32_t string_bytes;
    std::uint8_t flags;
    std::uint8_t padding[3];
    std::uint32_t extensions;
    std::uint32_t unused[3];
};
struct CacheEntry {
    std::uint32_t flags;
    std::uint32_t name;
    std::uint32_t path;
    std::uint32_t os_version;
    std::uint64_t hwcap;
};
static_assert(sizeof(CacheHeader) == 48 && sizeof(CacheEntry) == 24);

constexpr std::string_view kMagic = "glibc-ld.so.cache1.1";

// An older cache in front, for an older loader.
struct OldHeader {
    char magic[12];  // "ld.so-1.7.0"
    std::uint32_t entries;
};
constexpr std::string_view kOldMagic{"ld.so-1.7.0\0", 12};
constexpr std::uint64_t kOldEntryBytes = 12;

// FLAG_ELF_LIBC6 and the class of the machine.
#if defined(__x86_64__)
constexpr std::uint32_t kFlags = 0x0303;
#elif defined(__aarch64__)
constexpr std::uint32_t kFlags = 0x0a03;
#else
#error "which libraries of the loader's cache are this machine's?"
#endif

constexpr std::uint64_t kMaxCacheBytes = 64 << 20;

}  // namespace

std::vector<std::string> files_in_loader_cache(ByteSpan cache, std::string_view soname) {
    if (as_text(cache).starts_with(kOldMagic)) {
        const auto old = read_at<OldHeader>(cache, 0);
        if (!old) return {};
        const std::uint64_t end = sizeof(OldHeader) + old->entries * kOldEntryBytes;
        const std::uint64_t aligned = (end + alignof(CacheEntry) - 1) / alignof(CacheEntry) * alignof(CacheEntry);
        if (aligned > cache.size()) return {};
        cache = cache.subspan(aligned);
    }
    const auto header = read_at<CacheHeader>(cache, 0);
    if (!header || std::string_view(header->magic, sizeof header->magic) != kMagic) return {};

    std::vector<std::string> files;
    for (std::uint64_t i = 0; i < header->entries; ++i) {
        const auto entry = read_at<CacheEntry>(cache, sizeof(CacheHeader) + i * sizeof(CacheEntry));
        if (!entry) break;
        // Those with hwcap are for particular CPUs.
        if (entry->flags != kFlags || entry->hwcap != 0 || text_at(cache, entry->name) != soname) continue;
        if (const auto path = text_at(cache, entry->path)) files.emplace_back(*path);
    }
    return files;
}

LoaderPath loader_path() {
    LoaderPath path;
    path.cache = "/etc/ld.so.cache";
    Dl_info info = {};
    struct link_map* self = nullptr;
    if (::dladdr1(reinterpret_cast<void*>(&loader_path), &info, reinterpret_cast<void**>(&self), RTLD_DL_LINKMAP) ==
            0 ||
        self == nullptr) {
        return path;
    }
    // The program's own name is empty.
    void* handle = ::dlopen(*self->l_name != '\0' ? self->l_name : nullptr, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) return path;
    Dl_serinfo sizes = {};
    if (::dlinfo(handle, RTLD_DI_SERINFOSIZE, &sizes) == 0) {
        std::vector<std::max_align_t> room(sizes.dls_size / sizeof(std::max_align_t) + 1);
        auto* list = reinterpret_cast<Dl_serinfo*>(room.data());
        list->dls_size = sizes.dls_size;
        list->dls_cnt = sizes.dls_cnt;
        if (::dlinfo(handle, RTLD_DI_SERINFO, list) == 0) {
            const Dl_serpath* entries = list->dls_serpath;
            for (unsigned i = 0; i < list->dls_cnt; ++i) path.directories.emplace_back(entries[i].dls_name);
        }
    }
    ::dlclose(handle);
    return path;
}

std::vector<std::string> files_on(const LoaderPath& path, std::string_view soname) {
    std::vector<std::string> files;
    for (const std::string& directory : path.directories) {
        files.push_back((directory.empty() ? "." : directory) + "/" + std::string(soname));
    }
    if (path.cache.empty()) return files;
    const InputFile file(path.cache);
    if (const auto bytes = file.read(0, file.size(), kMaxCacheBytes)) {
        for (std::string& found : files_in_loader_cache(*bytes, soname)) files.push_back(std::move(found));
    }
    return files;
}

}  // namespace nq
