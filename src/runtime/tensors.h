// Checks of nq_tensors against a problem, the same for the device and the CPU reference but for alignment.
#pragma once

#include "problem/problem.h"
#include "support/result.h"

#include <cstddef>
#include <optional>
#include <string_view>

namespace nq {

enum class Memory { device, host };

// Least alignment in bytes of the base and row stride of a tensor on the device; nullopt for a name that is no tensor.
std::optional<std::size_t> required_alignment(const Problem& problem, std::string_view tensor);

// Every field. The message names the field, its value and what is accepted. Allocates only to say what is wrong.
Outcome check_tensors(const Problem& problem, const nq_tensors* tensors, Memory memory);

// The fields of nq_tensors where 0 or NULL stands for something else, resolved.
struct Layout {
    std::int64_t x_stride, residual_stride, residual_out_stride, y_out_stride;  // elements
    std::int64_t x_batch_stride;
    std::int64_t fp4_stride, scales_stride;  // bytes
    void *residual_out, *scales_swizzled, *scales_linear;

    Layout(const Problem& problem, const nq_tensors& t)
        : x_stride(t.x_stride != 0 ? t.x_stride : problem.hidden),
          residual_stride(t.residual_stride != 0 ? t.residual_stride : problem.hidden),
          residual_out_stride(t.residual_out == nullptr ? residual_stride : t.residual_out_stride != 0 ? t.residual_out_stride : problem.hidden),
          y_out_stride(t.y_out_stride != 0 ? t.y_out_stride : problem.hidden),
          // Where this product is beyond 2^63, there is one batch (check_stride) and nothing uses it.
          x_batch_stride(t.x_batch_stride != 0 ? t.x_batch_stride
                                               : static_cast<std::int64_t>(static_cast<std::uint64_t>(t.batch_rows) * static_cast<std::uint64_t>(x_stride))),
          fp4_stride(t.fp4_stride != 0 ? t.fp4_stride : problem.hidden / 2),
          scales_stride(t.scales_stride != 0 ? t.scales_stride : problem.blocks()),
          residual_out(t.residual_out != nullptr ? t.residual_out : t.residual),
          scales_swizzled(problem.swizzled() ? t.scales : nullptr),
          scales_linear(problem.swizzled() ? t.scales_linear : t.scales) {}
};

}  // namespace nq
