// The GPU path of the tool, on a driver whose kernels write nothing: whatever is compared must be found different.
#include "file_samples.h"
#include "support/catch.h"
#include "support/temp_directory.h"
#include "tool.h"

using namespace nq::test;
using nq::cli::Element;

namespace {

const std::vector<std::string> kFakes{"NORMQUANT_LIBCUDA=" NORMQUANT_FAKE_GPU, "NORMQUANT_NVRTC=" NORMQUANT_FAKE_NVRTC};

struct Fixture {
    TempDirectory directory;

    Fixture() {
        save(directory / "x.npy", npy(npy_dictionary("<f2", "(3, 64)"), values(Element::fp16, 192, 1)));
        save(directory / "none.npy", npy(npy_dictionary("<f2", "(0, 64)"), {}));
        save(directory / "w.npy", npy(npy_dictionary("<f2", "(64,)"), values(Element::fp16, 64, 2)));
    }

    ToolResult quantize(const std::string& input, std::vector<std::string> more,
                        std::vector<std::string> settings = {}) const {
        std::vector<std::string> arguments{"quantize",          "--input", directory / input, "--weight",
                                           directory / "w.npy", "--out",   directory / "out", "--json"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        settings.insert(settings.begin(), kFakes.begin(), kFakes.end());
        return run_tool(arguments, settings);
    }
};

}  // namespace

TEST_CASE("--verify finds bytes that the kernel did not write, and exits with 1") {
    const Fixture f;
    const ToolResult result = f.quantize("x.npy", {"--verify"});
    INFO(result.err);
    CHECK(result.exit_code == 1);
    const std::string verdict = result.json()["verify"].get<std::string>();
    CHECK(verdict.find("MISMATCH: fp4: ") == 0);
    CHECK(verdict.find("of 96 bytes differ, the first at 0: 0xa5 where the reference has") != std::string::npos);
    CHECK(verdict.find("; scales: 12 of 12 bytes differ") != std::string::npos);
    CHECK(result.err.find("leaked") == std::string::npos);
}

TEST_CASE("without --verify the GPU's bytes are what is written") {
    const Fixture f;
    const ToolResult result = f.quantize("x.npy", {"--device", "gpu"});
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    const auto path = result.json()["path"];
    CHECK(path["device"] == "gpu");
    CHECK(path["name"] == "Fake GPU");
    CHECK(path["seconds"].get<double>() == 1e-3 / 20);  // a batch of 20 launches takes the fake 1 ms
    CHECK(path["gb_per_s"].get<double>() > 0);
    CHECK(result.json()["verify"].is_null());
    const Blob fp4 = read(f.directory / "out/fp4.npy");
    CHECK(Blob(fp4.end() - 96, fp4.end()) == Blob(96, 0xa5));
    CHECK(result.err.empty());
}

TEST_CASE("no rows on a GPU: nothing is launched and nothing differs") {
    const Fixture f;
    const ToolResult result = f.quantize("none.npy", {"--device", "gpu", "--verify"});
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    CHECK(result.json()["verify"].get<std::string>().find("equal") == 0);
    CHECK(result.json()["path"]["gb_per_s"].is_null());
}

TEST_CASE("--device cpu does not touch the GPU that is there") {
    const Fixture f;
    const ToolResult result = f.quantize("x.npy", {"--device", "cpu"});
    CHECK(result.exit_code == 0);
    CHECK(result.json()["path"]["device"] == "cpu");
    CHECK(result.err.empty());
}

TEST_CASE("--device auto takes the CPU where the GPU's kernel cannot be made, and says so; --device gpu fails") {
    const Fixture f;
    const std::vector<std::string> no_nvrtc{"NORMQUANT_NVRTC=/nonexistent/libnvrtc.so"};
    const ToolResult result = f.quantize("x.npy", {"--device", "auto"}, no_nvrtc);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    CHECK(result.json()["path"]["device"] == "cpu");
    CHECK(result.err.find("no kernel for the GPU, computing on the CPU: ") != std::string::npos);
    CHECK(result.err.find("leaked") == std::string::npos);
    const Blob automatic = read(f.directory / "out/fp4.npy");
    REQUIRE(f.quantize("x.npy", {"--device", "cpu"}).exit_code == 0);
    CHECK(read(f.directory / "out/fp4.npy") == automatic);
    CHECK(f.quantize("x.npy", {"--device", "gpu"}, no_nvrtc).exit_code == 1);
    // Any other failure is one.
    CHECK(f.quantize("x.npy", {"--device", "auto"}, {"NORMQUANT_JIT=off"}).exit_code == 1);
}

TEST_CASE("info lists the device, and the self-test fails on every problem") {
    const ToolResult info = run_tool({"info", "--json"}, kFakes);
    REQUIRE(info.exit_code == 0);
    const auto devices = info.json()["devices"];
    REQUIRE(devices.size() == 1);
    CHECK(devices[0]["name"] == "Fake GPU");
    CHECK(devices[0]["compute_capability"] == "9.0");
    CHECK(devices[0]["target"] == "sm_90");
    CHECK(devices[0]["fp4_conversion"] == "software");

    const ToolResult tested = run_tool({"info", "--self-test", "--json"}, kFakes);
    CHECK(tested.exit_code == 1);
    const auto self_test = tested.json()["self_test"];
    CHECK(self_test["ran"] == true);
    CHECK(self_test["passed"] == 0);
    CHECK(self_test["cases"].size() == 12);
    CHECK(self_test["cases"][0]["message"].get<std::string>().find("bytes differ") != std::string::npos);
    CHECK(tested.err.find("leaked") == std::string::npos);
}
