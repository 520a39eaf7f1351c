// Finding libnvrtc by its file: the order of the places, what is passed by, what is said, and that loading agrees.
// Nothing here looks at what this machine has, other than its loader's cache.
#include "cuda/library_file.h"
#include "cuda/nvrtc.h"
#include "fake_nvrtc.h"
#include "jit/compile.h"
#include "jit/cubin_info.h"
#include "support/catch.h"
#include "support/temp_directory.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

using namespace nq;
using namespace nq::test;
namespace fs = std::filesystem;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string write_file(const std::string& path, const std::string& bytes) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return path;
}

ByteSpan bytes_of(const std::string& text) {
    return {reinterpret_cast<const unsigned char*>(text.data()), text.size()};
}

// A library of its own, whatever else is loaded: another file.
std::string put_nvrtc(const std::string& path) { return write_file(path, read_file(NORMQUANT_FAKE_NVRTC)); }

FakeNvrtc& state_of(const std::string& path) {
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    REQUIRE(handle != nullptr);
    return *reinterpret_cast<decltype(&nq_fake_nvrtc)>(::dlsym(handle, "nq_fake_nvrtc"))();
}

// A machine that has nothing but what lies in a directory.
NvrtcSearch machine(const TempDirectory& directory) {
    NvrtcSearch search;
    search.ask_loader = false;
    search.loader = LoaderPath{{directory / "ld_library_path", directory / "usr/lib"}, directory / "ld.so.cache"};
    search.cuda_homes = {{"CUDA_HOME", directory / "home"}, {"CUDA_PATH", directory / "path"}};
    search.python_environments = {{"VIRTUAL_ENV", directory / "venv"}, {"CONDA_PREFIX", directory / "conda"}};
    search.default_home = directory / "default";
    return search;
}

NvrtcSearch only(const std::string& path) {
    NvrtcSearch search;
    search.path = path;
    return search;
}

// A cache as ldconfig writes it.
struct CachedFile {
    std::string name, path;
    std::uint32_t flags;
    std::uint64_t hwcap = 0;
};
#if defined(__x86_64__)
constexpr std::uint32_t kThisMachine = 0x0303, kAnother = 0x0803;  // x32
#else
constexpr std::uint32_t kThisMachine = 0x0a03, kAnother = 0x0903;  // 32-bit Arm
#endif

template <class T>
void append(std::string& out, T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out.append(bytes, sizeof value);
}

std::string loader_cache(const std::vector<CachedFile>& files, bool behind_old = false) {
    std::string entries, strings;
    const std::uint32_t strings_at = static_cast<std::uint32_t>(48 + 24 * files.size());
    const auto add_string = [&](const std::string& text) {
        const auto at = static_cast<std::uint32_t>(strings_at + strings.size());
        strings += text + '\0';
        return at;
    };
    for (const CachedFile& file : files) {
        append(entries, file.flags);
        append(entries, add_string(file.name));
        append(entries, add_string(file.path));
        append(entries, std::uint32_t{0});
        append(entries, file.hwcap);
    }
    std::string cache = "glibc-ld.so.cache1.1";
    append(cache, static_cast<std::uint32_t>(files.size()));
    append(cache, static_cast<std::uint32_t>(strings.size()));
    cache.append(20, '\0');
    cache += entries + strings;
    if (!behind_old) return cache;
    std::string old("ld.so-1.7.0\0", 12);
    append(old, std::uint32_t{3});
    old.append(3 * 12, '\1');  // 52 bytes so far
    old.append(4, '\0');       // padding
    return old + cache;
}

}  // namespace

TEST_CASE("libnvrtc is searched for in one order, and loading it agrees") {
    TempDirectory directory;
    const NvrtcSearch search = machine(directory);
    struct Expected {
        const char* file;
        const char* origin;
    };
    const Expected order[] = {
        {"ld_library_path/libnvrtc.so.13", "loader path"},
        {"usr/lib/libnvrtc.so.13", "loader path"},
        {"cached/libnvrtc.so.13", "loader path"},
        {"ld_library_path/libnvrtc.so.12", "loader path"},
        {"home/lib64/libnvrtc.so.13", "CUDA_HOME"},
        {"home/lib64/libnvrtc.so.12", "CUDA_HOME"},
        {"home/lib/libnvrtc.so.13", "CUDA_HOME"},
        {"path/lib64/libnvrtc.so.12", "CUDA_PATH"},
        {"venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13", "wheel in VIRTUAL_ENV"},
        {"venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "wheel in VIRTUAL_ENV"},
        {"venv/lib/python3.9/site-packages/nvidia/cu13/lib/libnvrtc.so.13", "wheel in VIRTUAL_ENV"},
        {"venv/lib/libnvrtc.so.12", "VIRTUAL_ENV"},
        {"conda/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "wheel in CONDA_PREFIX"},
        {"conda/lib/libnvrtc.so.13", "CONDA_PREFIX"},
        {"default/lib64/libnvrtc.so.13", nullptr},
    };
    for (const Expected& expected : order) put_nvrtc(directory / expected.file);
    write_file(directory / "ld.so.cache",
               loader_cache({{"libnvrtc.so.13", directory / "cached/libnvrtc.so.13", kThisMachine}}));

    for (const Expected& expected : order) {
        INFO(expected.file);
        const auto located = locate_nvrtc(search);
        REQUIRE(located);
        CHECK(located->path == fs::canonical(directory / expected.file));
        CHECK(located->origin == (expected.origin ? expected.origin : directory / "default"));
        CHECK(located->identity == *library_identity(directory / expected.file));
        // Nothing was loaded on the way.
        CHECK(::dlopen(located->path.c_str(), RTLD_LAZY | RTLD_NOLOAD) == nullptr);
        const auto loaded = load_nvrtc(search);
        REQUIRE(loaded);
        CHECK((*loaded)->path == located->path);
        CHECK((*loaded)->origin == located->origin);
        CHECK((*loaded)->identity == located->identity);
        fs::remove(directory / expected.file);
    }
    for (const auto& error : {locate_nvrtc(search).error(), load_nvrtc(search).error()}) {
        CHECK(error.status == NQ_ERR_NVRTC_MISSING);
        CHECK(
            contains(error.message, "libnvrtc was not found; tried: loader path, CUDA_HOME (" + (directory / "home")));
        for (const char* place : {"path", "venv", "conda", "default"})
            CHECK(contains(error.message, directory / place));
        CHECK(contains(error.message, "NVRTC 12.4 or newer"));
        CHECK(contains(error.message, "NORMQUANT_NVRTC"));
    }
}

TEST_CASE("an explicit path is the only place") {
    TempDirectory directory;
    const NvrtcSearch elsewhere = machine(directory);
    put_nvrtc(directory / "home/lib64/libnvrtc.so.13");
    const auto search_at = [&](const std::string& path) {
        NvrtcSearch search = elsewhere;
        search.path = path;
        return search;
    };
    const std::string file = put_nvrtc(directory / "own/any_name.so");

    SECTION("a file of any name, and a symlink to it") {
        CHECK(locate_nvrtc(search_at(file))->path == fs::canonical(file));
        fs::create_symlink(file, directory / "link.so");
        const auto linked = locate_nvrtc(search_at(directory / "link.so"));
        REQUIRE(linked);
        CHECK(linked->path == fs::canonical(file));
        CHECK(linked->found_as == directory / "link.so");
        CHECK(contains(linked->origin, "NORMQUANT_NVRTC"));
        CHECK((*load_nvrtc(search_at(directory / "link.so")))->path == linked->path);
    }
    SECTION("a folder: the newest of its libraries") {
        put_nvrtc(directory / "folder/libnvrtc.so.12");
        CHECK(fs::path(locate_nvrtc(search_at(directory / "folder"))->path).filename() == "libnvrtc.so.12");
        put_nvrtc(directory / "folder/libnvrtc.so.13");
        CHECK(fs::path(locate_nvrtc(search_at(directory / "folder"))->path).filename() == "libnvrtc.so.13");
    }
    SECTION("a relative path is one from the working directory") {
        const fs::path before = fs::current_path();
        fs::current_path(directory.path());
        const NvrtcSearch search = search_at(absolute_path("own/any_name.so"));
        CHECK(locate_nvrtc(search_at("own/any_name.so"))->path == fs::canonical(file));
        CHECK((*load_nvrtc(search_at("own/any_name.so")))->path == fs::canonical(file));
        fs::current_path(before);
        CHECK((*load_nvrtc(search))->path == fs::canonical(file));
        CHECK(absolute_path("").empty());
    }
    SECTION("one that is not there: nothing else is taken") {
        fs::create_directory(directory / "empty");
        for (const std::string& path :
             {directory / "absent.so", directory / "own/any_name.so/below", directory / "empty"}) {
            INFO(path);
            for (const auto& error : {locate_nvrtc(search_at(path)).error(), load_nvrtc(search_at(path)).error()}) {
                CHECK(error.status == NQ_ERR_NVRTC_MISSING);
                CHECK(contains(error.message, "libnvrtc was not found"));
                CHECK(contains(error.message, path));
                CHECK(contains(error.message, "NORMQUANT_NVRTC"));
                CHECK_FALSE(contains(error.message, "CUDA_HOME"));
            }
        }
        CHECK(contains(locate_nvrtc(search_at(directory / "empty")).error().message, "empty/libnvrtc.so.12"));
    }
    SECTION("a FIFO is refused, not waited for") {
        REQUIRE(::mkfifo((directory / "fifo").c_str(), 0600) == 0);
        CHECK(contains(locate_nvrtc(search_at(directory / "fifo")).error().message, "cannot read"));
        CHECK(contains(load_nvrtc(search_at(directory / "fifo")).error().message, "cannot read"));
    }
}

TEST_CASE("one that the process has loaded comes first, whatever its file is called") {
    TempDirectory directory;
    NvrtcSearch search = machine(directory);
    put_nvrtc(directory / "ld_library_path/libnvrtc.so.13");
    // Of all fakes this one alone has the soname.
    const std::string renamed = write_file(directory / "torch/renamed.so", read_file(NORMQUANT_FAKE_NVRTC_WITH_SONAME));
    REQUIRE(::dlopen(renamed.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr);

    CHECK(locate_nvrtc(search)->origin == "loader path");
    search.ask_loader = true;
    const auto located = locate_nvrtc(search);
    REQUIRE(located);
    CHECK(located->origin == "already loaded in the process");
    CHECK(located->path == fs::canonical(renamed));
    CHECK((*load_nvrtc(search))->path == located->path);

    search.path = directory / "ld_library_path";
    CHECK(contains(locate_nvrtc(search)->path, "ld_library_path"));

    // Its file is gone: there is nothing to identify it by.
    search.path = "";
    fs::remove(renamed);
    CHECK(locate_nvrtc(search)->origin == "loader path");
}

TEST_CASE("a libnvrtc that cannot be used is passed by, and told of when there is no other") {
    TempDirectory directory;
    const NvrtcSearch search = machine(directory);
    fs::create_directories(directory / "ld_library_path/libnvrtc.so.13");
    const std::string garbage = write_file(directory / "home/lib64/libnvrtc.so.13", "no library");
    const std::string other = write_file(directory / "home/lib/libnvrtc.so.13", read_file(NORMQUANT_FAKE_CUDA));
    const std::string old = put_nvrtc(directory / "path/lib64/libnvrtc.so.12");
    state_of(old).major = 12;
    state_of(old).minor = 3;
    const std::string silent = put_nvrtc(directory / "path/lib/libnvrtc.so.12");
    state_of(silent).archs_fail = true;

    // The first file is what is meant as long as nothing is known against it.
    CHECK(locate_nvrtc(search)->path == fs::canonical(garbage));
    const auto missing = load_nvrtc(search);
    REQUIRE_FALSE(missing);
    const std::string& message = missing.error().message;
    CHECK(missing.error().status == NQ_ERR_NVRTC_MISSING);
    CHECK(contains(message, "no usable libnvrtc: cannot read "));
    CHECK(contains(message, "ld_library_path/libnvrtc.so.13: Is a directory"));
    CHECK(contains(message, garbage));
    CHECK(contains(message, other + " is not NVRTC"));
    CHECK(contains(message, old + " is NVRTC 12.3, too old: 12.4 or newer is needed"));
    CHECK(contains(message, silent + " does not list its architectures"));

    const std::string good = put_nvrtc(directory / "venv/lib/libnvrtc.so.12");
    const auto loaded = load_nvrtc(search);
    REQUIRE(loaded);
    CHECK((*loaded)->path == fs::canonical(good));
    CHECK((*loaded)->origin == "VIRTUAL_ENV");

    // Named, it is not passed by.
    CHECK(contains(load_nvrtc(only(old)).error().message, "too old"));
}

TEST_CASE("several libnvrtc in one process stay apart") {
    TempDirectory directory;
    const std::string first = put_nvrtc(directory / "a/libnvrtc.so.13"),
                      second = put_nvrtc(directory / "b/libnvrtc.so.13");
    state_of(second).major = 12;
    state_of(second).minor = 8;
    const auto a = load_nvrtc(only(first)), b = load_nvrtc(only(second));
    REQUIRE(a);
    REQUIRE(b);
    CHECK((*a)->version == NvrtcVersion{13, 0});
    CHECK((*b)->version == NvrtcVersion{12, 8});
    CHECK((*a)->nvrtcCompileProgram != (*b)->nvrtcCompileProgram);
    // The same file by another name is the same library.
    fs::create_symlink(first, directory / "c");
    CHECK((*load_nvrtc(only(directory / "c")))->nvrtcCompileProgram == (*a)->nvrtcCompileProgram);
    const Arch arch = *parse_arch("sm_90");
    REQUIRE(compile(**b, "\nline\n", arch));
    CHECK(state_of(first).compiles == 0);
    CHECK(state_of(second).compiles == 1);
}

TEST_CASE("a compile without the builtins says which file is needed and what lies there") {
    TempDirectory directory;
    const Arch arch = *parse_arch("sm_90");
    const std::string library = put_nvrtc(directory / "lib/libnvrtc.so.13");
    state_of(library).fail = true;
    const auto compile_error = [&](const std::string& log) {
        state_of(library).log = log;
        const auto nvrtc = load_nvrtc(only(library));
        REQUIRE(nvrtc);
        return compile(**nvrtc, "\nline\n", arch).error();
    };
    const std::string log = "nvrtc: error: failed to open libnvrtc-builtins.so.13.0.\n  Make sure that it is installed";

    SECTION("none") {
        const Error error = compile_error(log);
        CHECK(error.status == NQ_ERR_NVRTC_MISSING);
        CHECK(error.detail == log);
        CHECK(contains(error.message, "needs its libnvrtc-builtins.so.13.0"));
        CHECK(contains(error.message, "looked for in " + fs::canonical(directory / "lib").string()));
        CHECK(contains(error.message, "no builtins"));
    }
    SECTION("of another version") {
        put_nvrtc(directory / "lib/libnvrtc-builtins.so.12.8");
        const Error error = compile_error(log);
        CHECK(contains(error.message, "needs its libnvrtc-builtins.so.13.0"));
        CHECK(contains(error.message, "lib/libnvrtc-builtins.so.12.8"));
    }
    SECTION("one that cannot be loaded") {
        write_file(directory / "lib/libnvrtc-builtins.so.13.0", "no library");
        CHECK(contains(compile_error(log).message, "libnvrtc-builtins.so.13.0 (cannot be loaded: "));
    }
    SECTION("one that belongs to something else") {
        put_nvrtc(directory / "lib/libnvrtc-builtins.so.13.0");
        CHECK(contains(compile_error("nvrtc: error: libnvrtc-builtins.so.13.0 is corrupted").message,
                       "libnvrtc-builtins.so.13.0 (not the one that belongs to this libnvrtc)"));
    }
    SECTION("any other failure says nothing of them") {
        const Error error = compile_error("error: expected a ;");
        CHECK(error.status == NQ_ERR_COMPILE_FAILED);
        CHECK_FALSE(contains(error.message, "builtins"));
    }
}

TEST_CASE("the identity of a library is that of its build") {
    TempDirectory directory;
    const std::string whole = read_file(NORMQUANT_FAKE_NVRTC);
    const std::string path = write_file(directory / "library", whole);
    const std::string identity = *library_identity(path);
    REQUIRE(identity.rfind("build-id:", 0) == 0);
    write_file(path, whole + "appended");
    CHECK(*library_identity(path) == identity);

    std::string id;
    for (std::size_t i = 9; i < identity.size(); i += 2)
        id += static_cast<char>(std::stoi(identity.substr(i, 2), nullptr, 16));
    const std::size_t at = whole.find(id);
    REQUIRE(at != std::string::npos);
    std::string other = whole;
    other[at] = static_cast<char>(other[at] ^ 1);
    write_file(path, other);
    const std::string patched = *library_identity(path);
    CHECK(patched.rfind("build-id:", 0) == 0);
    CHECK(patched != identity);

    // A tool that moves the note leaves its segment behind: the section has it still.
    Elf64_Ehdr header;
    std::memcpy(&header, whole.data(), sizeof header);
    std::string moved = whole;
    for (unsigned i = 0; i < header.e_phnum; ++i) {
        const std::size_t type_at = header.e_phoff + i * sizeof(Elf64_Phdr);
        Elf64_Word type;
        std::memcpy(&type, &moved[type_at], sizeof type);
        if (type == PT_NOTE) std::memset(&moved[type_at + offsetof(Elf64_Phdr, p_offset)], 0, sizeof(Elf64_Off));
    }
    write_file(path, moved);
    CHECK(*library_identity(path) == identity);
}

TEST_CASE("the loader's cache") {
    const std::vector<CachedFile> files = {
        {"libnvrtc.so.12", "/twelve", kThisMachine},      {"libnvrtc.so.13", "/another class", kAnother},
        {"libnvrtc.so.13", "/fast CPU", kThisMachine, 1}, {"libnvrtc.so.13", "/first", kThisMachine},
        {"libnvrtc.so.13", "/second", kThisMachine},      {"libnvrtc.so.130", "/longer", kThisMachine},
    };
    using Paths = std::vector<std::string>;
    for (const bool behind_old : {false, true}) {
        const std::string cache = loader_cache(files, behind_old);
        const auto found = [](const std::string& bytes) {
            return files_in_loader_cache(bytes_of(bytes), "libnvrtc.so.13");
        };
        CHECK(found(cache) == Paths{"/first", "/second"});
        CHECK(files_in_loader_cache(bytes_of(cache), "libnvrtc.so.12") == Paths{"/twelve"});
        CHECK(files_in_loader_cache(bytes_of(cache), "libnvrtc.so.14").empty());
        std::size_t whole = 0;
        for (std::size_t size = 0; size < cache.size(); ++size) {
            const Paths part = found(std::string(cache.data(), size));
            for (const std::string& path : part) CHECK((path == "/first" || path == "/second"));
            whole += part.size() == 2;
        }
        CHECK(whole < cache.size() / 4);
        for (std::size_t i = 0; i < cache.size(); ++i) {
            for (const int mask : {0x01, 0x80, 0xff}) {
                std::string flipped = cache;
                flipped[i] = static_cast<char>(flipped[i] ^ mask);
                CHECK(found(flipped).size() <= 3);
            }
        }
    }
    CHECK(files_in_loader_cache({}, "libnvrtc.so.13").empty());
}

TEST_CASE("the loader's path of this process") {
    const LoaderPath path = loader_path();
    CHECK_FALSE(path.directories.empty());
    if (!fs::exists(path.cache)) return;
    // What the loader did find: the C library.
    const std::string libc = fs::canonical(loaded_as("libc.so.6"));
    const std::string cache = read_file(path.cache);
    const auto cached = files_in_loader_cache(bytes_of(cache), "libc.so.6");
    CHECK(std::ranges::any_of(cached, [&](const std::string& file) { return fs::canonical(file) == libc; }));
    const auto all = files_on(path, "libc.so.6");
    CHECK(std::ranges::any_of(
        all, [&](const std::string& file) { return fs::exists(file) && fs::canonical(file) == libc; }));

    for (std::size_t size = 0; size < cache.size(); size += 61) {
        const std::vector<unsigned char> part(cache.begin(), cache.begin() + static_cast<std::ptrdiff_t>(size));
        CHECK(files_in_loader_cache(part, "libc.so.6").size() <= cached.size());
    }
    std::string flipped = cache;
    for (std::size_t i = 0; i < cache.size(); i += 61) {
        flipped[i] = static_cast<char>(~flipped[i]);
        CHECK(files_in_loader_cache(bytes_of(flipped), "libc.so.6").size() <= cached.size() + 1);
        flipped[i] = cache[i];
    }
}

TEST_CASE("a loader's cache of another format is no source") {
    TempDirectory directory;
    const NvrtcSearch search = machine(directory);
    const std::string file = put_nvrtc(directory / "cached/libnvrtc.so.13");
    const std::string cache = loader_cache({{"libnvrtc.so.13", file, kThisMachine}});
    write_file(directory / "ld.so.cache", cache);
    CHECK(locate_nvrtc(search).ok());
    write_file(directory / "ld.so.cache", "glibc-ld.so.cache2.0" + cache.substr(20));
    CHECK_FALSE(locate_nvrtc(search).ok());
    // An entry for a file that is no longer there is passed by.
    write_file(directory / "ld.so.cache", cache);
    fs::remove(file);
    CHECK_FALSE(locate_nvrtc(search).ok());
}

TEST_CASE("what is no cubin tells nothing of itself") {
    CHECK(cubin_info({}).registers == 0);
    const std::string text(4096, 'x');
    CHECK(cubin_info(bytes_of(text)).toolkit.empty());
}
