#include "self_test.h"

#include "errors.h"
#include "options.h"
#include "random_values.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>

namespace nq::cli {
namespace {

struct Shape {
    std::uint32_t hidden;
    std::int64_t rows;
    std::uint32_t dtype;
    std::uint32_t weight_dtype;
    std::uint32_t block_size;
    std::uint32_t scale_format;
    std::uint32_t scale_layout;
};

// Widths that are tiny, odd, common and wide; row counts around the groups and the 128-row tiles.
constexpr Shape kShapes[] = {
    {16, 7, NQ_BF16, NQ_BF16, 16, NQ_SCALE_E4M3, NQ_LAYOUT_LINEAR},
    {80, 129, NQ_FP16, NQ_FP16, 16, NQ_SCALE_E4M3, NQ_LAYOUT_SWIZZLED},
    {576, 100, NQ_BF16, NQ_FP32, 16, NQ_SCALE_E4M3, NQ_LAYOUT_LINEAR},
    {576, 128, NQ_FP16, NQ_FP32, 32, NQ_SCALE_UE8M0, NQ_LAYOUT_SWIZZLED},
    {2880, 65, NQ_BF16, NQ_BF16, 32, NQ_SCALE_UE8M0, NQ_LAYOUT_SWIZZLED},
    {2880, 64, NQ_FP16, NQ_FP16, 16, NQ_SCALE_E4M3, NQ_LAYOUT_LINEAR},
    {4096, 300, NQ_BF16, NQ_BF16, 16, NQ_SCALE_E4M3, NQ_LAYOUT_SWIZZLED},
    {4096, 8, NQ_FP16, NQ_FP16, 32, NQ_SCALE_E4M3, NQ_LAYOUT_LINEAR},
    {7168, 33, NQ_BF16, NQ_BF16, 16, NQ_SCALE_UE8M0, NQ_LAYOUT_LINEAR},
    {7168, 1000, NQ_BF16, NQ_BF16, 16, NQ_SCALE_E4M3, NQ_LAYOUT_LINEAR},
    {16400, 9, NQ_FP16, NQ_FP32, 16, NQ_SCALE_E4M3, NQ_LAYOUT_SWIZZLED},
    {32768, 9, NQ_BF16, NQ_BF16, 32, NQ_SCALE_UE8M0, NQ_LAYOUT_LINEAR},
};

std::vector<float> make_rows(const Shape& shape, Random& random) {
    std::vector<float> x(static_cast<std::size_t>(shape.rows) * shape.hidden);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t row = i / shape.hidden;
        x[i] = random.uniform() * (random.bits() % 512 == 0 ? 200.0f : 1.0f);
        switch (row % 8) {
            case 1:
                x[i] = 0;
                break;
            case 2:
                x[i] *= 0x1p-20f;  // subnormal in fp16
                break;
            case 3:
                x[i] = std::round(x[i] * 6);  // exact ties between codes
                break;
            default:
                break;
        }
    }
    if (shape.rows > 5) {
        x[4 * shape.hidden + shape.hidden / 2] = std::numeric_limits<float>::quiet_NaN();
        x[5 * shape.hidden + 3] = -std::numeric_limits<float>::infinity();
    }
    return x;
}

std::string describe(const Shape& shape, const nq_problem& problem) {
    return fmt::format("{} x {} {} weight={} {} {}", shape.rows, shape.hidden, dtype_name(shape.dtype),
                       dtype_name(shape.weight_dtype), format_name(problem), layout_name(shape.scale_layout));
}

}  // namespace

std::vector<SelfTestCase> self_test(Device& device, nq_context* context) {
    std::vector<SelfTestCase> results;
    Random random(2688);
    for (const Shape& shape : kShapes) {
        nq_problem problem = NQ_PROBLEM_INIT;
        problem.hidden = shape.hidden;
        problem.dtype = shape.dtype;
        problem.weight_dtype = shape.weight_dtype;
        problem.block_size = shape.block_size;
        problem.scale_format = shape.scale_format;
        problem.scale_layout = shape.scale_layout;
        std::vector<float> weight_values(shape.hidden);
        for (float& value : weight_values) value = 1.0f + 0.5f * random.uniform();
        const std::vector<unsigned char> x = encode(make_rows(shape, random), shape.dtype);
        const std::vector<unsigned char> weight = encode(weight_values, shape.weight_dtype);
        Call call{problem, shape.rows, 1e-6f, std::nullopt, &x, &weight};
        if (shape.scale_format == NQ_SCALE_E4M3) call.global_scale = 37.5f;

        SelfTestCase result{describe(shape, problem), false, {}};
        const auto reference = run_reference(call);
        const auto computed = run_on_gpu(device, context, call, false);
        if (!reference || !computed) {
            result.message = (reference ? computed.error() : reference.error()).message;
        } else if (const auto found = difference(*reference, *computed)) {
            result.message = *found;
        } else {
            result.passed = true;
        }
        results.push_back(std::move(result));
    }
    return results;
}

}  // namespace nq::cli
