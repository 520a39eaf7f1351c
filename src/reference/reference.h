// The CPU reference: the bytes that every kernel must produce, by plain loops.
#pragma once

#include "problem/problem.h"
#include "support/result.h"

#include <cstdint>

namespace nq {

// nq_tensors with its strides resolved. Elements may lie at any address. With rows == 0 nothing is touched.
struct HostTensors {
    std::int64_t rows = 0;
    float eps = 0;
    bool keep_padding = false;
    const unsigned char* x = nullptr;
    std::int64_t x_stride = 0;  // elements
    std::int64_t batch_rows = 0;  // 0: one batch of all rows
    std::int64_t x_batch_stride = 0;
    const unsigned char* weight = nullptr;
    const float* global_scale = nullptr;
    unsigned char* fp4 = nullptr;
    std::int64_t fp4_stride = 0;  // bytes
    unsigned char* scales = nullptr;
    unsigned char* scales_linear = nullptr;  // with both layouts
    std::int64_t scales_stride = 0;          // bytes, of linear scales; 0: contiguous
    unsigned char* residual = nullptr;
    std::int64_t residual_stride = 0;       // elements
    unsigned char* residual_out = nullptr;  // null: in place
    std::int64_t residual_out_stride = 0;
    unsigned char* y_out = nullptr;
    std::int64_t y_out_stride = 0;  // elements
    const std::int32_t* device_rows = nullptr;
    float* sum_of_squares = nullptr;
    float* rstd = nullptr;
};

// threads: 0 for one a core. Fails when a tensor that the problem needs is missing, or one that it excludes is there.
// Does not depend on the caller's floating-point environment.
Outcome reference(const Problem& problem, const HostTensors& tensors, unsigned threads);

// Width of the fixed summation tree: the number of threads that hold whole granules of a row.
std::uint32_t reference_tree_threads(std::uint32_t hidden);

}  // namespace nq
