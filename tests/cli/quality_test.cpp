#include "quality.h"

#include "reference/numerics.h"
#include "support/catch.h"

#include <cmath>
#include <cstring>
#include <limits>

using namespace nq;
using namespace nq::cli;

namespace {

std::vector<unsigned char> bf16(const std::vector<float>& values) {
    std::vector<unsigned char> bytes;
    for (const float value : values) {
        const std::uint16_t bits = numerics::to_bf16(value);
        bytes.push_back(static_cast<unsigned char>(bits & 0xff));
        bytes.push_back(static_cast<unsigned char>(bits >> 8));
    }
    return bytes;
}

struct Sample {
    std::vector<unsigned char> x;
    std::vector<unsigned char> weight = bf16(std::vector<float>(16, 1.0f));
    Call call;

    explicit Sample(const std::vector<float>& values) : x(bf16(values)) {
        call.problem = NQ_PROBLEM_INIT;
        call.problem.hidden = 16;
        call.rows = static_cast<std::int64_t>(values.size() / 16);
        call.eps = 0;
        call.x = &x;
        call.weight = &weight;
    }
};

}  // namespace

TEST_CASE("quality: figures worked out by hand") {
    // Eight ones and eight minus ones: the norm is the row itself. Scale 1 (E4M3 0x38).
    std::vector<float> row(16, 1.0f);
    for (std::size_t i = 8; i < 16; ++i) row[i] = -1.0f;
    Sample sample(row);
    Outputs outputs{std::vector<unsigned char>(8, 0x22), {0x38}};                             // codes of 1
    std::fill(outputs.fp4.begin() + 4, outputs.fp4.end(), static_cast<unsigned char>(0xaa));  // codes of -1
    CHECK(measure_quality(sample.call, outputs).max_block_error == 0);
    CHECK(std::isinf(measure_quality(sample.call, outputs).snr_db));

    outputs.fp4[0] = 0x20;  // element 0 becomes 0, which misses by 1
    const Quality one_off = measure_quality(sample.call, outputs);
    CHECK(one_off.snr_db == 10 * std::log10(16.0 / 1.0));
    CHECK(one_off.max_block_error == 1);
    CHECK(one_off.zero_share == 1.0 / 16);

    sample.call.global_scale = 2.0f;  // halves what the codes mean
    outputs.fp4[0] = 0x22;
    CHECK(measure_quality(sample.call, outputs).max_block_error == 0.5);
}

TEST_CASE("quality: rows with NaN are left out and counted") {
    std::vector<float> rows(32, 1.0f);
    rows[3] = std::numeric_limits<float>::quiet_NaN();
    const Sample sample(rows);
    const Outputs outputs{std::vector<unsigned char>(16, 0x22), {0x7f, 0x38}};
    const Quality quality = measure_quality(sample.call, outputs);
    CHECK(quality.rows_left_out == 1);
    CHECK(quality.max_block_error == 0);
    CHECK(quality.zero_share == 0);
}

TEST_CASE("automatic global scale: 2688 over the largest normed value") {
    std::vector<float> row(16, 1.0f);
    row[5] = -3.0f;
    const Sample sample(row);
    CHECK(automatic_global_scale(sample.call, {1.0f}) == 896.0f);
    CHECK(automatic_global_scale(sample.call, {0.5f}) == 1792.0f);
    CHECK(automatic_global_scale(sample.call, {0.0f}) == 1.0f);
    CHECK(automatic_global_scale(sample.call, {std::numeric_limits<float>::infinity()}) == 1.0f);
    CHECK(automatic_global_scale(sample.call, {std::numeric_limits<float>::quiet_NaN()}) == 1.0f);
}
