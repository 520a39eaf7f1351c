// Finding and binding libcuda and libnvrtc, and what is said when that fails.
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "fixture.h"

#include <dlfcn.h>

#include <filesystem>
#include <fstream>

using namespace nq::test;

namespace {

nq::NvrtcSearch only(const std::string& path) {
    nq::NvrtcSearch search;
    search.path = path;
    return search;
}

}  // namespace

TEST_CASE("without a driver the rest works") {
    Fixture world;
    nq_context_options options = world.options();
    options.libcuda = "/nowhere/libcuda.so.1";
    const ContextPtr context = world.create(options);
    const nq_problem problem = make_problem();
    nq_kernel* kernel = nullptr;
    CHECK(nq_prepare(context.get(), &problem, nullptr, &kernel) == NQ_ERR_DRIVER_MISSING);
    CHECK(contains(last_error(), "/nowhere/libcuda.so.1"));
    CHECK(nq_prepare(context.get(), &problem, nullptr, &kernel) == NQ_ERR_DRIVER_MISSING);  // and again
    CHECK(nq_problem_check(&problem) == NQ_OK);
    const char* const archs[] = {"sm_90"};
    CHECK(nq_precompile(context.get(), &problem, 1, archs, 1, 1, nullptr, nullptr) == NQ_OK);
}

TEST_CASE("a driver that lacks a function is named with it") {
    Fixture world;
    world.cuda.absent.insert("cuLibraryLoadData");
    world.cuda.version = 11080;
    const auto driver = nq::load_driver(NORMQUANT_FAKE_CUDA);
    REQUIRE_FALSE(driver);
    CHECK(driver.error().status == NQ_ERR_DRIVER_TOO_OLD);
    CHECK(contains(driver.error().message, "lacks cuLibraryLoadData"));
    CHECK(contains(driver.error().message, "CUDA 11.8"));
    CHECK(contains(driver.error().message, "R525"));
    CHECK(world.cuda.calls.empty());  // not initialized in vain
}

TEST_CASE("a driver without a GPU says so") {
    Fixture world;
    world.cuda.failures["cuInit"] = CUDA_ERROR_NO_DEVICE;
    const auto driver = nq::load_driver(NORMQUANT_FAKE_CUDA);
    REQUIRE_FALSE(driver);
    CHECK(driver.error().status == NQ_ERR_UNSUPPORTED_DEVICE);
    CHECK(contains(driver.error().message, "cuInit"));
}

TEST_CASE("without NVRTC a compile is refused, with the places tried") {
    Fixture world;
    nq_context_options options = world.options();
    options.nvrtc = "/nowhere/libnvrtc.so.13";
    const ContextPtr context = world.create(options);
    const nq_problem problem = make_problem();
    nq_kernel* kernel = nullptr;
    CHECK(nq_prepare(context.get(), &problem, nullptr, &kernel) == NQ_ERR_NVRTC_MISSING);
    CHECK(contains(last_error(), "/nowhere/libnvrtc.so.13"));
    CHECK(contains(last_error(), "NORMQUANT_NVRTC"));
    const char* const archs[] = {"sm_90"};
    CHECK(nq_precompile(context.get(), &problem, 1, archs, 1, 1, nullptr, nullptr) == NQ_ERR_NVRTC_MISSING);
}

TEST_CASE("an NVRTC that is too old is told apart from none") {
    Fixture world;
    world.nvrtc.major = 12;
    world.nvrtc.minor = 3;
    const auto nvrtc = nq::load_nvrtc(only(NORMQUANT_FAKE_NVRTC));
    REQUIRE_FALSE(nvrtc);
    CHECK(nvrtc.error().status == NQ_ERR_NVRTC_MISSING);
    CHECK(contains(nvrtc.error().message, "NVRTC 12.3, too old: 12.4 or newer is needed"));
}

TEST_CASE("a library that is no NVRTC is told apart, too") {
    const auto nvrtc = nq::load_nvrtc(only(NORMQUANT_FAKE_CUDA));
    REQUIRE_FALSE(nvrtc);
    CHECK(contains(nvrtc.error().message, "is not NVRTC"));
}

TEST_CASE("a folder may be named in place of the library") {
    Fixture world;
    std::filesystem::create_symlink(NORMQUANT_FAKE_NVRTC, world.directory / "libnvrtc.so.12");
    const auto nvrtc = nq::load_nvrtc(only(world.directory.path()));
    REQUIRE(nvrtc);
    CHECK((*nvrtc)->path == std::filesystem::canonical(NORMQUANT_FAKE_NVRTC));
    CHECK((*nvrtc)->version == nq::NvrtcVersion{13, 0});
}

TEST_CASE("the builtins are loaded with the library that they lie beside") {
    TempDirectory real, linked;
    const auto is_loaded = [](const std::string& path) {
        return ::dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD) != nullptr;
    };
    // Copies, as an object is loaded once whatever its names are. What the builtins hold does not matter here.
    const std::string library = real / "libnvrtc.so.13";
    std::filesystem::copy_file(NORMQUANT_FAKE_NVRTC, library);
    REQUIRE(nq::load_nvrtc(only(library)));  // without any it is used all the same

    const auto put_builtins = [](const TempDirectory& directory) {
        const std::string builtins = directory / "libnvrtc-builtins.so.13.0";
        std::filesystem::copy_file(NORMQUANT_FAKE_NVRTC, builtins);
        return builtins;
    };
    SECTION("beside the file") {
        const std::string builtins = put_builtins(real);
        CHECK_FALSE(is_loaded(builtins));
        REQUIRE(nq::load_nvrtc(only(library)));
        CHECK(is_loaded(builtins));
    }
    SECTION("beside a symlink to it, as package managers make them") {
        std::filesystem::create_symlink(library, linked / "libnvrtc.so.13");
        const std::string builtins = put_builtins(linked);
        REQUIRE(nq::load_nvrtc(only(linked / "libnvrtc.so.13")));
        CHECK(is_loaded(builtins));
    }
}

TEST_CASE("contexts with an NVRTC each compile with their own, and share what builds of one identity made") {
    Fixture world;
    const auto read = [](const std::string& path) {
        std::ifstream file(path, std::ios::binary);
        return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    };
    const auto put = [&](const char* name, const std::string& bytes) {
        const std::string path = world.directory / name;
        std::ofstream(path, std::ios::binary) << bytes;
        return path;
    };
    const std::string build = read(NORMQUANT_FAKE_NVRTC);
    const std::string first = put("first.so", build), again = put("again.so", build);
    // Another build: other bytes where the build id is.
    const std::string identity = *nq::library_identity(first);
    REQUIRE(identity.rfind("build-id:", 0) == 0);
    std::string id;
    for (std::size_t i = 9; i < identity.size(); i += 2)
        id += static_cast<char>(std::stoi(identity.substr(i, 2), nullptr, 16));
    std::string other_build = build;
    REQUIRE(other_build.find(id) != std::string::npos);
    other_build[other_build.find(id)] ^= 1;
    const std::string second = put("second.so", other_build);

    const auto compiles = [&](const std::string& nvrtc) {
        nq_context_options options = world.options();
        options.nvrtc = nvrtc.c_str();
        const ContextPtr context = world.create(options);
        const nq_problem problem = make_problem();
        const char* const archs[] = {"sm_90"};
        const nq_status status = nq_precompile(context.get(), &problem, 1, archs, 1, 1, nullptr, nullptr);
        INFO(nq_last_error());
        CHECK(status == NQ_OK);
        return counters_of(context.get()).compiles;
    };
    const auto made = compiles(first);
    CHECK(made > 0);
    CHECK(compiles(second) == made);
    CHECK(compiles(again) == 0);
    CHECK(compiles(second) == 0);
    CHECK(world.nvrtc.compiles == 0);  // none of these is the file that other tests use
}

TEST_CASE("a relative path of NVRTC is taken from the directory in which the context was made") {
    Fixture world;
    std::filesystem::copy_file(NORMQUANT_FAKE_NVRTC, world.directory / "relative.so");
    nq_context_options options = world.options();
    options.nvrtc = "relative.so";
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(world.directory.path());
    const ContextPtr context = world.create(options);
    std::filesystem::current_path(before);
    const nq_problem problem = make_problem();
    const char* const archs[] = {"sm_90"};
    CHECK(nq_precompile(context.get(), &problem, 1, archs, 1, 1, nullptr, nullptr) == NQ_OK);
    CHECK(counters_of(context.get()).compiles > 0);
}

TEST_CASE("which targets an NVRTC lists") {
    nq::Nvrtc nvrtc;
    nvrtc.archs = {80, 90, 100, 120};
    const auto lists = [&](const char* name) { return nvrtc.lists(*nq::parse_arch(name)); };
    nvrtc.version = {12, 8};
    CHECK(lists("sm_90"));
    CHECK(lists("sm_100a"));
    CHECK_FALSE(lists("sm_100f"));  // families came with 12.9
    CHECK_FALSE(lists("sm_103"));
    nvrtc.version = {12, 9};
    CHECK(lists("sm_100f"));
    CHECK_FALSE(lists("sm_103f"));  // new enough, but not in the list
}

TEST_CASE("a library's identity is its build id, else its bytes") {
    TempDirectory directory;
    const std::string path = directory / "library";
    const auto write = [&](const std::string& bytes) {
        std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    };

    write("no ELF file");
    const auto first = nq::library_identity(path);
    REQUIRE(first);
    CHECK(first->rfind("xxh3:", 0) == 0);
    CHECK(first->size() == 5 + 32);
    write("no ELF file!");
    CHECK(*nq::library_identity(path) != *first);
    write("");
    CHECK(nq::library_identity(path).ok());

    // Truncated anywhere, an ELF file gets its bytes' identity and nothing is read out of bounds.
    std::ifstream source(NORMQUANT_FAKE_NVRTC, std::ios::binary);
    const std::string elf((std::istreambuf_iterator<char>(source)), std::istreambuf_iterator<char>());
    for (std::size_t size = 0; size < 2048; size += 7) {
        write(elf.substr(0, size));
        CHECK(nq::library_identity(path).ok());
    }
    CHECK(nq::library_identity(directory / "absent").error().status == NQ_ERR_NVRTC_MISSING);
}
