// How a row is written: its codes, its scales in either layout, the normed values, and the padding of a swizzled scale buffer.
#pragma once

#include <normquant/fp4.cuh>
#include <normquant/row.cuh>
#include <normquant/scale.cuh>
#include <normquant/scale_layout.h>

namespace normquant {

template <class Config>
NQ_DEVICE u32 blocks_of_row(const Config& config) { return config.hidden / config.block_size; }

// What a thread knows of the row it writes.
struct RowOutput {
    void *fp4, *scale_swizzled, *scale_linear, *y;
    float rstd, global_scale;

    template <class Config>
    NQ_DEVICE RowOutput(const Config& config, const Params& params, u32 row, float sum_of_squares, float global_scale_value)
        : fp4(byte_offset(params.fp4, row * params.fp4_stride)),
          scale_swizzled(byte_offset(params.scale_swizzled, static_cast<i64>(swizzled_row_offset(row, blocks_of_row(config))))),
          scale_linear(byte_offset(params.scale_linear, row * params.scale_stride)),
          y(byte_offset(params.y_out, 2 * params.y_out_stride * row)),
          rstd(reciprocal_sqrt(fma(sum_of_squares, 1.0f / static_cast<float>(config.hidden), params.eps))),
          global_scale(global_scale_value) {}
};

// Before find_scales, which may change the weighted values.
template <u32 kElements, class Config>
NQ_DEVICE void write_y(const Config& config, const RowOutput& row, const float* p, u32 element, bool exists) {
    if (!config.y_out || !exists) return;
    u32 y[kElements / 2];
    NQ_UNROLL
    for (u32 i = 0; i < kElements / 2; ++i) y[i] = round_16x2(config.dtype, mul(p[2 * i], row.rstd), mul(p[2 * i + 1], row.rstd));
    store_words<kElements / 2>(byte_offset(row.y, 2 * static_cast<i64>(element)), y);
}

// The scales of kCount pieces, whose largest values are known. p and k together give what is to be encoded. exists(i): a piece that
// does not exist is all zeros, and no reason for a detour.
template <u32 kCount, u32 kElements, class Config, class Exists>
NQ_DEVICE void find_scales(const Config& config, const RowOutput& row, const float* largest, float (*p)[kElements], u32* byte, float* k,
                           Exists exists) {
    BlockScale scale[kCount];
    bool ordinary = true;
    NQ_UNROLL
    for (u32 i = 0; i < kCount; ++i) {
        scale[i] = block_scale(config, largest[i], row.rstd, row.global_scale);
        byte[i] = scale[i].byte;
        k[i] = scale[i].k;
        ordinary = ordinary && (scale[i].ordinary || !exists(i));
    }
    // One branch for all, so that the pieces' chains of dependent steps overlap.
    if (ordinary) return;
    NQ_UNROLL
    for (u32 i = 0; i < kCount; ++i) {
        const float special = special_k(config, scale[i]);
        if (config.fp4_path == kFp4Native) {  // takes any value
            k[i] = special;
            continue;
        }
        NQ_UNROLL
        for (u32 e = 0; e < kElements; ++e) p[i][e] = saturate(mul(p[i][e], special));
        k[i] = 1.0f;
    }
}

template <u32 kElements, class Config>
NQ_DEVICE void write_codes(const Config& config, const RowOutput& row, const float* p, float k, u32 element, bool exists) {
    float q[kElements];
    const float k_twice[2] = {k, k};
    NQ_UNROLL
    for (u32 e = 0; e < kElements; e += 2) mul_pair(config, q + e, p + e, k_twice);
    const u32 codes = e2m1x8(config, q), more_codes = kElements == 16 ? e2m1x8(config, q + kElements - 8) : 0;
    if (!exists) return;
    if (kElements == 16) {
        store_64(byte_offset(row.fp4, element / 2), codes, more_codes);
    } else {
        store_32(byte_offset(row.fp4, element / 2), codes);
    }
}

template <class Config>
NQ_DEVICE void write_scale_linear(const Config& config, const RowOutput& row, u32 byte, u32 element, bool exists) {
    if (config.linear && exists && element % config.block_size == 0) store_8(byte_offset(row.scale_linear, element / config.block_size), byte);
}
template <class Config>
NQ_DEVICE void write_scale_swizzled(const Config& config, const RowOutput& row, u32 byte, u32 element, bool exists) {
    if (!config.swizzled || !exists || element % config.block_size != 0) return;
    store_8(byte_offset(row.scale_swizzled, swizzled_block_offset(element / config.block_size)), byte);
}

// Padding behind a row's last block.
template <class Config>
NQ_DEVICE void zero_padding_blocks(const Config& config, const Params& params, const RowOutput& row, u32 thread) {
    const u32 blocks = blocks_of_row(config), padded = scale_tiles(blocks) * kTileBlocks;
    if (!config.swizzled || !params.zero_padding || blocks % kTileBlocks == 0) return;
    for (u32 b = blocks + thread; b < padded; b += config.threads_per_row) store_8(byte_offset(row.scale_swizzled, swizzled_block_offset(b)), 0);
}

// Padding rows, from the first that there is not to the end of the buffer, by threads that have nothing else to do: 16 bytes at a time,
// which hold the scales of 4 rows.
template <class Config>
NQ_DEVICE void zero_padding_rows(const Config& config, const Params& params, u32 rows, u64 spare_thread, u64 spare_threads) {
    if (!config.swizzled || !params.zero_padding) return;
    const u64 tile_chunks = kTileBytes / 16, live = rows % kTileRows;
    const u64 first = rows / kTileRows, end = padded_rows(params.rows) / kTileRows;
    const u64 row_of_tiles = scale_tiles(blocks_of_row(config)) * tile_chunks;
    void* tiles = byte_offset(params.scale_swizzled, static_cast<i64>(first * row_of_tiles * 16));
    for (u64 chunk = spare_thread; chunk < (end - first) * row_of_tiles; chunk += spare_threads) {
        void* at = byte_offset(tiles, static_cast<i64>(chunk * 16));
        const u64 row = chunk % tile_chunks, live_here = chunk < row_of_tiles ? live : 0;
        if (row >= live_here) {
            store_128(at, 0, 0, 0, 0);
            continue;
        }
        for (u32 j = 1; j < 4; ++j) {
            if (row + 32 * j >= live_here) store_32(byte_offset(at, 4 * j), 0);
        }
    }
}

}  // namespace normquant
