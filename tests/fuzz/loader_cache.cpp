// The dynamic loader's cache file, which tells where a libnvrtc is.
#include "cuda/loader_path.h"

#include "fuzz/fuzz.h"

#include <cstring>

namespace nq::fuzz {
namespace {

constexpr std::string_view kSoname = "libnvrtc.so.13";
#if defined(__aarch64__)
constexpr std::int32_t kThisMachine = 0xa03;
#else
constexpr std::int32_t kThisMachine = 0x303;
#endif

template <class T>
void append(std::string& file, T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    file.append(bytes, sizeof value);
}

// glibc's dl-cache.h, "new" format: header of 48 bytes, entries of 24, strings.
std::string loader_cache(const std::vector<std::pair<std::string, std::string>>& libraries) {
    std::string strings, entries;
    const std::uint32_t first = 48 + 24 * static_cast<std::uint32_t>(libraries.size());
    for (const auto& [name, path] : libraries) {
        append(entries, kThisMachine);
        append(entries, first + static_cast<std::uint32_t>(strings.size()));
        strings += name + '\0';
        append(entries, first + static_cast<std::uint32_t>(strings.size()));
        strings += path + '\0';
        append(entries, std::uint32_t{0});
        append(entries, std::uint64_t{0});
    }
    std::string file = "glibc-ld.so.cache1.1";
    append(file, static_cast<std::uint32_t>(libraries.size()));
    append(file, static_cast<std::uint32_t>(strings.size()));
    file.append(48 - file.size(), '\0');
    return file + entries + strings;
}

}  // namespace

bool accepts(Bytes input) {
    const std::vector<std::string> files = files_in_loader_cache(input, kSoname);
    for (const std::string& file : files) must(text_of(input).find(file) != std::string_view::npos, "paths are the file's own");
    return !files.empty();
}

std::vector<std::string> seeds() {
    return {loader_cache({{"libnvrtc.so.13", "/usr/local/cuda/lib64/libnvrtc.so.13"}}),
            loader_cache({{"libz.so.1", "/lib/libz.so.1"},
                          {"libnvrtc.so.13", "/a/libnvrtc.so.13"},
                          {"libnvrtc.so.13", "/b/libnvrtc.so.13"},
                          {"libnvrtc.so.12", "/c/libnvrtc.so.12"}})};
}

}  // namespace nq::fuzz
