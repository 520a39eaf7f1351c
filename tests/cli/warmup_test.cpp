// normquant warmup, with the NVRTC of this machine, and the cache that it fills.
#include "cuda/nvrtc.h"
#include "file_samples.h"
#include "support/catch.h"
#include "support/environment.h"
#include "support/temp_directory.h"
#include "tool.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>

using namespace nq::test;

namespace {

// The NVRTC to use, as a setting.
std::string nvrtc_or_skip() {
    const auto environment = nq::read_environment();
    nq::NvrtcSearch search;
    if (environment) {
        search.path = environment->nvrtc.value_or("");
        search.cuda_homes = environment->cuda_homes;
        search.python_environments = environment->python_environments;
    }
    const auto nvrtc = nq::locate_nvrtc(search);
    if (nvrtc.ok()) return "NORMQUANT_NVRTC=" + nvrtc->path;
    std::printf("skipped: %s\n", nvrtc.error().message.c_str());
    std::exit(77);
}

}  // namespace

TEST_CASE("warm-up fills a cache that list, show, verify and path then read") {
    const std::string nvrtc = nvrtc_or_skip();
    const TempDirectory d;
    const std::vector<std::string> cache{"NORMQUANT_CACHE_DIR=" + (d / "cache"), nvrtc};
    const std::vector<std::string> warmup{"warmup",   "--hidden", "64",       "--arch", "sm_90,sm_80",
                                          "--format", "nvfp4",    "--layout", "linear", "--json"};

    const ToolResult first = run_tool(warmup, cache);
    INFO(first.err);
    REQUIRE(first.exit_code == 0);
    const auto made = first.json();
    const auto kernels = made["kernels"].get<std::size_t>();
    CHECK(kernels >= 2);
    CHECK(made["compiled"] == kernels);
    CHECK(made["failed"] == 0);
    CHECK(made["archs"]["sm_90"]["median_compile_ms"].get<double>() > 0);
    CHECK(made["cache_dir"] == d / "cache");
    CHECK(first.err.find("sm_90 H=64 bf16 nvfp4 weight=bf16 linear throughput: compiled in ") != std::string::npos);

    const auto again = run_tool(warmup, cache).json();
    CHECK(again["compiled"] == 0);
    CHECK(again["cached"] == kernels);
    CHECK(again["archs"]["sm_90"]["median_compile_ms"].is_null());

    CHECK(run_tool({"cache", "path"}, cache).out == (d / "cache") + "\n");
    CHECK(run_tool({"cache", "path", "--cache-dir", d / "other", "--json"}, cache).json()["root"] == d / "other");

    const auto list = run_tool({"cache", "list", "--json"}, cache).json();
    REQUIRE(list["entries"].size() == kernels);
    const auto entry = list["entries"][0];
    CHECK(entry["problem"].get<std::string>().find("hidden=64") != std::string::npos);
    CHECK(entry["key"].get<std::string>().size() == 32);

    const ToolResult shown = run_tool({"cache", "show", entry["key"], "--json"}, cache);
    REQUIRE(shown.exit_code == 0);
    const auto shown_entry = shown.json()["entries"][0];
    CHECK(shown_entry["metadata"].is_object());
    CHECK(shown_entry["registers"].get<int>() > 0);
    CHECK(shown_entry["nvrtc_build"].get<std::string>().find("V1") == 0);
    CHECK(run_tool({"cache", "show", entry["path"]}, cache).exit_code == 0);
    CHECK(run_tool({"cache", "show", "zz"}, cache).exit_code == 1);

    CHECK(run_tool({"cache", "verify"}, cache).exit_code == 0);
    Blob bytes = read(entry["path"]);
    bytes[bytes.size() / 2] ^= 1;
    save(entry["path"], bytes);
    const ToolResult bad = run_tool({"cache", "verify", "--json"}, cache);
    CHECK(bad.exit_code == 1);
    CHECK(bad.json()["sound"] == kernels - 1);
    REQUIRE(bad.json()["bad"].size() == 1);
    CHECK(bad.json()["bad"][0]["path"] == entry["path"]);
    // Looking changes nothing: the entry is still there, and still bad.
    CHECK(read(entry["path"]) == bytes);
    CHECK(run_tool({"cache", "list"}, cache).out.find("\nBAD ") != std::string::npos);

    // A warm-up makes a bad entry again.
    const auto repaired = run_tool(warmup, cache).json();
    CHECK(repaired["compiled"] == 1);
    CHECK(run_tool({"cache", "verify"}, cache).exit_code == 0);
}

TEST_CASE("a warm-up that finds only some of its kernels is partial") {
    const std::string nvrtc = nvrtc_or_skip();
    const TempDirectory d;
    const std::string cache = "NORMQUANT_CACHE_DIR=" + (d / "cache");
    const auto warmup = [](const std::string& archs) {
        return std::vector<std::string>{"warmup",   "--hidden", "64",       "--arch", archs,
                                        "--format", "nvfp4",    "--layout", "linear", "--json"};
    };
    REQUIRE(run_tool(warmup("sm_90"), {cache, nvrtc}).exit_code == 0);
    const ToolResult result = run_tool(warmup("sm_90,sm_80"), {cache, nvrtc, "NORMQUANT_JIT=off"});
    INFO(result.err);
    CHECK(result.exit_code == 3);
    const auto json = result.json();
    CHECK(json["archs"]["sm_90"]["cached"].get<int>() > 0);
    CHECK(json["archs"]["sm_90"]["failed"] == 0);
    CHECK(json["archs"]["sm_80"]["failed"].get<int>() > 0);
    CHECK(json["failures"].size() == json["failed"].get<std::size_t>());
    CHECK(json["failures"][0]["status"] == "NQ_ERR_NOT_PREPARED");
}
