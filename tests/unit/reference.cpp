// What the reference means, case by case. The bytes as such are pinned by the golden vectors.
#include "reference/reference.h"

#include "reference/numerics.h"
#include "support/numerics.h"

#include "support/catch.h"

#include <normquant/geometry.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

using namespace nq;
using namespace nq::test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A row of ones and eps = 0 give rstd = 1 where hidden is a power of two, so that fp32 weights are the normed row
// itself.
struct Normed {
    Problem problem;
    Outputs out;
};
Normed quantize_normed(const std::vector<float>& y, ScaleFormat format, std::uint32_t block_size,
                       std::optional<float> global_scale = {}) {
    Normed result;
    result.problem = {.hidden = static_cast<std::uint32_t>(y.size()),
                      .weight_dtype = DType::fp32,
                      .block_size = block_size,
                      .scale_format = format};
    Inputs inputs;
    inputs.rows = 1;
    inputs.eps = 0;
    inputs.global_scale = global_scale;
    inputs.x = encode(DType::bf16, std::vector<float>(y.size(), 1.0f));
    inputs.weight = encode(DType::fp32, y);
    result.out = run_reference(result.problem, inputs);
    REQUIRE(result.out.rstd == std::vector<std::uint32_t>{0x3f800000});
    return result;
}

std::vector<float> gaussian(std::size_t count, float deviation, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> distribution(0, deviation);
    std::vector<float> values(count);
    for (float& value : values) value = distribution(random);
    return values;
}

Inputs random_inputs(const Problem& problem, std::int64_t rows, unsigned seed) {
    Inputs inputs;
    inputs.rows = rows;
    const auto elements = static_cast<std::size_t>(rows) * problem.hidden;
    inputs.x = encode(problem.dtype, gaussian(elements, 1.0f, seed));
    inputs.weight = encode(problem.weight_dtype, gaussian(problem.hidden, 0.5f, seed + 1));
    if (problem.op == Op::add_rmsnorm) inputs.residual = encode(problem.dtype, gaussian(elements, 2.0f, seed + 2));
    if (problem.scale_format == ScaleFormat::e4m3) inputs.global_scale = 37.5f;
    return inputs;
}

HostTensors tensors_for(const Problem& problem, const Inputs& inputs, Outputs& out) {
    out.fp4.assign(fp4_bytes(problem, inputs.rows), 0xab);
    out.scales.assign(scale_bytes(problem, inputs.rows), 0xab);
    HostTensors tensors;
    tensors.rows = inputs.rows;
    tensors.eps = inputs.eps;
    tensors.x = inputs.x.data();
    tensors.x_stride = problem.hidden;
    tensors.weight = inputs.weight.data();
    tensors.global_scale = inputs.global_scale ? &*inputs.global_scale : nullptr;
    tensors.fp4 = out.fp4.data();
    tensors.fp4_stride = problem.hidden / 2;
    tensors.scales = out.scales.data();
    return tensors;
}

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

}  // namespace

TEST_CASE("tree width: the table, and the kernel's geometry for every hidden") {
    struct Row {
        std::uint32_t hidden, threads;
    };
    for (const Row& row : {Row{16, 1}, Row{32, 1}, Row{48, 1}, Row{576, 8}, Row{2048, 32}, Row{2880, 64}, Row{4096, 64},
                           Row{5120, 64}, Row{7168, 64}, Row{8192, 128}, Row{14336, 128}, Row{16384, 256},
                           Row{32768, 256}, Row{32784, 256}, Row{131072, 256}}) {
        CAPTURE(row.hidden);
        CHECK(reference_tree_threads(row.hidden) == row.threads);
    }
    for (std::uint32_t hidden = 16; hidden <= kMaxHidden; hidden += 16) {
        if (reference_tree_threads(hidden) != normquant::tree_threads(hidden)) FAIL("hidden " << hidden);
    }
}

TEST_CASE("the global scale multiplies: it is the encode scale") {
    std::vector<float> y(64, 0.5f);
    y[3] = 4.0f;
    const Normed n = quantize_normed(y, ScaleFormat::e4m3, 16, 672.0f);
    CHECK(scale_of(n.problem, n.out.scales, 0, 0) == 0x7e);  // 672 * 4 / 6 = 448; dividing would give 0x01
    const std::vector<double> restored = dequantize(n.problem, n.out, 1);
    for (std::size_t i = 0; i < y.size(); ++i) {
        CHECK(std::fabs(restored[i] / 672 - static_cast<double>(y[i])) <= 448.0 / 672 * 0.25);
    }
    CHECK(restored[3] / 672 == 4.0);
}

TEST_CASE("any scale format goes with any block size, and gives bytes of its own kind") {
    for (const std::uint32_t block : {16u, 32u}) {
        for (const ScaleFormat format : {ScaleFormat::e4m3, ScaleFormat::ue8m0}) {
            CAPTURE(block, name(format));
            const Normed n = quantize_normed(std::vector<float>(64, 6.0f), format, block);
            CHECK(n.out.scales == Bytes(64 / block, format == ScaleFormat::e4m3 ? 0x38 : 127));  // both are 1
            CHECK(n.out.fp4 == Bytes(32, 0x77));
        }
    }
}

TEST_CASE("fp16 products neither overflow nor underflow") {
    const Problem problem{.hidden = 64, .dtype = DType::fp16, .weight_dtype = DType::fp16};
    Inputs inputs;
    inputs.rows = 1;
    inputs.x = encode(DType::fp16, std::vector<float>(64, 1000.0f));
    inputs.weight = encode(DType::fp16, std::vector<float>(64, 100.0f));
    Outputs out = run_reference(problem, inputs);
    CHECK(out.scales == Bytes(4, 0x58));                                  // E4M3(100 / 6) = 16
    CHECK(dequantize(problem, out, 1) == std::vector<double>(64, 96.0));  // 6 * 16

    inputs.eps = 1e-12f;
    inputs.global_scale = 448.0f * 6 / 2e-4f;
    inputs.x = encode(DType::fp16, std::vector<float>(64, 2e-4f));
    inputs.weight = inputs.x;
    out = run_reference(problem, inputs);
    for (const double restored : dequantize(problem, out, 1)) {
        CHECK(std::fabs(restored / static_cast<double>(*inputs.global_scale) / 2e-4 - 1) < 0.15);
    }

    inputs.x = encode(DType::fp16, std::vector<float>(64, 6e4f));  // squares beyond fp16's range
    out = run_reference(problem, inputs);
    CHECK(std::fabs(static_cast<double>(float_of(out.rstd[0])) * 60000 - 1) < 1e-5);
}

TEST_CASE("an outlier does not spoil the sum of squares") {
    const Problem problem{.hidden = 8192};
    std::vector<float> x(8192, 0.1f);
    x[4711] = 3e4f;
    Inputs inputs;
    inputs.rows = 1;
    inputs.x = encode(DType::bf16, x);
    inputs.weight = encode(DType::bf16, std::vector<float>(8192, 1.0f));
    const Outputs out = run_reference(problem, inputs);
    double sum = 0;
    for (const float v : decode(DType::bf16, inputs.x)) sum += static_cast<double>(v) * static_cast<double>(v);
    CHECK(std::fabs(static_cast<double>(float_of(out.rstd[0])) * std::sqrt(sum / 8192 + 1e-6) - 1) < 1e-6);
    CHECK(std::fabs(static_cast<double>(float_of(out.sum_of_squares[0])) / sum - 1) < 1e-6);
}

TEST_CASE("padding of swizzled scales is zero and nothing else is touched") {
    const std::int64_t rows = GENERATE(1, 7, 127, 128, 129, 255);
    const std::uint32_t blocks = GENERATE(4u, 5u, 6u, 7u, 115u, 116u, 168u, 181u);
    const Problem problem{.hidden = blocks * 16, .scale_layout = ScaleLayout::swizzled};
    CAPTURE(rows, blocks);
    const Inputs inputs = random_inputs(problem, rows, 11);
    const Outputs out = run_reference(problem, inputs, 2, 0x7f);

    Problem linear = problem;
    linear.scale_layout = ScaleLayout::linear;
    const Outputs expected = run_reference(linear, inputs, 2, 0x00);
    CHECK(out.fp4 == expected.fp4);
    const std::int64_t padded_rows = (rows + 127) / 128 * 128;
    std::size_t wrong = 0;
    for (std::int64_t row = 0; row < padded_rows; ++row) {
        for (std::uint32_t block = 0; block < (blocks + 3) / 4 * 4; ++block) {
            const bool real = row < rows && block < blocks;
            const std::uint8_t want = real ? expected.scales[static_cast<std::size_t>(row) * blocks + block] : 0;
            wrong += scale_of(problem, out.scales, row, block) != want;
        }
    }
    CHECK(wrong == 0);
    if (rows == 7) {
        CHECK(run_reference(problem, inputs, 2, 0xff).scales == out.scales);
        CHECK(run_reference(problem, inputs, 2, 0xab).scales == out.scales);
    }
}

TEST_CASE("one row of 80 elements leaves 1019 bytes of padding, zeroed unless told to keep them") {
    const Problem problem{.hidden = 80, .scale_layout = ScaleLayout::swizzled};
    const Inputs inputs = random_inputs(problem, 1, 3);
    Outputs out;
    HostTensors tensors = tensors_for(problem, inputs, out);
    REQUIRE(out.scales.size() == 1024);
    REQUIRE(reference(problem, tensors, 1).ok());
    CHECK(std::count(out.scales.begin(), out.scales.end(), 0) == 1019);
    const Bytes zeroed = out.scales;

    tensors.keep_padding = true;
    std::fill(out.scales.begin(), out.scales.end(), static_cast<unsigned char>(0xab));
    REQUIRE(reference(problem, tensors, 1).ok());
    CHECK(std::count(out.scales.begin(), out.scales.end(), 0xab) == 1019);
    for (std::size_t i = 0; i < zeroed.size(); ++i) CHECK(out.scales[i] == (zeroed[i] == 0 ? 0xab : zeroed[i]));
}

TEST_CASE("nothing is written outside the buffers, and strides are honoured") {
    const Problem problem{
        .op = Op::add_rmsnorm, .hidden = 96, .block_size = 32, .scale_layout = ScaleLayout::swizzled, .y_out = true};
    constexpr std::int64_t kRows = 131;
    const Inputs inputs = random_inputs(problem, kRows, 5);
    const Outputs expected = run_reference(problem, inputs);

    // Rows 2112 elements apart for x and residual, 160 for y_out, 64 bytes for fp4; 0x5a between and behind.
    const auto spread = [](const Bytes& rows, std::size_t width, std::size_t stride) {
        Bytes result(kRows * stride + 4096, 0x5a);
        for (std::size_t row = 0; row < kRows; ++row) std::memcpy(&result[row * stride], &rows[row * width], width);
        return result;
    };
    const Bytes x = spread(inputs.x, 192, 4224);
    Bytes residual = spread(inputs.residual, 192, 4224);
    Bytes fp4 = spread(Bytes(kRows * 48, 0xcc), 48, 64);
    Bytes y_out = spread(Bytes(kRows * 192, 0xcc), 192, 320);
    Bytes scales(expected.scales.size() + 4096, 0x5a);
    const Bytes x_before = x;

    HostTensors tensors;
    tensors.rows = kRows;
    tensors.eps = inputs.eps;
    tensors.x = x.data();
    tensors.x_stride = 2112;
    tensors.weight = inputs.weight.data();
    tensors.global_scale = &*inputs.global_scale;
    tensors.fp4 = fp4.data();
    tensors.fp4_stride = 64;
    tensors.scales = scales.data();
    tensors.residual = residual.data();
    tensors.residual_stride = 2112;
    tensors.y_out = y_out.data();
    tensors.y_out_stride = 160;
    REQUIRE(reference(problem, tensors, 3).ok());
    CHECK(x == x_before);
    CHECK(residual == spread(expected.residual, 192, 4224));
    CHECK(fp4 == spread(expected.fp4, 48, 64));
    CHECK(y_out == spread(expected.y_out, 192, 320));
    Bytes expected_scales = expected.scales;
    expected_scales.resize(scales.size(), 0x5a);
    CHECK(scales == expected_scales);
}

TEST_CASE("a NaN poisons its row and no other") {
    const ScaleFormat format = GENERATE(ScaleFormat::e4m3, ScaleFormat::ue8m0);
    const ScaleLayout layout = GENERATE(ScaleLayout::linear, ScaleLayout::swizzled);
    const Problem problem{.hidden = 128, .block_size = 16, .scale_format = format, .scale_layout = layout};
    Inputs inputs = random_inputs(problem, 3, 21);
    const Outputs clean = run_reference(problem, inputs);
    inputs.x[2 * (128 + 5)] = 0xc1;  // element 5 of row 1: a NaN of either sign
    inputs.x[2 * (128 + 5) + 1] = static_cast<unsigned char>(GENERATE(0x7f, 0xff));
    const Outputs out = run_reference(problem, inputs);

    CHECK(std::isnan(float_of(out.rstd[1])));
    for (std::uint32_t block = 0; block < 8; ++block) {
        CHECK(scale_of(problem, out.scales, 1, block) == (format == ScaleFormat::e4m3 ? 0x7f : 0xff));
    }
    for (std::uint32_t e = 0; e < 128; ++e) CHECK(code_of(problem, out.fp4, 1, e) == 0x7);
    for (const std::int64_t row : {0, 2}) {
        CHECK(out.rstd[static_cast<std::size_t>(row)] == clean.rstd[static_cast<std::size_t>(row)]);
        for (std::uint32_t e = 0; e < 128; ++e)
            CHECK(code_of(problem, out.fp4, row, e) == code_of(problem, clean.fp4, row, e));
        for (std::uint32_t b = 0; b < 8; ++b)
            CHECK(scale_of(problem, out.scales, row, b) == scale_of(problem, clean.scales, row, b));
    }
}

TEST_CASE("an infinity makes its block's scale NaN and the rest of its row zero") {
    const ScaleFormat format = GENERATE(ScaleFormat::e4m3, ScaleFormat::ue8m0);
    const float sign = GENERATE(1.0f, -1.0f);
    const Problem problem{.hidden = 128, .block_size = 32, .scale_format = format};
    Inputs inputs = random_inputs(problem, 2, 22);
    const Outputs clean = run_reference(problem, inputs);
    std::vector<float> x = decode(DType::bf16, inputs.x);
    x[40] = sign * kInfinity;
    inputs.x = encode(DType::bf16, x);
    const Outputs out = run_reference(problem, inputs);
    CHECK(out.rstd[0] == 0);
    for (std::uint32_t block = 0; block < 4; ++block) {
        const std::uint8_t nan = format == ScaleFormat::e4m3 ? 0x7f : 0xff;
        CHECK(scale_of(problem, out.scales, 0, block) == (block == 1 ? nan : 0));
    }
    for (std::uint32_t e = 0; e < 128; ++e) {
        const std::uint8_t code = code_of(problem, out.fp4, 0, e);
        CHECK((e / 32 == 1 ? code == 0x7 : (code & 0x7) == 0));
    }
    CHECK(Bytes(out.fp4.begin() + 64, out.fp4.end()) == Bytes(clean.fp4.begin() + 64, clean.fp4.end()));
    CHECK(Bytes(out.scales.begin() + 4, out.scales.end()) == Bytes(clean.scales.begin() + 4, clean.scales.end()));
}

TEST_CASE("residual add: the stored sum is rounded to nearest even, and it is what is normalized") {
    const Problem add{.op = Op::add_rmsnorm, .hidden = 256, .y_out = true};
    Inputs inputs;
    inputs.rows = 1;
    inputs.x = encode(DType::bf16, std::vector<float>(256, 256.0f));
    inputs.residual = encode(DType::bf16, std::vector<float>(256, 0.5f));  // 256.5 rounds to 256
    inputs.weight = encode(DType::bf16, gaussian(256, 1.0f, 9));
    const Outputs out = run_reference(add, inputs);
    CHECK(out.residual == inputs.x);
    CHECK(out.sum_of_squares == std::vector<std::uint32_t>{std::bit_cast<std::uint32_t>(256.0f * 256 * 256)});

    const Problem plain{.hidden = 256, .y_out = true};
    const Inputs random = random_inputs(add, 64, 31);
    const Outputs summed = run_reference(add, random);
    double error = 0;
    const std::vector<float> x = decode(DType::bf16, random.x), r = decode(DType::bf16, random.residual);
    const std::vector<float> stored = decode(DType::bf16, summed.residual);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(x[i] + r[i]);
        if (stored[i] != float_of((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u)) FAIL("element " << i);
        error += static_cast<double>(stored[i]) - static_cast<double>(x[i] + r[i]);
    }
    CHECK(std::fabs(error / static_cast<double>(x.size())) < 1e-4);  // truncation would leave a bias of about 4e-3

    Inputs normed = random;
    normed.x = summed.residual;
    normed.residual.clear();
    const Outputs expected = run_reference(plain, normed);
    CHECK(summed.fp4 == expected.fp4);
    CHECK(summed.scales == expected.scales);
    CHECK(summed.y_out == expected.y_out);
    CHECK(summed.rstd == expected.rstd);
}

TEST_CASE("a scale in E4M3's subnormals still gives useful codes") {
    const Normed n = quantize_normed(std::vector<float>(64, 0.006f), ScaleFormat::e4m3, 16);
    CHECK(n.out.scales == Bytes(4, 0x01));  // 2^-9
    CHECK(n.out.fp4 == Bytes(32, 0x55));    // 3.072 -> 3
    CHECK(dequantize(n.problem, n.out, 1) == std::vector<double>(64, 3.0 / 512));
}

TEST_CASE("E4M3 scales saturate, also where the block maximum is far beyond") {
    for (const float y : {447.0f * 6, 448.0f * 6, 464.0f * 6, 480.0f * 6, 6e9f, 3e38f}) {
        CAPTURE(y);
        const Normed n = quantize_normed(std::vector<float>(64, y), ScaleFormat::e4m3, 16);
        CHECK(n.out.scales == Bytes(4, 0x7e));
        CHECK(n.out.fp4 == Bytes(32, 0x77));
    }
}

TEST_CASE("the global scale is one fp32, whatever lies behind it") {
    const Problem problem{.hidden = 2048};
    Inputs inputs = random_inputs(problem, 3, 41);
    inputs.global_scale = 2.0f;
    const Outputs expected = run_reference(problem, inputs);
    const auto scale = std::make_unique<float[]>(2);
    scale[0] = 2.0f;
    scale[1] = kNan;
    Outputs out;
    HostTensors tensors = tensors_for(problem, inputs, out);
    tensors.global_scale = scale.get();
    REQUIRE(reference(problem, tensors, 1).ok());
    CHECK(out.scales == expected.scales);
    CHECK(out.fp4 == expected.fp4);
    CHECK(std::count(out.scales.begin(), out.scales.end(), 0) == 0);
}

TEST_CASE("zero rows and zero blocks") {
    const ScaleFormat format = GENERATE(ScaleFormat::e4m3, ScaleFormat::ue8m0);
    const Problem problem{.op = Op::add_rmsnorm, .hidden = 64, .scale_format = format};
    Inputs inputs;
    inputs.rows = 1;
    inputs.x = encode(DType::bf16, std::vector<float>(64, 0.0f));
    inputs.residual = inputs.x;
    inputs.weight = encode(DType::bf16, std::vector<float>(64, 1.0f));

    SECTION("a zero row is zero") {
        const Outputs out = run_reference(problem, inputs);
        CHECK(out.scales == Bytes(4, 0));
        CHECK(out.fp4 == Bytes(32, 0));
        CHECK(out.residual == inputs.residual);
    }
    SECTION("with eps = 0 it is NaN, as 0 * inf") {
        inputs.eps = 0;
        const Outputs out = run_reference(problem, inputs);
        CHECK(out.scales == Bytes(4, format == ScaleFormat::e4m3 ? 0x7f : 0xff));
        CHECK(out.fp4 == Bytes(32, 0x77));
    }
    SECTION("a zero block between two live ones, and negative zeros") {
        std::vector<float> x = gaussian(64, 1.0f, 2);
        std::fill(x.begin() + 16, x.begin() + 32, 0.0f);
        x[17] = -0.0f;
        inputs.x = encode(DType::bf16, x);
        inputs.residual = encode(DType::bf16, std::vector<float>(64, -0.0f));
        const Outputs out = run_reference(problem, inputs);
        CHECK(scale_of(problem, out.scales, 0, 1) == 0);
        for (std::uint32_t e = 16; e < 32; ++e) CHECK(code_of(problem, out.fp4, 0, e) == (e == 17 ? 0x8 : 0x0));
        for (const std::uint32_t block : {0u, 2u, 3u}) CHECK(scale_of(problem, out.scales, 0, block) != 0);
    }
    SECTION("a block of zero weights") {
        std::vector<float> w(64, 1.0f);
        std::fill(w.begin() + 48, w.end(), 0.0f);
        inputs.x = encode(DType::bf16, std::vector<float>(64, -2.0f));
        inputs.weight = encode(DType::bf16, w);
        const Outputs out = run_reference(problem, inputs);
        CHECK(scale_of(problem, out.scales, 0, 3) == 0);
        for (std::uint32_t e = 48; e < 64; ++e) CHECK(code_of(problem, out.fp4, 0, e) == 0x8);
    }
}

TEST_CASE("UE8M0 takes the power of two at or above a sixth of the maximum") {
    struct Row {
        float maximum;
        unsigned scale;
    };
    for (const Row& row :
         {Row{3.0f, 126}, Row{3.5f, 127}, Row{4.0f, 127}, Row{6.0f, 127}, Row{std::nextafter(6.0f, 7.0f), 128},
          Row{7.0f, 128}, Row{8.0f, 128}, Row{12.0f, 128}, Row{12.5f, 129}, Row{0x1p-126f, 0}}) {
        CAPTURE(row.maximum);
        const Normed n = quantize_normed(std::vector<float>(64, row.maximum), ScaleFormat::ue8m0, 32);
        CHECK(n.out.scales == Bytes(2, static_cast<unsigned char>(row.scale)));
    }
}

TEST_CASE("fp32 weights that bf16 can hold change nothing; the weight bias is added in fp32") {
    Problem problem{.hidden = 576};
    Inputs inputs = random_inputs(problem, 5, 51);
    const Outputs narrow = run_reference(problem, inputs);
    const std::vector<float> w = decode(DType::bf16, inputs.weight);
    problem.weight_dtype = DType::fp32;
    inputs.weight = encode(DType::fp32, w);
    const Outputs wide = run_reference(problem, inputs);
    CHECK(wide.fp4 == narrow.fp4);
    CHECK(wide.scales == narrow.scales);

    std::vector<float> biased = w;
    for (float& value : biased) value += 1.0f;
    inputs.weight = encode(DType::fp32, biased);
    const Outputs expected = run_reference(problem, inputs);
    problem.weight_bias_one = true;
    inputs.weight = encode(DType::fp32, w);
    CHECK(run_reference(problem, inputs).fp4 == expected.fp4);
    problem.weight_dtype = DType::bf16;
    inputs.weight = encode(DType::bf16, w);
    const Outputs out = run_reference(problem, inputs);
    CHECK(out.fp4 == expected.fp4);
    CHECK(out.scales == expected.scales);
}

TEST_CASE("codes are those of the rounded scale, and random data is not all zeros") {
    for (const ScaleFormat format : {ScaleFormat::e4m3, ScaleFormat::ue8m0}) {
        const std::uint32_t block = format == ScaleFormat::e4m3 ? 16 : 32;
        const Normed n = quantize_normed(gaussian(4096, 1.0f, 61), format, block,
                                         format == ScaleFormat::e4m3 ? std::optional(100.0f) : std::nullopt);
        const std::vector<float> y = gaussian(4096, 1.0f, 61);
        std::size_t zeros = 0;
        for (std::uint32_t e = 0; e < 4096; ++e) {
            const std::uint8_t byte = scale_of(n.problem, n.out.scales, 0, e / block);
            const double scale =
                format == ScaleFormat::e4m3 ? numerics::from_e4m3(byte) / 100.0 : numerics::from_ue8m0(byte);
            // Nearest to y / scale among all codes, up to a tie's width of rounding error.
            const std::uint8_t code = code_of(n.problem, n.out.fp4, 0, e);
            const double distance =
                std::fabs(static_cast<double>(y[e]) / scale - static_cast<double>(numerics::from_e2m1(code)));
            for (std::uint8_t other = 0; other < 16; ++other) {
                const double beside =
                    std::fabs(static_cast<double>(y[e]) / scale - static_cast<double>(numerics::from_e2m1(other)));
                if (beside < distance - 1e-5) FAIL("element " << e << " is nearer to code " << int{other});
            }
            zeros += (code & 7) == 0;
        }
        CHECK(zeros < 2048);
    }
}

TEST_CASE("blocks up to 28672 times smaller than the largest keep their relative precision") {
    // With the encode scale 448*6/amax a block's scale stays a normal E4M3 number over that range.
    for (const float ratio : {1.0f, 3.0f, 100.0f, 1000.0f, 10000.0f, 28672.0f}) {
        CAPTURE(ratio);
        std::vector<float> y = gaussian(1024, 1.0f, 71);
        for (std::uint32_t block = 0; block < 64; ++block) {  // every block's maximum becomes 1/ratio
            float largest = 0;
            for (std::uint32_t i = 0; i < 16; ++i) largest = std::max(largest, std::fabs(y[block * 16 + i]));
            for (std::uint32_t i = 0; i < 16; ++i) y[block * 16 + i] /= largest * ratio;
        }
        const Normed n = quantize_normed(y, ScaleFormat::e4m3, 16, 448.0f * 6);
        const std::vector<double> restored = dequantize(n.problem, n.out, 1);
        double worst = 0;
        for (std::size_t i = 0; i < y.size(); ++i) {
            worst =
                std::max(worst, std::fabs(restored[i] / 2688 - static_cast<double>(y[i])) * static_cast<double>(ratio));
        }
        CHECK(worst <= 0.178);  // half the step from 4 to 6, over 6, with a scale up to 1/16 too large
    }
}

TEST_CASE("rows do not influence each other") {
    const Problem problem{.hidden = 2880, .scale_format = ScaleFormat::e4m3};
    const Inputs inputs = random_inputs(problem, 9, 81);
    const Outputs together = run_reference(problem, inputs, 4);
    for (std::size_t row = 0; row < 9; ++row) {
        Inputs one = inputs;
        one.rows = 1;
        one.x.assign(inputs.x.begin() + static_cast<std::ptrdiff_t>(row * 5760),
                     inputs.x.begin() + static_cast<std::ptrdiff_t>((row + 1) * 5760));
        const Outputs alone = run_reference(problem, one);
        CHECK(std::equal(alone.fp4.begin(), alone.fp4.end(),
                         together.fp4.begin() + static_cast<std::ptrdiff_t>(row * 1440)));
        CHECK(std::equal(alone.scales.begin(), alone.scales.end(),
                         together.scales.begin() + static_cast<std::ptrdiff_t>(row * 180)));
    }
}

TEST_CASE("the caller's rounding mode and flush-to-zero change nothing, and are kept") {
    const Problem problem{.hidden = 64, .y_out = true};
    Inputs inputs = random_inputs(problem, 2, 91);
    inputs.x = encode(DType::bf16, gaussian(128, 1e-38f, 91));  // subnormals on the way
    inputs.eps = 0;
    const Outputs expected = run_reference(problem, inputs);
    std::fenv_t saved;
    REQUIRE(std::fegetenv(&saved) == 0);
    REQUIRE(std::fesetround(FE_UPWARD) == 0);
#if defined(__SSE2__)
    const unsigned flush = 0x8040;  // FTZ and DAZ
    _mm_setcsr(_mm_getcsr() | flush);
#endif
    const Outputs out = run_reference(problem, inputs, 1);
    const int rounding = std::fegetround();
#if defined(__SSE2__)
    const bool flush_kept = (_mm_getcsr() & flush) == flush;
#endif
    std::fesetenv(&saved);
    CHECK(rounding == FE_UPWARD);
#if defined(__SSE2__)
    CHECK(flush_kept);
#endif
    CHECK(out.fp4 == expected.fp4);
    CHECK(out.scales == expected.scales);
    CHECK(out.y_out == expected.y_out);
    CHECK(out.rstd == expected.rstd);
    CHECK(out.sum_of_squares == expected.sum_of_squares);
}

TEST_CASE("host tensors may lie at odd addresses") {
    const Problem problem{.op = Op::add_rmsnorm, .hidden = 64, .weight_dtype = DType::fp32, .y_out = true};
    const Inputs inputs = random_inputs(problem, 2, 95);
    const Outputs expected = run_reference(problem, inputs);
    const auto shifted = [](const void* data, std::size_t size) {
        Bytes bytes(size + 1);
        std::memcpy(bytes.data() + 1, data, size);
        return bytes;
    };
    const Bytes x = shifted(inputs.x.data(), inputs.x.size()), weight = shifted(inputs.weight.data(), 256);
    const Bytes global_scale = shifted(&*inputs.global_scale, 4);
    Bytes residual = shifted(inputs.residual.data(), 256), fp4(65), scales(9), y_out(257), sum(9), rstd(9);
    HostTensors tensors;
    tensors.rows = 2;
    tensors.eps = inputs.eps;
    tensors.x = x.data() + 1;
    tensors.weight = weight.data() + 1;
    tensors.global_scale = reinterpret_cast<const float*>(global_scale.data() + 1);
    tensors.fp4 = fp4.data() + 1;
    tensors.scales = scales.data() + 1;
    tensors.residual = residual.data() + 1;
    tensors.y_out = y_out.data() + 1;
    tensors.x_stride = tensors.residual_stride = tensors.y_out_stride = 64;
    tensors.fp4_stride = 32;
    tensors.sum_of_squares = reinterpret_cast<float*>(sum.data() + 1);
    tensors.rstd = reinterpret_cast<float*>(rstd.data() + 1);
    REQUIRE(reference(problem, tensors, 1).ok());
    CHECK(fp4 == shifted(expected.fp4.data(), 64));
    CHECK(scales == shifted(expected.scales.data(), 8));
    CHECK(residual == shifted(expected.residual.data(), 256));
    CHECK(y_out == shifted(expected.y_out.data(), 256));
    CHECK(sum == shifted(expected.sum_of_squares.data(), 8));
    CHECK(rstd == shifted(expected.rstd.data(), 8));
}

TEST_CASE("no rows is a success that touches nothing") {
    CHECK(reference(Problem{.hidden = 64, .scale_layout = ScaleLayout::swizzled}, HostTensors{}, 0).ok());
}

TEST_CASE("a tensor that is missing, or must not be there, is named") {
    Problem problem{.op = Op::add_rmsnorm, .hidden = 64, .y_out = true};
    const Inputs inputs = random_inputs(problem, 1, 3);
    Outputs out;
    HostTensors complete = tensors_for(problem, inputs, out);
    Bytes residual = inputs.residual, y_out(128);
    complete.residual = residual.data();
    complete.residual_stride = complete.y_out_stride = 64;
    complete.y_out = y_out.data();
    REQUIRE(reference(problem, complete, 1).ok());

    const auto check = [&](const HostTensors& tensors, const std::string& field) {
        CAPTURE(field);
        const Outcome outcome = reference(problem, tensors, 1);
        REQUIRE_FALSE(outcome.ok());
        CHECK(outcome.error().status == NQ_ERR_INVALID_ARGUMENT);
        CHECK(outcome.error().message.find("nq_tensors." + field) != std::string::npos);
    };
    HostTensors t = complete;
    t.x = nullptr;
    check(t, "x");
    t = complete;
    t.weight = nullptr;
    check(t, "weight");
    t = complete;
    t.fp4 = nullptr;
    check(t, "fp4");
    t = complete;
    t.scales = nullptr;
    check(t, "scales");
    t = complete;
    t.residual = nullptr;
    check(t, "residual");
    t = complete;
    t.y_out = nullptr;
    check(t, "y_out");
    problem.scale_format = ScaleFormat::ue8m0;
    check(complete, "global_scale");
}
