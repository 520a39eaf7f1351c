#include "reference/reference.h"

#include "reference/numerics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

// The sections are those of NUMERICS, which the public header sums up.
namespace nq {
namespace {

constexpr std::uint32_t kGranule = 16;  // elements: two vectors of 8
constexpr std::uint32_t kMaxTreeThreads = 256;
constexpr std::uint32_t kMaxLanes = 8 * kMaxTreeThreads;
constexpr float kSixth = 0x1.555556p-3f;  // RN(1/6)

// Round to nearest, no flush to zero, whatever the calling thread has set.
class DefaultFloatEnvironment {
public:
    DefaultFloatEnvironment() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
    DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
    DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

private:
    std::fenv_t saved_;
};

float load(const void* address, std::int64_t index, DType dtype) {
    const auto* base = static_cast<const unsigned char*>(address);
    if (dtype == DType::fp32) {
        float value;
        std::memcpy(&value, base + index * 4, 4);
        return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, base + index * 2, 2);
    return dtype == DType::fp16 ? numerics::from_fp16(bits) : numerics::from_bf16(bits);
}

// Rounds to the 16-bit type, stores, and returns the rounded value.
float store16(unsigned char* base, std::int64_t index, DType dtype, float value) {
    const std::uint16_t bits = dtype == DType::fp16 ? numerics::to_fp16(value) : numerics::to_bf16(value);
    std::memcpy(base + index * 2, &bits, 2);
    return dtype == DType::fp16 ? numerics::from_fp16(bits) : numerics::from_bf16(bits);
}

void store_float(float* address, std::int64_t index, float value) {
    std::memcpy(reinterpret_cast<unsigned char*>(address) + index * 4, &value, 4);
}

// Section 7: a swizzled scale buffer.
struct SwizzledBytes {
    std::int64_t blocks;  // scales a row
    std::int64_t tiles;   // 128x4 tiles across a row

    explicit SwizzledBytes(const Problem& problem) : blocks(problem.blocks()), tiles((problem.blocks() + 3) / 4) {}
    std::int64_t offset(std::int64_t row, std::int64_t block) const {
        return (row / 128 * tiles + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
    }
};

// Section 2: the sum of squares of a row, by the one tree of this width.
float sum_of_squares(const unsigned char* row, std::uint32_t hidden, DType dtype) {
    const std::uint32_t tree_threads = reference_tree_threads(hidden);
    const std::uint32_t lanes = 8 * tree_threads;
    std::array<float, kMaxLanes> even{};
    std::array<float, kMaxLanes> odd{};
    for (std::uint32_t granule = 0; granule < hidden / kGranule; ++granule) {
        for (std::uint32_t half = 0; half < 2; ++half) {
            const std::uint32_t lane = 8 * (granule % tree_threads) + 2 * (granule / tree_threads % 4) + half;
            for (std::uint32_t i = 0; i < 8; i += 2) {
                const std::int64_t element = kGranule * granule + 8 * half + i;
                const float v0 = load(row, element, dtype);
                const float v1 = load(row, element + 1, dtype);
                even[lane] = std::fma(v0, v0, even[lane]);
                odd[lane] = std::fma(v1, v1, odd[lane]);
            }
        }
    }
    std::array<float, kMaxLanes> sums{};
    for (std::uint32_t lane = 0; lane < lanes; ++lane) sums[lane] = even[lane] + odd[lane];
    for (std::uint32_t count = lanes / 2; count > 0; count /= 2) {
        for (std::uint32_t i = 0; i < count; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
    }
    return sums[0];
}

struct BlockScale {
    std::uint8_t code;
    float factor;  // what a weighted value is multiplied with to become an FP4 code
};

// Section 5: the scale of a block whose largest |y| is `maximum`.
BlockScale block_scale(float maximum, float rstd, float global_scale, ScaleFormat format) {
    BlockScale scale{};
    if (format == ScaleFormat::e4m3) {
        scale.code = numerics::to_e4m3(maximum * global_scale * kSixth);
        scale.factor =
            (scale.code & 0x7fu) == 0 ? 0.0f : rstd * (global_scale * (1.0f / numerics::from_e4m3(scale.code)));
    } else {
        scale.code = numerics::to_ue8m0(maximum * kSixth);
        scale.factor = scale.code == 0     ? 0.0f
                       : scale.code == 255 ? std::numeric_limits<float>::quiet_NaN()
                                           : numerics::scale_by_power_of_two(rstd, 127 - scale.code);
    }
    // An infinite factor would turn a zero element into NaN.
    if (std::isinf(scale.factor)) scale.factor = std::copysign(std::numeric_limits<float>::max(), scale.factor);
    return scale;
}

// noinline: its arithmetic must not move out of the scope of DefaultFloatEnvironment.
[[gnu::noinline]] void compute_row(const Problem& problem, const HostTensors& tensors, std::int64_t row) {
    const std::int64_t batch = tensors.batch_rows != 0 ? row / tensors.batch_rows : 0;
    const unsigned char* v_row = tensors.x + (batch * tensors.x_batch_stride + (row - batch * tensors.batch_rows) * tensors.x_stride) * 2;

    // Section 1: the residual add; the rounded sum is what is normalized.
    if (problem.adds()) {
        const unsigned char* residual = tensors.residual + row * tensors.residual_stride * 2;
        unsigned char* sum = tensors.residual_out != nullptr ? tensors.residual_out + row * tensors.residual_out_stride * 2
                                                             : tensors.residual + row * tensors.residual_stride * 2;
        for (std::uint32_t e = 0; e < problem.hidden; ++e) {
            store16(sum, e, problem.dtype, load(v_row, e, problem.dtype) + load(residual, e, problem.dtype));
        }
        v_row = sum;
    }

    // Section 2.
    const float sum = sum_of_squares(v_row, problem.hidden, problem.dtype);

    // Section 3: the normalization factor.
    const float rstd = numerics::rsqrt(std::fma(sum, 1.0f / static_cast<float>(problem.hidden), tensors.eps));

    if (tensors.sum_of_squares != nullptr) store_float(tensors.sum_of_squares, row, sum);
    if (tensors.rstd != nullptr) store_float(tensors.rstd, row, rstd);

    const float global_scale = tensors.global_scale != nullptr ? load(tensors.global_scale, 0, DType::fp32) : 1.0f;
    const SwizzledBytes swizzled(problem);
    unsigned char* scales_row = nullptr;
    if (problem.linear()) {
        const std::int64_t stride = tensors.scales_stride != 0 ? tensors.scales_stride : problem.blocks();
        scales_row = (problem.swizzled() ? tensors.scales_linear : tensors.scales) + row * stride;
    }
    unsigned char* fp4_row = tensors.fp4 + row * tensors.fp4_stride;
    unsigned char* y_row = problem.y_out ? tensors.y_out + row * tensors.y_out_stride * 2 : nullptr;

    for (std::uint32_t block = 0; block < problem.blocks(); ++block) {
        const std::uint32_t first = block * problem.block_size;

        // Section 4: weighted values and their maximum, which a NaN poisons.
        std::array<float, 32> p;
        float largest = 0.0f;
        for (std::uint32_t i = 0; i < problem.block_size; ++i) {
            const float w = load(tensors.weight, first + i, problem.weight_dtype);
            p[i] = load(v_row, first + i, problem.dtype) * (problem.weight_bias_one ? 1.0f + w : w);
            if (std::isnan(p[i]) || std::fabs(p[i]) > largest) largest = std::fabs(p[i]);
            if (y_row != nullptr) store16(y_row, first + i, problem.dtype, p[i] * rstd);
        }

        // Section 5.
        const BlockScale scale = block_scale(largest * rstd, rstd, global_scale, problem.scale_format);
        if (problem.swizzled()) tensors.scales[swizzled.offset(row, block)] = scale.code;
        if (scales_row != nullptr) scales_row[block] = scale.code;

        // Section 6: FP4 codes, the even element in the low nibble.
        for (std::uint32_t i = 0; i < problem.block_size; i += 2) {
            const std::uint8_t low = numerics::to_e2m1(p[i] * scale.factor);
            const std::uint8_t high = numerics::to_e2m1(p[i + 1] * scale.factor);
            fp4_row[(first + i) / 2] = static_cast<unsigned char>(high << 4 | low);
        }
    }
}

// Section 7: rows behind the last one, and blocks behind the last of a row, up to whole tiles.
void zero_padding(const Problem& problem, const HostTensors& tensors, std::int64_t rows) {
    const SwizzledBytes layout(problem);
    const std::int64_t padded_rows = (tensors.rows + 127) / 128 * 128;
    for (std::int64_t row = 0; row < padded_rows; ++row) {
        for (std::int64_t block = row < rows ? layout.blocks : 0; block < layout.tiles * 4; ++block) {
            tensors.scales[layout.offset(row, block)] = 0;
        }
    }
}

Outcome check_presence(const Problem& problem, const HostTensors& tensors) {
    const auto missing = [](const char* field) {
        return Error{NQ_ERR_INVALID_ARGUMENT, fmt::format("nq_tensors.{} is NULL; this problem needs it", field)};
    };
    if (tensors.x == nullptr) return missing("x");
    if (tensors.weight == nullptr) return missing("weight");
    if (tensors.fp4 == nullptr) return missing("fp4");
    if (tensors.scales == nullptr) return missing("scales");
    if (problem.scale_layout == ScaleLayout::both && tensors.scales_linear == nullptr) return missing("scales_linear");
    if (problem.adds() && tensors.residual == nullptr) return missing("residual");
    if (problem.y_out && tensors.y_out == nullptr) return missing("y_out");
    if (problem.scale_format == ScaleFormat::ue8m0 && tensors.global_scale != nullptr) {
        return Error{NQ_ERR_INVALID_ARGUMENT,
                     "nq_tensors.global_scale is set; accepted with NQ_SCALE_UE8M0: NULL only"};
    }
    return Unit{};
}

}  // namespace

std::uint32_t reference_tree_threads(std::uint32_t hidden) {
    const std::uint32_t granules = hidden / kGranule;
    if (granules < 3) return 1;
    if (granules > 2048) return kMaxTreeThreads;
    std::uint32_t best = 0;
    std::uint32_t best_slots = std::numeric_limits<std::uint32_t>::max();
    for (std::uint32_t threads = 1; threads <= kMaxTreeThreads; threads *= 2) {
        const std::uint32_t each = (granules + threads - 1) / threads;
        if (each < 3 || each > 8) continue;
        if (threads * each <= best_slots) {  // the larger count among equals
            best = threads;
            best_slots = threads * each;
        }
    }
    return best;
}

Outcome reference(const Problem& problem, const HostTensors& tensors, unsigned threads) {
    if (tensors.rows == 0) return Unit{};
    if (Outcome present = check_presence(problem, tensors); !present) return present;

    std::int64_t rows = tensors.rows;
    if (tensors.device_rows != nullptr) {
        std::int32_t count;
        std::memcpy(&count, tensors.device_rows, sizeof count);
        rows = std::clamp<std::int64_t>(count, 0, rows);
    }
    std::atomic<std::int64_t> next{0};
    const auto work = [&] {
        const DefaultFloatEnvironment environment;
        for (std::int64_t row; (row = next.fetch_add(1, std::memory_order_relaxed)) < rows;) {
            compute_row(problem, tensors, row);
        }
    };
    if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
    {
        std::vector<std::jthread> helpers;
        for (std::int64_t i = 1; i < std::min<std::int64_t>(threads, rows); ++i) {
            try {
                helpers.emplace_back(work);
            } catch (const std::system_error&) {
                break;  // no more threads to be had: those that run, and this one, do all rows
            }
        }
        work();
    }
    if (problem.swizzled() && !tensors.keep_padding) zero_padding(problem, tensors, rows);
    return Unit{};
}

}  // namespace nq
