// Exit codes, messages, help, and a stdout that holds one JSON document when --json is given.
#include "file_samples.h"
#include "support/catch.h"
#include "support/temp_directory.h"
#include "tool.h"

#include <filesystem>

using namespace nq::test;
using nq::cli::Element;

namespace {

// Expects a usage error whose message has this text, on stderr and, with --json, in the document.
void refused(std::vector<std::string> arguments, const std::string& text) {
    const ToolResult plain = run_tool(arguments);
    INFO(plain.err);
    CHECK(plain.exit_code == 2);
    CHECK(plain.out.empty());
    CHECK(plain.err.find(text) != std::string::npos);
    arguments.push_back("--json");
    const ToolResult json = run_tool(arguments);
    CHECK(json.exit_code == 2);
    CHECK(json.json()["exit_code"] == 2);
    CHECK(json.json()["error"]["message"].get<std::string>().find(text) != std::string::npos);
}

}  // namespace

TEST_CASE("no command, an unknown command, an unknown option") {
    refused(
        {},
        "name a command: quantize, warmup, cache list, cache show, cache verify, cache explain, cache extract, cache "
        "export, cache import, cache gc, cache clear, cache stats, cache path, bench, info, doctor");
    refused({"frobnicate"}, "frobnicate (commands: quantize, warmup, cache, bench, info, doctor; see normquant --help)");
    refused({"info", "--frobnicate"}, "frobnicate (see normquant --help)");
    refused({"quantize"}, "--input");
    refused({"cache"}, "name a command: ");
    refused(
        {"cache", "lst"},
        "lst (commands of cache: list, show, verify, explain, extract, export, import, gc, clear, stats, path; see");
}

TEST_CASE("an empty value is not taken for an option that was left out") {
    const TempDirectory d;
    const std::string bundle = d / "kernels.nqb", kernel = d / "kernel.cubin";
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{{"cache", "list"},
                                               {"cache", "show", "3f"},
                                               {"cache", "verify"},
                                               {"cache", "explain", "--hidden", "64", "--arch", "sm_90"},
                                               {"cache", "extract", "3f", "-o", kernel},
                                               {"cache", "export", bundle},
                                               {"cache", "import", bundle},
                                               {"cache", "gc"},
                                               {"cache", "clear", "--yes"},
                                               {"cache", "stats"},
                                               {"cache", "path"},
                                               {"doctor"},
                                               {"bench"},
                                               {"warmup", "--hidden", "64", "--arch", "sm_90"},
                                               {"quantize", "--input", "x", "--weight", "y", "--out", "z"}}) {
        std::vector<std::string> arguments = command;
        arguments.insert(arguments.end(), {"--cache-dir", ""});
        refused(arguments, "--cache-dir '' is empty: give a value, or leave it out");
    }
    refused({"cache", "list", "--bundle", ""}, "--bundle ''");
    refused({"cache", "list", "--arch", ""}, "--arch ''");
    refused({"cache", "list", "--hidden", ""}, "--hidden ''");
    refused({"cache", "list", "--older-than", ""}, "--older-than ''");
    refused({"cache", "gc", "--max-size", ""}, "--max-size ''");
    refused({"cache", "gc", "--max-age", ""}, "--max-age ''");
    refused({"cache", "show", ""}, "ENTRY '' is empty: give a value");
    refused({"cache", "export", ""}, "BUNDLE ''");
    refused({"warmup", "--hidden", "", "--arch", "sm_90"}, "--hidden '' is empty: give a value");
    refused({"quantize", "--input", "x", "--weight", "y", "--out", "z", "--eps", ""}, "--eps ''");
}

TEST_CASE("help teaches, version answers") {
    for (const std::vector<std::string>& arguments :
         std::vector<std::vector<std::string>>{{"--help"},
                                               {"quantize", "--help"},
                                               {"warmup", "--help"},
                                               {"cache", "--help"},
                                               {"cache", "list", "--help"},
                                               {"cache", "show", "--help"},
                                               {"cache", "verify", "--help"},
                                               {"cache", "explain", "--help"},
                                               {"cache", "extract", "--help"},
                                               {"cache", "export", "--help"},
                                               {"cache", "import", "--help"},
                                               {"cache", "gc", "--help"},
                                               {"cache", "clear", "--help"},
                                               {"cache", "stats", "--help"},
                                               {"doctor", "--help"},
                                               {"bench", "--help"},
                                               {"info", "--help"}}) {
        const ToolResult result = run_tool(arguments);
        INFO(arguments.front());
        CHECK(result.exit_code == 0);
        CHECK(result.err.empty());
        CHECK(result.out.find("Exit codes: 0") != std::string::npos);
        if (arguments.size() > 1) CHECK(result.out.find("  normquant " + arguments.front()) != std::string::npos);
    }
    CHECK(run_tool({"--version"}).out == "normquant 0.1.0\n");
}

TEST_CASE("quantize: option values that are refused are named, with what is accepted") {
    const TempDirectory d;
    save(d / "x.npy", npy(npy_dictionary("<f2", "(2, 32)"), values(Element::fp16, 64, 1)));
    save(d / "w.npy", npy(npy_dictionary("<f2", "(32,)"), values(Element::fp16, 32, 2)));
    const auto with = [&](std::vector<std::string> more, const std::string& text) {
        std::vector<std::string> arguments{"quantize",  "--input", d / "x.npy", "--weight",
                                           d / "w.npy", "--out",   d / "out"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        refused(arguments, text);
    };
    with({"--format", "fp8"}, "--format 'fp8' is not accepted: choose one of nvfp4, mxfp4");
    with({"--block", "64"}, "--block '64' is not accepted: choose one of 16, 32");
    with({"--scale", "e5m2"}, "--scale 'e5m2' is not accepted: choose one of e4m3, ue8m0");
    with({"--layout", "tiled"}, "--layout 'tiled' is not accepted: choose one of linear, swizzled");
    with({"--device", "tpu"}, "--device 'tpu' is not accepted: choose one of auto, cpu, gpu");
    with({"--dtype", "bf16"}, "--dtype bf16 does not fit --input, which is fp16");
    with({"--dtype", "fp32"}, "--dtype 'fp32' is not accepted: choose one of fp16, bf16");
    for (const char* eps : {"nan", "inf", "1e-6x", "1e99"}) {
        with({"--eps", eps}, "--eps '" + std::string(eps) + "' is not a finite");
    }
    with({"--eps=-1"}, "--eps '-1' is negative");
    with({"--global-scale", "0"}, "--global-scale '0' is not a positive number");
    with({"--global-scale", "big"}, "--global-scale 'big' is not a finite");
    with({"--format", "mxfp4", "--global-scale", "2"}, "does not go with ue8m0");
    CHECK_FALSE(std::filesystem::exists(d / "out"));
}

TEST_CASE("quantize: bad options are found before the input is read") {
    const TempDirectory d;
    save(d / "file", {'x'});
    const auto with = [&](std::vector<std::string> more, const std::string& text) {
        std::vector<std::string> arguments{"quantize", "--input", d / "none.npy", "--weight", d / "none.npy"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        refused(arguments, text);
    };
    with({"--out", d / "out", "--device", "tpu"}, "--device 'tpu'");
    with({"--out", d / "out", "--global-scale", "big"}, "--global-scale 'big'");
    with({"--out", d / "out", "--format", "mxfp4", "--global-scale", "2"}, "does not go with ue8m0");
    with({"--out", d / "file/out"}, "is not a directory");
    with({"--out", d / "file"}, "is not a directory");
}

TEST_CASE("quantize: inputs that are refused are named, with the reason") {
    const TempDirectory d;
    save(d / "x.npy", npy(npy_dictionary("<f2", "(2, 32)"), values(Element::fp16, 64, 1)));
    save(d / "w.npy", npy(npy_dictionary("<f2", "(32,)"), values(Element::fp16, 32, 2)));
    const auto files = [&](const std::string& input, const std::string& weight, const std::string& text) {
        refused({"quantize", "--input", d / input, "--weight", d / weight, "--out", d / "out"}, text);
    };
    files("none.npy", "w.npy", "none.npy: No such file");
    files("x.npy", "none.npy", "none.npy: No such file");
    files("x.npy:a", "w.npy", "a .npy file holds one array: drop ':a'");
    save(d / "text.txt", {'h', 'i'});
    files("text.txt", "w.npy", "no .npy file, and no .safetensors file");
    save(d / "big.npy", npy(npy_dictionary(">f2", "(2, 32)"), Blob(128)));
    files("big.npy", "w.npy", "big.npy: the array's type '>f2' is not accepted");
    save(d / "raw.npy", npy(npy_dictionary("<u2", "(2, 32)"), Blob(128)));
    files("raw.npy", "w.npy", "add --dtype bf16");
    files("x.npy", "x.npy", "--weight has shape [2, 32]: [32] is needed");
    save(d / "4d.npy", npy(npy_dictionary("<f2", "(1, 1, 2, 32)"), Blob(128)));
    files("4d.npy", "w.npy", "--input has shape [1, 1, 2, 32]");
    save(d / "narrow.npy", npy(npy_dictionary("<f2", "(2, 8)"), Blob(32)));
    files("narrow.npy", "w.npy", "rows of 8 elements: 16 to 131072");
    save(d / "odd.npy", npy(npy_dictionary("<f2", "(2, 40)"), Blob(160)));
    save(d / "w40.npy", npy(npy_dictionary("<f2", "(40,)"), Blob(80)));
    files("odd.npy", "w40.npy", "40");
    save(
        d / "m.safetensors",
        safetensors(
            R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"b":{"dtype":"F16","shape":[1],"data_offsets":[2,4]}})",
            Blob(4)));
    files("m.safetensors:c", "w.npy", "no tensor 'c'; available: a F16[1], b F16[1]");
    files("m.safetensors", "w.npy", "2 tensors; add ':NAME'");
    CHECK_FALSE(std::filesystem::exists(d / "out"));
    refused({"quantize", "--input", d / "x.npy", "--weight", d / "w.npy", "--out", d / "x.npy"}, "x.npy");
}

TEST_CASE("quantize --device gpu without a GPU fails and says what to do") {
    const TempDirectory d;
    save(d / "x.npy", npy(npy_dictionary("<f2", "(2, 32)"), values(Element::fp16, 64, 1)));
    save(d / "w.npy", npy(npy_dictionary("<f2", "(32,)"), values(Element::fp16, 32, 2)));
    const ToolResult result = run_tool(
        {"quantize", "--input", d / "x.npy", "--weight", d / "w.npy", "--out", d / "out", "--device", "gpu", "--json"});
    CHECK(result.exit_code == 1);
    CHECK(result.json()["error"]["message"].get<std::string>().find("--device cpu computes the same bytes") !=
          std::string::npos);
    CHECK_FALSE(std::filesystem::exists(d / "out"));
}

TEST_CASE("warmup: values that are refused") {
    refused({"warmup", "--hidden", "4096"}, "--arch");
    refused({"warmup", "--hidden", "4k", "--arch", "sm_90"}, "--hidden '4k' is not a whole number from 16 to 131072");
    refused({"warmup", "--hidden", "40", "--arch", "sm_90"}, "40");
    refused({"warmup", "--hidden", "64", "--arch", "h100x"}, "h100x");
    refused({"warmup", "--hidden", "64", "--arch", "sm_90", "--format", "fp4"}, "--format 'fp4'");
    refused({"warmup", "--hidden", "64", "--arch", "sm_90", "--weight-dtype", "int8"}, "--weight-dtype 'int8'");
    refused({"warmup", "--hidden", "64", "--arch", "sm_90", "--threads", "-2"}, "-2");
}

TEST_CASE("warmup without NVRTC fails once for every kernel, not before") {
    const ToolResult result = run_tool({"warmup", "--hidden", "64", "--arch", "sm_90", "--format", "nvfp4", "--json"},
                                       {"NORMQUANT_NVRTC=/nonexistent/libnvrtc.so"});
    CHECK(result.exit_code == 1);
    CHECK(result.out.find("/nonexistent/libnvrtc.so") != std::string::npos);
    CHECK_NOTHROW(result.json());
}

TEST_CASE("info: nothing missing is an error, unless a self-test is asked for") {
    const std::vector<std::string> bare{"NORMQUANT_NVRTC=/nonexistent/libnvrtc.so"};
    const ToolResult text = run_tool({"info"}, bare);
    CHECK(text.exit_code == 0);
    CHECK(text.out.find("normquant 0.1.0, kernel sources ") == 0);
    CHECK(text.out.find("/nonexistent/libcuda.so.1") != std::string::npos);
    const ToolResult json = run_tool({"info", "--json"}, bare);
    CHECK(json.exit_code == 0);
    CHECK(json.json()["nvrtc"]["found"] == false);
    CHECK(json.json()["driver"]["found"] == false);
    CHECK(json.json()["devices"].empty());
    CHECK(json.json()["kernel_sources"].get<std::string>().size() == 32);
#ifdef NORMQUANT_NVTX
    CHECK(json.json()["nvtx"] == true);
    CHECK(text.out.find("ranges for profilers are built in") != std::string::npos);
#else
    CHECK(json.json()["nvtx"] == false);
    CHECK(text.out.find("ranges for profilers are not built in") != std::string::npos);
#endif
    const ToolResult tested = run_tool({"info", "--self-test", "--json"}, bare);
    CHECK(tested.exit_code == 1);
    CHECK(tested.json()["self_test"]["ran"] == false);
}

TEST_CASE("an environment variable that cannot be parsed is named") {
    const ToolResult result = run_tool({"info"}, {"NORMQUANT_JIT=maybe"});
    CHECK(result.exit_code == 2);
    CHECK(result.err.find("NORMQUANT_JIT") != std::string::npos);
}
