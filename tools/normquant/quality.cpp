#include "quality.h"

#include "dequantize.h"
#include "inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nq::cli {
namespace {

std::vector<float> weight_values(const Call& call) {
    std::vector<float> values(call.problem.hidden);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = element_at(*call.weight, call.problem.weight_dtype, i);
    return values;
}

void norm_in_double(const Call& call, std::size_t row, const std::vector<float>& weight, std::vector<double>& y) {
    const std::size_t hidden = call.problem.hidden;
    double sum = 0;
    for (std::size_t i = 0; i < hidden; ++i) {
        y[i] = element_at(*call.x, call.problem.dtype, row * hidden + i);
        sum += y[i] * y[i];
    }
    const double rstd = 1 / std::sqrt(sum / static_cast<double>(hidden) + static_cast<double>(call.eps));
    for (std::size_t i = 0; i < hidden; ++i) y[i] *= rstd * static_cast<double>(weight[i]);
}

bool all_finite(const std::vector<double>& values) {
    return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

}  // namespace

Quality measure_quality(const Call& call, const Outputs& outputs) {
    const std::size_t hidden = call.problem.hidden;
    const std::size_t block_size = call.problem.block_size;
    const std::vector<float> weight = weight_values(call);
    const double global_scale = static_cast<double>(call.global_scale.value_or(1.0f));
    std::vector<double> y(hidden);
    std::vector<double> restored(hidden);
    Quality quality;
    double signal = 0;
    double noise = 0;
    std::uint64_t zeros = 0;
    std::uint64_t codes = 0;
    for (std::size_t row = 0; row < static_cast<std::size_t>(call.rows); ++row) {
        const unsigned char* fp4_row = outputs.fp4.data() + row * (hidden / 2);
        norm_in_double(call, row, weight, y);
        dequantize_row(call.problem, static_cast<std::int64_t>(row), fp4_row, outputs.scales.data(), global_scale,
                       restored);
        if (!all_finite(y) || !all_finite(restored)) {
            ++quality.rows_left_out;
            continue;
        }
        codes += hidden;
        for (std::size_t i = 0; i < hidden / 2; ++i) zeros += ((fp4_row[i] & 0x07) == 0) + ((fp4_row[i] & 0x70) == 0);
        for (std::size_t begin = 0; begin < hidden; begin += block_size) {
            double largest = 0;
            double error = 0;
            for (std::size_t i = begin; i < begin + block_size; ++i) {
                const double miss = std::abs(y[i] - restored[i]);
                largest = std::max(largest, std::abs(y[i]));
                error = std::max(error, miss);
                signal += y[i] * y[i];
                noise += miss * miss;
            }
            if (largest > 0) quality.max_block_error = std::max(quality.max_block_error, error / largest);
        }
    }
    quality.snr_db = 10 * std::log10(signal / noise);
    quality.zero_share =
        codes == 0 ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(zeros) / static_cast<double>(codes);
    return quality;
}

float automatic_global_scale(const Call& call, const std::vector<float>& rstd) {
    const std::size_t hidden = call.problem.hidden;
    const std::vector<float> weight = weight_values(call);
    float amax = 0;
    for (std::size_t row = 0; row < rstd.size(); ++row) {
        for (std::size_t i = 0; i < hidden; ++i) {
            const float product = element_at(*call.x, call.problem.dtype, row * hidden + i) * weight[i];
            const float value = std::abs(product * rstd[row]);
            if (!(value <= std::numeric_limits<float>::max())) return 1;
            amax = std::max(amax, value);
        }
    }
    const float scale = 2688.0f / amax;
    return amax > 0 && std::isfinite(scale) ? scale : 1;
}

}  // namespace nq::cli
