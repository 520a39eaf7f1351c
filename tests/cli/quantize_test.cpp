// normquant quantize from outside: files in, bytes out, compared with the C API's reference called here.
#include "file_samples.h"
#include "reference/numerics.h"
#include "support/catch.h"
#include "support/temp_directory.h"
#include "tool.h"

#include <normquant/normquant.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>

using namespace nq::test;
using nq::cli::Element;

namespace {

constexpr std::size_t kRows = 5;
constexpr std::size_t kHidden = 96;

struct Expected {
    Blob fp4;
    Blob scales;
};

Expected reference(const nq_problem& problem, std::size_t rows, const Blob& x, const Blob& weight, float eps,
                   std::optional<float> global_scale) {
    std::size_t fp4_bytes = 0;
    std::size_t scale_bytes = 0;
    REQUIRE(nq_fp4_bytes(&problem, static_cast<std::int64_t>(rows), &fp4_bytes) == NQ_OK);
    REQUIRE(nq_scale_bytes(&problem, static_cast<std::int64_t>(rows), &scale_bytes) == NQ_OK);
    Expected expected{Blob(fp4_bytes), Blob(scale_bytes)};
    nq_tensors tensors = NQ_TENSORS_INIT;
    tensors.rows = static_cast<std::int64_t>(rows);
    tensors.eps = eps;
    tensors.x = x.data();
    tensors.weight = weight.data();
    tensors.global_scale = global_scale ? &*global_scale : nullptr;
    tensors.fp4 = expected.fp4.data();
    tensors.scales = expected.scales.data();
    REQUIRE(nq_reference(&problem, &tensors, 1) == NQ_OK);
    return expected;
}

nq_problem problem_of(std::uint32_t dtype, std::uint32_t weight_dtype, std::uint32_t block, std::uint32_t scale,
                      std::uint32_t layout) {
    nq_problem problem = NQ_PROBLEM_INIT;
    problem.hidden = kHidden;
    problem.dtype = dtype;
    problem.weight_dtype = weight_dtype;
    problem.block_size = block;
    problem.scale_format = scale;
    problem.scale_layout = layout;
    return problem;
}

// Data and shape of a uint8 .npy file; the header's text is compared whole.
Blob uint8_array(const std::string& path, const std::string& shape) {
    const Blob file = read(path);
    REQUIRE(file.size() >= 64);
    const std::size_t begin = 10u + file[8] + 256u * file[9];
    const std::string dictionary(file.begin() + 10, file.begin() + static_cast<std::ptrdiff_t>(begin));
    CHECK(dictionary.find("{'descr': '|u1', 'fortran_order': False, 'shape': " + shape + ", }") == 0);
    return {file.begin() + static_cast<std::ptrdiff_t>(begin), file.end()};
}

struct Fixture {
    TempDirectory directory;
    Blob x16 = values(Element::fp16, kRows* kHidden, 1);
    Blob xb16 = values(Element::bf16, kRows* kHidden, 1);
    Blob x32 = values(Element::fp32, kRows* kHidden, 1);
    Blob w16 = values(Element::fp16, kHidden, 2);
    Blob wb16 = values(Element::bf16, kHidden, 2);
    Blob w32 = values(Element::fp32, kHidden, 2);

    Fixture() {
        save(directory / "x16.npy", npy(npy_dictionary("<f2", "(5, 96)"), x16));
        save(directory / "xb16.npy", npy(npy_dictionary("<u2", "(5, 96)"), xb16));
        save(directory / "xv16.npy", npy(npy_dictionary("|V2", "(1, 5, 96)"), xb16, 2));
        save(directory / "x32.npy", npy(npy_dictionary("<f4", "(5, 96)"), x32));
        save(directory / "w16.npy", npy(npy_dictionary("<f2", "(96,)"), w16));
        save(directory / "wb16.npy", npy(npy_dictionary("<u2", "(96,)"), wb16));
        save(directory / "w32.npy", npy(npy_dictionary("<f4", "(96,)"), w32));
        Blob both = xb16;
        both.insert(both.end(), w32.begin(), w32.end());
        save(directory / "model.safetensors",
             safetensors(R"({"hidden":{"dtype":"BF16","shape":[5,96],"data_offsets":[0,960]},)"
                         R"("norm":{"dtype":"F32","shape":[96],"data_offsets":[960,1344]}})",
                         both));
    }

    std::string out() const { return directory / "made/here"; }

    ToolResult quantize(const std::string& input, const std::string& weight, std::vector<std::string> more = {}) const {
        std::vector<std::string> arguments{"quantize", "--input", directory / input, "--weight", directory / weight,
                                           "--out",    out()};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return run_tool(arguments);
    }
};

void check_outputs(const Fixture& fixture, const nq_problem& problem, const Expected& expected) {
    const std::string nb = std::to_string(problem.hidden / problem.block_size);
    const bool linear = problem.scale_layout == NQ_LAYOUT_LINEAR;
    const std::string scale_shape = linear ? "(5, " + nb + ")" : "(" + std::to_string(expected.scales.size()) + ",)";
    CHECK(uint8_array(fixture.out() + "/fp4.npy", "(5, 48)") == expected.fp4);
    CHECK(uint8_array(fixture.out() + "/scales.npy", scale_shape) == expected.scales);
}

}  // namespace

TEST_CASE("quantize: the reference's bytes, for every input type, format and layout") {
    const Fixture f;
    struct Case {
        const char* input;
        const char* weight;
        std::vector<std::string> options;
        nq_problem problem;
        const Blob* x;
        const Blob* w;
        std::optional<float> global_scale;
    };
    const std::vector<Case> cases = {
        {"x16.npy",
         "w16.npy",
         {"--global-scale", "12.5"},
         problem_of(NQ_FP16, NQ_FP16, 16, NQ_SCALE_E4M3, NQ_LAYOUT_LINEAR),
         &f.x16,
         &f.w16,
         12.5f},
        {"x16.npy",
         "w32.npy",
         {"--format", "mxfp4"},
         problem_of(NQ_FP16, NQ_FP32, 32, NQ_SCALE_UE8M0, NQ_LAYOUT_LINEAR),
         &f.x16,
         &f.w32,
         std::nullopt},
        {"xb16.npy",
         "wb16.npy",
         {"--dtype", "bf16", "--format", "mxfp4", "--layout", "swizzled"},
         problem_of(NQ_BF16, NQ_BF16, 32, NQ_SCALE_UE8M0, NQ_LAYOUT_SWIZZLED),
         &f.xb16,
         &f.wb16,
         std::nullopt},
        {"xv16.npy",
         "w32.npy",
         {"--dtype", "bf16", "--layout", "swizzled", "--global-scale", "1"},
         problem_of(NQ_BF16, NQ_FP32, 16, NQ_SCALE_E4M3, NQ_LAYOUT_SWIZZLED),
         &f.xb16,
         &f.w32,
         1.0f},
        {"x32.npy",
         "w16.npy",
         {"--dtype", "fp16", "--block", "32", "--global-scale", "3"},
         problem_of(NQ_FP16, NQ_FP16, 32, NQ_SCALE_E4M3, NQ_LAYOUT_LINEAR),
         &f.x16,
         &f.w16,
         3.0f},
        {"x32.npy",
         "w32.npy",
         {"--scale", "ue8m0"},
         problem_of(NQ_BF16, NQ_FP32, 16, NQ_SCALE_UE8M0, NQ_LAYOUT_LINEAR),
         &f.xb16,
         &f.w32,
         std::nullopt},
        {"model.safetensors:hidden",
         "model.safetensors:norm",
         {"--global-scale", "40"},
         problem_of(NQ_BF16, NQ_FP32, 16, NQ_SCALE_E4M3, NQ_LAYOUT_LINEAR),
         &f.xb16,
         &f.w32,
         40.0f},
    };
    for (const Case& c : cases) {
        INFO(c.input << " " << c.weight);
        const ToolResult result = f.quantize(c.input, c.weight, c.options);
        INFO(result.err);
        REQUIRE(result.exit_code == 0);
        check_outputs(f, c.problem, reference(c.problem, kRows, *c.x, *c.w, 1e-6f, c.global_scale));
    }
}

TEST_CASE("quantize: eps is used, and the report says what was done") {
    const Fixture f;
    const ToolResult result =
        f.quantize("x32.npy", "w16.npy", {"--eps", "0.25", "--global-scale", "8", "--json", "--verify"});
    REQUIRE(result.exit_code == 0);
    // The fp16 weight meets bf16 rows: it is widened, which changes no value.
    Blob widened;
    for (std::size_t i = 0; i < kHidden; ++i) {
        std::uint16_t half = 0;
        std::memcpy(&half, f.w16.data() + 2 * i, 2);
        const float value = nq::numerics::from_fp16(half);
        unsigned char raw[4];
        std::memcpy(raw, &value, 4);
        widened.insert(widened.end(), raw, raw + 4);
    }
    const nq_problem problem = problem_of(NQ_BF16, NQ_FP32, 16, NQ_SCALE_E4M3, NQ_LAYOUT_LINEAR);
    check_outputs(f, problem, reference(problem, kRows, f.xb16, widened, 0.25f, 8.0f));
    const auto json = result.json();
    CHECK(json["problem"]["rows"] == 5);
    CHECK(json["problem"]["format"] == "nvfp4");
    CHECK(json["problem"]["eps"] == 0.25);
    CHECK(json["problem"]["global_scale"] == 8);
    CHECK(json["path"]["device"] == "cpu");
    CHECK(json["verify"].get<std::string>().find("nothing to compare") == 0);
    CHECK(json["quality"]["snr_db"].get<double>() > 10);
    CHECK(json["notes"][0].get<std::string>().find("rounded from float32 to bf16") != std::string::npos);
    CHECK(json["notes"][1].get<std::string>().find("widened from fp16 to float32") != std::string::npos);
    const Blob report = read(f.out() + "/report.json");
    CHECK(nlohmann::json::parse(report) == json);
    CHECK(result.err.find("no GPU, computing on the CPU: ") != std::string::npos);
    CHECK(std::distance(std::filesystem::directory_iterator(f.out()), {}) == 3);
}

TEST_CASE("quantize: the automatic global scale reaches the top of both formats") {
    const Fixture f;
    const ToolResult result = f.quantize("x16.npy", "w16.npy", {"--device", "cpu", "--json"});
    REQUIRE(result.exit_code == 0);
    CHECK(result.err.empty());
    const float global_scale = result.json()["problem"]["global_scale"].get<float>();
    const nq_problem problem = problem_of(NQ_FP16, NQ_FP16, 16, NQ_SCALE_E4M3, NQ_LAYOUT_LINEAR);
    const Expected expected = reference(problem, kRows, f.x16, f.w16, 1e-6f, global_scale);
    check_outputs(f, problem, expected);
    CHECK(*std::max_element(expected.scales.begin(), expected.scales.end()) == 0x7e);
    // All zeros: there is no largest value, and the scale is 1.
    save(f.directory / "zeros.npy", npy(npy_dictionary("<f2", "(2, 96)"), Blob(384)));
    const ToolResult zeros = f.quantize("zeros.npy", "w16.npy", {"--json"});
    REQUIRE(zeros.exit_code == 0);
    CHECK(zeros.json()["problem"]["global_scale"] == 1);
    CHECK(zeros.json()["quality"]["snr_db"].is_null());
}

TEST_CASE("quantize: one row, no rows, and text output") {
    const Fixture f;
    save(f.directory / "row.npy", npy(npy_dictionary("<f2", "(96,)"), values(Element::fp16, 96, 3)));
    const ToolResult row = f.quantize("row.npy", "w16.npy");
    CHECK(row.exit_code == 0);
    CHECK(row.out.find("normquant quantize: 1 rows of 96 fp16 -> nvfp4, linear scales\n") == 0);
    CHECK(row.out.find("SNR ") != std::string::npos);
    CHECK(uint8_array(f.out() + "/fp4.npy", "(1, 48)").size() == 48);
    save(f.directory / "none.npy", npy(npy_dictionary("<f2", "(0, 96)"), {}));
    CHECK(f.quantize("none.npy", "w16.npy", {"--layout", "swizzled"}).exit_code == 0);
    CHECK(uint8_array(f.out() + "/fp4.npy", "(0, 48)").empty());
    CHECK(uint8_array(f.out() + "/scales.npy", "(0,)").empty());
}

TEST_CASE("quantize: hidden states of a real model") {
    const TempDirectory directory;
    const std::string states = std::string(NORMQUANT_TEST_DATA) + "/smollm2/hidden_states.safetensors";
    for (const std::string layer : {"0", "15", "29"}) {
        for (const std::string format : {"nvfp4", "mxfp4"}) {
            const ToolResult result = run_tool({"quantize", "--input", states + ":layer" + layer + ".input", "--weight",
                                                states + ":layer" + layer + ".attn_norm", "--format", format, "--eps",
                                                "1e-5", "--out", directory.path(), "--json"});
            INFO(result.err);
            REQUIRE(result.exit_code == 0);
            const auto json = result.json();
            // Measured: 20.7 to 21.5 dB and 15.2 to 16.2 dB. A wrong layout, nibble order or scale is near 0.
            CHECK(json["quality"]["snr_db"].get<double>() > (format == "nvfp4" ? 20 : 15));
            // The widest step is 4 to 6, so no code is off by more than 1. A block's maximum that is 5 or more then
            // bounds the ratio by 1/5; with a scale that puts it at 6, less E4M3's rounding of 1/16, by 1/5.6.
            CHECK(json["quality"]["max_error_over_block_max"].get<double>() < (format == "nvfp4" ? 0.18 : 0.201));
            CHECK(json["quality"]["rows_left_out"] == 0);
        }
    }
}
