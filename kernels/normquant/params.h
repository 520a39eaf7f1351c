// The kernel's one argument. The same struct on host and device; everything in it may change from launch to launch.
#pragma once

#include <normquant/types.cuh>

namespace normquant {

struct Params {
    const void* __restrict__ x;
    const void* __restrict__ weight;
    const float* __restrict__ global_scale;  // null: 1
    void* __restrict__ fp4;
    void* __restrict__ scale;
    i64 x_stride;    // elements
    i64 fp4_stride;  // bytes
    i64 rows;
    float eps;
    u32 zero_padding;  // swizzled: write the padding bytes as 0
};

static_assert(sizeof(Params) == 72, "host and device must agree");

}  // namespace normquant
