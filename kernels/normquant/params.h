// The kernel's one argument. The same struct on host and device; everything in it may change from launch to launch.
#pragma once

#include <normquant/types.cuh>

namespace normquant {

// Strides are in elements, those of FP4 and scales in bytes. What the problem has no use for is null or 0.
struct Params {
    const void* __restrict__ x;
    const void* __restrict__ weight;
    const float* __restrict__ global_scale;  // null: 1
    i64 x_stride;
    u32 rows;          // the most, if device_rows is there
    u32 zero_padding;  // swizzled: write the padding bytes as 0
    void* __restrict__ fp4;
    void* __restrict__ scale_swizzled;
    void* __restrict__ scale_linear;
    i64 fp4_stride, scale_stride;
    float eps;
    u32 constant_weight;  // no kernel before this one that may still run writes the weight
    // Fields above are all that most kernels read: a cold start waits for each 64 bytes of the parameters in turn.
    const void* residual;
    void* residual_out;  // may be the residual
    void* __restrict__ y_out;
    i64 residual_stride, residual_out_stride, y_out_stride;
    const int* __restrict__ device_rows;  // null: rows
    i64 x_batch_stride;
    u32 batch_rows;  // rows of x a batch; 0: they are all x_stride apart
};

static_assert(sizeof(Params) == 160, "host and device must agree");

NQ_DEVICE const void* byte_offset(const void* base, i64 bytes) { return static_cast<const u8*>(base) + bytes; }
NQ_DEVICE void* byte_offset(void* base, i64 bytes) { return static_cast<u8*>(base) + bytes; }

template <class Config>
NQ_DEVICE bool in_batches(const Config& config, const Params& params) { return config.batches && params.batch_rows != 0; }

template <class Config>
NQ_DEVICE const void* x_row(const Config& config, const Params& params, u32 row) {
    if (!in_batches(config, params)) return byte_offset(params.x, 2 * params.x_stride * row);
    const u32 batch = row / params.batch_rows, row_of_batch = row % params.batch_rows;
    return byte_offset(params.x, 2 * (batch * params.x_batch_stride + row_of_batch * params.x_stride));
}

}  // namespace normquant
