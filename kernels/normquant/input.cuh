// How a row comes in: how many there are, where they lie, and what is normalized: x, or the rounded sum of x and the residual.
#pragma once

#include <normquant/row.cuh>

namespace normquant {

// Of a launch that overlaps with the end of an earlier kernel: nothing that one may write is read before this.
template <class Config, class Block>
NQ_DEVICE void wait_for_inputs(const Config& config, const Block& block, const Params& params) {
    if (!config.overlap) return;
    if (params.constant_weight && block.index() == 0) {
        constexpr u32 kLine = 128;
        const u32 bytes = config.hidden * (config.weight_dtype == kFp32 ? 4 : 2), step = block.parts() * block.threads() * kLine;
        for (u32 at = (block.part() * block.threads() + block.thread()) * kLine; at < bytes; at += step) prefetch(byte_offset(params.weight, at));
    }
    block.wait_for_predecessors();
}

template <class Config>
NQ_DEVICE u32 rows_of(const Config& config, const Params& params) {
    if (!config.device_rows || !params.device_rows) return params.rows;
    const int rows = static_cast<int>(load_word(config, params.device_rows));
    const u32 at_least_0 = rows < 0 ? 0 : static_cast<u32>(rows);
    return at_least_0 < params.rows ? at_least_0 : params.rows;
}

// Else a grid has the blocks that its rows need, and no more.
template <class Config>
NQ_DEVICE bool may_have_spare_blocks(const Config& config) { return config.swizzled || config.device_rows; }

template <class Config>
NQ_DEVICE float global_scale_of(const Config& config, const Params& params) {
    return config.scale_format == kE4m3 && params.global_scale ? as_float(load_word(config, params.global_scale)) : 1.0f;
}

struct RowInput {
    const void *x, *residual;
    void* residual_out;

    template <class Config>
    NQ_DEVICE RowInput(const Config& config, const Params& params, u32 row)
        : x(x_row(config, params, row)),
          residual(byte_offset(params.residual, 2 * params.residual_stride * row)),
          residual_out(byte_offset(params.residual_out, 2 * params.residual_out_stride * row)) {}
};

template <u32 kElements, class Config>
NQ_DEVICE void load_x(const Config& config, u32* x, const RowInput& row, u32 element, bool exists) {
    NQ_UNROLL
    for (u32 i = 0; i < kElements / 2; ++i) x[i] = 0;
    if (exists) load_words<kElements / 2>(config, x, byte_offset(row.x, 2 * static_cast<i64>(element)));
}

// 16-bit weights fill the first half of the words.
template <u32 kElements, class Config>
NQ_DEVICE void load_weight(const Config& config, u32* w, const void* weight, u32 element, bool exists) {
    NQ_UNROLL
    for (u32 i = 0; i < kElements; ++i) w[i] = 0;
    if (!exists) return;
    if (config.weight_dtype == kFp32) {
        load_words<kElements>(config, w, byte_offset(weight, 4 * static_cast<i64>(element)));
    } else {
        load_words<kElements / 2>(config, w, byte_offset(weight, 2 * static_cast<i64>(element)));
    }
}
// The residual may be what this kernel overwrites.
template <u32 kElements>
NQ_DEVICE void load_residual(u32* r, const RowInput& row, u32 element, bool exists) {
    NQ_UNROLL
    for (u32 i = 0; i < kElements / 2; ++i) r[i] = 0;
    if (exists) load_written_words<kElements / 2>(r, byte_offset(row.residual, 2 * static_cast<i64>(element)));
}
// What add_residual has written, by the thread that did.
template <u32 kElements>
NQ_DEVICE void load_sum(u32* x, const RowInput& row, u32 element, bool exists) {
    NQ_UNROLL
    for (u32 i = 0; i < kElements / 2; ++i) x[i] = 0;
    if (exists) load_written_words<kElements / 2>(x, byte_offset(static_cast<const void*>(row.residual_out), 2 * static_cast<i64>(element)));
}

// x becomes the sum, which is written.
template <u32 kElements, class Config>
NQ_DEVICE void add_residual(const Config& config, u32* x, const u32* r, const RowInput& row, u32 element, bool exists) {
    NQ_UNROLL
    for (u32 i = 0; i < kElements / 2; ++i) x[i] = add_16x2(config.dtype, x[i], r[i]);
    if (exists) store_words<kElements / 2>(byte_offset(row.residual_out, 2 * static_cast<i64>(element)), x);
}

}  // namespace normquant
