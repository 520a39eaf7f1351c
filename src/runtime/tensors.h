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

// Strides with 0 resolved to the contiguous one.
inline std::int64_t x_stride(const Problem& problem, const nq_tensors& tensors) {
    return tensors.x_stride != 0 ? tensors.x_stride : problem.hidden;
}
inline std::int64_t fp4_stride(const Problem& problem, const nq_tensors& tensors) {
    return tensors.fp4_stride != 0 ? tensors.fp4_stride : problem.hidden / 2;
}

}  // namespace nq
