// Inputs and outputs of a call as plain byte vectors, and the reference on them.
#pragma once

#include "problem/problem.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace nq::test {

using Bytes = std::vector<unsigned char>;

struct Inputs {
    std::int64_t rows = 0;
    float eps = 1e-6f;
    std::optional<float> global_scale;
    Bytes x;         // [rows][hidden], contiguous
    Bytes weight;    // [hidden]
    Bytes residual;  // as x, with Op::add_rmsnorm
    std::optional<std::int32_t> device_rows;
};

struct Outputs {
    Bytes fp4;
    Bytes scales;
    Bytes scales_linear;  // with both layouts
    Bytes residual;
    Bytes y_out;
    std::vector<std::uint32_t> sum_of_squares;  // bits of fp32
    std::vector<std::uint32_t> rstd;
};

// Output buffers hold `garbage` in every byte before the call.
Outputs run_reference(const Problem& problem, const Inputs& inputs, unsigned threads = 1, unsigned char garbage = 0xab,
                      bool keep_padding = false);

// Equal bits, where any NaN equals any other.
bool same_floats(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b);

// Values as bytes of a type, rounded to nearest even.
Bytes encode(DType dtype, const std::vector<float>& values);
std::vector<float> decode(DType dtype, const Bytes& bytes);

// code * scale of every element, in double: y * global_scale, as a consumer restores it.
std::vector<double> dequantize(const Problem& problem, const Outputs& outputs, std::int64_t rows);

// The scale byte of a block.
std::uint8_t scale_of(const Problem& problem, const Bytes& scales, std::int64_t row, std::uint32_t block);
// The FP4 code of an element.
std::uint8_t code_of(const Problem& problem, const Bytes& fp4, std::int64_t row, std::uint32_t element);

}  // namespace nq::test
