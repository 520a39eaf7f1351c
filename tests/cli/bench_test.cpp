// normquant bench on a driver whose kernels take times of their own: normquant 8 us, the faster floor kernel 4 us (a
// granule a thread), the empty kernel 1 us, a copy 10 us. Its L2 has 1 MiB.
#include "bench_shapes.h"
#include "file_samples.h"
#include "support/catch.h"
#include "support/temp_directory.h"
#include "tool.h"

#include <filesystem>
#include <sstream>

using namespace nq::test;

namespace {

ToolResult bench(std::vector<std::string> arguments, const std::vector<std::string>& settings = {}) {
    std::vector<std::string> environment{"NORMQUANT_LIBCUDA=" NORMQUANT_FAKE_GPU,
                                         "NORMQUANT_NVRTC=" NORMQUANT_FAKE_NVRTC};
    environment.insert(environment.end(), settings.begin(), settings.end());
    arguments.insert(arguments.begin(), "bench");
    ToolResult result = run_tool(arguments, environment);
    INFO(result.err);
    CHECK(result.err.find("leaked") == std::string::npos);
    return result;
}

nlohmann::json figures(std::vector<std::string> arguments, const std::vector<std::string>& settings = {}) {
    arguments.emplace_back("--json");
    const ToolResult result = bench(arguments, settings);
    INFO(result.out << result.err);
    REQUIRE(result.exit_code == 0);
    return result.json();
}

void refused(const std::vector<std::string>& arguments, const std::string& text) {
    const ToolResult result = bench(arguments);
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(result.err.find(text) != std::string::npos);
}

bool near(const nlohmann::json& figure, double expected) {
    return std::abs(figure.get<double>() / expected - 1) < 1e-6;
}

}  // namespace

TEST_CASE("the kernel is compared with the faster floor, the empty kernel and a copy") {
    const auto json = figures({"--shape", "128x4096", "--shape", "2048x64", "--part", "kernels"});
    CHECK(json["device"]["name"] == "Fake GPU");
    CHECK(json["device"]["target"] == "sm_90");
    CHECK(json["problem"]["format"] == "nvfp4");
    CHECK_FALSE(json.contains("host"));
    const auto& kernels = json["kernels"];
    REQUIRE(kernels.size() == 4);  // each in both layouts
    CHECK(kernels[0]["layout"] == "linear");
    CHECK(kernels[1]["layout"] == "swizzled");
    for (const auto& kernel : kernels) {
        INFO(kernel.dump());
        for (const char* part : {"median", "p10", "p90"}) CHECK(near(kernel["us"][part], 8));
        CHECK(kernel["floor"] == "granule");
        CHECK(near(kernel["floor_us"]["median"], 4));
        CHECK(near(kernel["of_floor"], 0.5));
        CHECK(near(kernel["empty_us"]["median"], 1));
        CHECK(near(kernel["to_empty"], 8));
        CHECK(near(kernel["copy_us"]["median"], 10));
        CHECK(near(kernel["to_copy"], 0.8));
        CHECK(near(kernel["gb_per_s"], kernel["bytes"].get<double>() / 8e3));
        CHECK(kernel["threads"].is_null());
        CHECK(kernel["launches"].get<unsigned>() % kernel["sets"].get<unsigned>() == 0);
    }
    // Rows, weight, codes, scales.
    const std::uint64_t bytes = 4096 * 128 * 2 + 128 * 2 + 4096 * 128 / 2 + 4096 * 128 / 16;
    CHECK(kernels[0]["bytes"] == bytes);
    CHECK(kernels[1]["bytes"] == bytes);
    CHECK(kernels[0]["inputs"] == "memory");
    CHECK(kernels[0]["sets"] == ((4u << 20) + bytes - 1) / bytes);
    CHECK(kernels[2]["rows"] == 64);
    CHECK(kernels[2]["inputs"] == "l2");
    CHECK(kernels[2]["sets"] == 1);
    CHECK(kernels[2]["cluster"] == nlohmann::json({1, 1, 1}));
    // Padding rows have blocks too.
    CHECK(kernels[3]["grid"][0].get<unsigned>() > kernels[2]["grid"][0].get<unsigned>());
}

TEST_CASE("formats and types reach the kernel, and count") {
    const auto json = figures({"--shape", "256x1", "--layout", "linear", "--dtype", "fp16", "--weight-dtype", "fp32",
                               "--format", "mxfp4", "--scale", "e4m3", "--part", "kernels"});
    CHECK(json["problem"]["dtype"] == "fp16");
    CHECK(json["problem"]["weight_dtype"] == "fp32");
    CHECK(json["problem"]["format"] == "e4m3/32");
    REQUIRE(json["kernels"].size() == 1);
    CHECK(json["kernels"][0]["bytes"] == 256 * 2 + 256 * 4 + 256 / 2 + 256 / 32);
}

TEST_CASE("--inputs beats the rule of rows, where it can be done") {
    CHECK(figures({"--shape", "2048x1", "--inputs", "memory", "--part", "kernels"})["kernels"][0]["sets"] == 449);
    CHECK(figures({"--shape", "2048x65", "--inputs", "l2", "--part", "kernels"})["kernels"][0]["inputs"] == "l2");
    refused({"--shape", "16x1", "--inputs", "memory"}, "--inputs memory: 16x1 moves 73 bytes, too few");
    refused({"--shape", "4096x64", "--inputs", "l2"}, "--inputs l2: 4096x64 moves");
    // By the rule it would be l2, which is too small for it here.
    CHECK(figures({"--shape", "4096x64", "--part", "kernels"})["kernels"][0]["inputs"] == "memory");
}

TEST_CASE("--threads adds plan overrides to what is chosen") {
    const auto threads = [](const std::string& option) {
        nlohmann::json list = nlohmann::json::array();
        const auto json =
            figures({"--shape", "2048x1", "--layout", "linear", "--threads", option, "--part", "kernels"});
        for (const auto& kernel : json["kernels"]) list.push_back(kernel["threads"]);
        return list;
    };
    CHECK(threads("all") == nlohmann::json({nullptr, 32, 64, 128, 256}));
    CHECK(threads("64") == nlohmann::json({nullptr, 64}));
    refused({"--shape", "4096x1,2048x1", "--threads", "512"},
            "--threads '512' does not go with a row length of 2048: choose all, or one of 32, 64, 128, 256");
    refused({"--threads", "many"}, "--threads 'many' is not accepted");
    refused({"--threads", "0"}, "--threads '0' is not accepted");
    const auto figure = [](std::vector<std::string> options) {
        std::vector<std::string> arguments = {"--shape", "2048x1", "--layout", "linear", "--threads", "128", "--part", "kernels"};
        arguments.insert(arguments.end(), options.begin(), options.end());
        return figures(arguments)["kernels"][1];
    };
    CHECK(figure({"--variant", "split"})["grid"] == nlohmann::json({1, 2, 1}));
    CHECK(figure({"--variant", "split"})["variant"] == "split");
    CHECK(figure({"--variant", "latency"})["block_threads"] == 128);
    CHECK(figure({"--cluster", "4"})["block_threads"] == 32);
    CHECK(figure({"--cluster", "4"})["grid"] == nlohmann::json({1, 4, 1}));
    refused({"--variant", "fast"}, "--variant 'fast' is not accepted: choose one of throughput, latency, split");
    refused({"--shape", "2048x1", "--cluster", "2"}, "--variant and --cluster say more of --threads, which is missing");
    refused({"--shape", "2048x1", "--threads", "128", "--cluster", "3"}, "cluster_size is 3");
}

TEST_CASE("the host's costs: a compile lies within its prepare, and the environment does not interfere") {
    const TempDirectory d;
    const auto json = figures({"--shape", "2048x1", "--part", "host"}, {"TMPDIR=" + d.path(), "NORMQUANT_JIT=off"});
    CHECK_FALSE(json.contains("kernels"));
    const auto& host = json["host"];
    CHECK(host["variants"] == 3);
    for (const char* pair : {"cold_one_to_compile", "cold_all_to_slowest_compile"}) CHECK(host[pair].get<double>() > 1);
    for (const char* cost : {"cold_one_us", "cold_one_compile_us", "cold_all_us", "slowest_compile_us", "warm_us",
                             "memory_us", "launch_us", "raw_us", "raw_kernel_us"}) {
        CHECK(host[cost]["p10"].get<double>() > 0);
        CHECK(host[cost]["p10"].get<double>() <= host[cost]["median"].get<double>());
        CHECK(host[cost]["median"].get<double>() <= host[cost]["p90"].get<double>());
    }
    CHECK(host["launch_to_raw"].get<double>() > 0);
    CHECK(std::filesystem::is_empty(d.path()));

    // Nothing is kept, so nothing can be warm.
    const ToolResult unkept = bench({"--part", "host"}, {"TMPDIR=" + d.path(), "NORMQUANT_CACHE_READONLY=on"});
    CHECK(unkept.exit_code == 1);
    CHECK(unkept.err.find("a warm prepare compiled again") != std::string::npos);
    CHECK(std::filesystem::is_empty(d.path()));
}

TEST_CASE("a residual, y and overlapping launches are timed beside what they must move") {
    const auto json = figures({"--shape", "2048x1,4096x2", "--op", "add_rmsnorm", "--y-out", "--layout", "both,linear", "--overlap", "--part", "kernels"});
    CHECK(json["problem"]["op"] == "add_rmsnorm");
    CHECK(json["problem"]["y_out"] == true);
    const auto& kernels = json["kernels"];
    REQUIRE(kernels.size() == 8);
    for (std::size_t i = 0; i < kernels.size(); ++i) {
        const std::uint64_t elements = i < 4 ? 2048 : 8192, hidden = i < 4 ? 2048 : 4096;
        CHECK(kernels[i]["layout"] == (i % 4 < 2 ? "both" : "linear"));
        CHECK(kernels[i]["overlap"] == (i % 2 == 1));
        // x, the residual in and out and y, the weight, codes and scales.
        CHECK(kernels[i]["bytes"] == 2 * 4 * elements + 2 * hidden + elements / 2 + elements / 16);
    }
    const auto host = figures({"--part", "host", "--op", "add_rmsnorm", "--y-out", "--layout", "both", "--overlap"});
    CHECK(host["host"]["launch_to_raw"].get<double>() > 0);
    refused({"--op", "layernorm"}, "--op 'layernorm' is not accepted: choose one of rmsnorm, add_rmsnorm");
}

TEST_CASE("CSV has a line a kernel") {
    const ToolResult result = bench({"--shape", "2048x1", "--layout", "swizzled", "--threads", "64", "--csv"});
    REQUIRE(result.exit_code == 0);
    std::istringstream lines(result.out);
    std::string header, chosen, forced, more;
    std::getline(lines, header);
    std::getline(lines, chosen);
    std::getline(lines, forced);
    CHECK_FALSE(std::getline(lines, more));
    CHECK(header.find("hidden,rows,op,y_out,dtype,weight_dtype,format,layout,overlap,inputs,threads,us,") == 0);
    CHECK(chosen.find("2048,1,rmsnorm,0,bf16,bf16,nvfp4,swizzled,0,l2,auto,8") == 0);
    CHECK(forced.find("2048,1,rmsnorm,0,bf16,bf16,nvfp4,swizzled,0,l2,64,8") == 0);
    for (const std::string& line : {chosen, forced})
        CHECK(std::count(line.begin(), line.end(), ',') == std::count(header.begin(), header.end(), ','));
    refused({"--csv", "--part", "host"}, "--csv has the kernels alone");
    CHECK(bench({"--csv", "--json"}).err.find("--csv and --json are two forms") != std::string::npos);
}

TEST_CASE("the table for people") {
    const ToolResult result = bench({"--shape", "2048x1", "--layout", "linear"});
    REQUIRE(result.exit_code == 0);
    CHECK(result.out.find("normquant bench on Fake GPU: sm_90, 132 SMs, L2 1 MiB") == 0);
    CHECK(result.out.find("\n    2048       1 linear    l2        auto      8.00         8.00 - 8.00      1      4.00   "
                          " 0.500    2.00") != std::string::npos);
    CHECK(result.out.find("\n  nq_prepare, from the disk cache ") != std::string::npos);
    CHECK(result.err == "[1/1] 2048x1\n");
}

TEST_CASE("bad options are named, with what is accepted") {
    for (const char* shape : {"2048", "2048x", "x8", "2048x0", "2048x-1", "2048x8s", "2048x2147483648", "4k x 8"})
        refused({"--shape", shape}, "--shape '" + std::string(shape) + "' is not HxM");
    refused({"--shape", "40x8"}, "--shape '40x8': ");
    refused({"--shape", "2064x8", "--format", "mxfp4"}, "--shape '2064x8': ");
    refused({"--layout", "tiled"}, "--layout 'tiled' is not accepted: choose one of linear, swizzled, both");
    refused({"--inputs", "l3"}, "--inputs 'l3' is not accepted: choose one of memory, l2");
    refused({"--part", "device"}, "--part 'device' is not accepted: choose one of all, kernels, host");
    refused({"--replays", "0"}, "--replays '0' is not a whole number from 1 to 10000");
    refused({"--weight-dtype", "int8"}, "--weight-dtype 'int8' is not accepted: choose one of same, fp32");
    refused({"--format", "fp8"}, "--format 'fp8'");
    refused({"--dtype", "fp32"}, "--dtype 'fp32'");
}

TEST_CASE("without a GPU, or without NVRTC for the floor kernels, bench fails and says so") {
    const ToolResult no_gpu = run_tool({"bench", "--json"});
    CHECK(no_gpu.exit_code == 1);
    CHECK(no_gpu.json()["error"]["message"].get<std::string>().find("(bench times kernels on a GPU)") !=
          std::string::npos);
    const ToolResult no_nvrtc = bench({"--shape", "2048x1"}, {"NORMQUANT_NVRTC=/nonexistent/libnvrtc.so"});
    CHECK(no_nvrtc.exit_code == 1);
    CHECK(no_nvrtc.err.find("/nonexistent/libnvrtc.so") != std::string::npos);
}

TEST_CASE("spread: median, tenth and ninetieth percentile of unsorted values") {
    const nq::cli::Spread one = nq::cli::spread({3});
    CHECK((one.median == 3 && one.p10 == 3 && one.p90 == 3));
    const nq::cli::Spread eleven = nq::cli::spread({10, 0, 9, 1, 8, 2, 7, 3, 6, 4, 5});
    CHECK(eleven.p10 == 1);
    CHECK(eleven.median == 5);
    CHECK(eleven.p90 == 9);
}
