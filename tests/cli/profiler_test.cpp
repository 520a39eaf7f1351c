// Ranges in the timeline of a profiler that is attached.
#include "file_samples.h"
#include "support/catch.h"
#include "support/temp_directory.h"
#include "tool.h"

#include <algorithm>
#include <sstream>

using namespace nq::test;
using nq::cli::Element;

TEST_CASE("a profiler sees what prepare, compiles and load take") {
    const TempDirectory d;
    save(d / "x.npy", npy(npy_dictionary("<f2", "(3, 64)"), values(Element::fp16, 192, 1)));
    save(d / "w.npy", npy(npy_dictionary("<f2", "(64,)"), values(Element::fp16, 64, 2)));
    const std::vector<std::string> quantize{"quantize", "--input", d / "x.npy", "--weight", d / "w.npy", "--out", d / "out", "--device", "gpu"};
    const ToolResult result = run_tool(quantize, {"NORMQUANT_LIBCUDA=" NORMQUANT_FAKE_GPU, "NORMQUANT_NVRTC=" NORMQUANT_FAKE_NVRTC,
                                                  "NVTX_INJECTION64_PATH=" NORMQUANT_FAKE_PROFILER, "FAKE_PROFILER_FILE=" + (d / "ranges")});
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    const Blob bytes = read(d / "ranges");
    std::istringstream stream(std::string(bytes.begin(), bytes.end()));
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    const auto starting = [&](const std::string& text) {
        return std::ranges::count_if(lines, [&](const std::string& line) { return line.starts_with(text); });
    };
    REQUIRE(lines.size() > 4);
    CHECK(lines[0] == "domain normquant");
    CHECK(lines[1].starts_with("prepare op=rmsnorm hidden=64 "));
    CHECK(starting("prepare ") == 1);
    CHECK(starting("load ") == 1);
    CHECK(starting("compile op=rmsnorm hidden=64 ") >= 2);
    CHECK(starting("end") == static_cast<std::ptrdiff_t>(lines.size()) / 2);
    CHECK(lines.size() % 2 == 1);  // the domain, then ranges with their ends
}
