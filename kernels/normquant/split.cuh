// The form for few rows: several blocks share a row, and each thread quantizes one vector of it. Every block finds the sum of squares for
// itself: reading the row from L2 once more takes less time than asking the other blocks.
#pragma once

#include <normquant/row.cuh>

namespace normquant {

// Padding rows of a swizzled scale buffer, by the blocks behind the last row: 16 bytes a thread, which hold the scales of 4 rows.
template <class Config, class Block>
NQ_DEVICE void zero_padding_rows(const Config& config, const Block& block, const Params& params) {
    const u32 tiles = scale_tiles(config.hidden / config.block_size), live = static_cast<u32>(params.rows % kTileRows);
    const u32 spare_block = (block.index() - static_cast<u32>(params.rows)) * block.parts() + block.part();
    const u32 chunk = spare_block * block.threads() + block.thread(), r = chunk % 32;
    if (!params.zero_padding || chunk >= tiles * (kTileBytes / 16)) return;
    void* at = byte_offset(params.scale, params.rows / kTileRows * (tiles * kTileBytes) + chunk * 16);
    if (r >= live) return store_128(at, 0, 0, 0, 0);
    NQ_UNROLL
    for (u32 j = 1; j < 4; ++j) {
        if (r + 32 * j >= live) store_32(byte_offset(at, 4 * j), 0);
    }
}

template <class Config, class Block>
NQ_DEVICE void rmsnorm_fp4_split(const Config& config, const Block& block, const Params& params) {
    constexpr u32 kElements = Config::kElements, kVector = Config::kVector;
    const bool held = config.in_registers;
    const i64 row = block.index();
    if (config.swizzled && row >= params.rows) return zero_padding_rows(config, block, params);
    const void* x_row = byte_offset(params.x, 2 * row * params.x_stride);
    const u32 vector = block.part() * block.threads() + block.thread(), element = vector * kVector;
    const bool exists = element < config.hidden;

    // All loads before their first use: the thread's part of the sum, and the vector that it quantizes.
    const Walk<Config> walk(config, block.thread());
    u32 summed[Config::kPieces][kElements / 2], x[kVector / 2], w[kVector];
    if (held) walk.each_piece(config, [&](u32 piece, u32, u32 e, bool there) { load_x<kElements>(config, summed[piece], x_row, e, there); });
    load_x<kVector>(config, x, x_row, element, exists);
    load_weight<kVector>(config, w, params.weight, element, exists);
    const float global_scale = global_scale_of(config, params);

    Lane lanes[Config::kLanes];
    walk.each_piece(config, [&](u32 piece, u32 slot, u32 e, bool there) {
        const u32 i = held ? piece : 0;
        if (!held) load_x<kElements>(config, summed[i], x_row, e, there);
        NQ_UNROLL
        for (u32 v = 0; v < kElements / 8; ++v) lanes[slot * (kElements / 8) + v].accumulate(config, summed[i] + 4 * v);
    });
    float p[1][kVector], largest = weigh<kVector>(config, p[0], x, w);
    NQ_UNROLL
    for (u32 d = 1; d < config.block_size / kVector; d *= 2) largest = max_nan(largest, block.shuffle_xor(largest, d));

    float* sums = block.warp_sums();
    const float sum = row_sum(config, block, lane_sum(config, lanes), sums, [&](float warp_sum) {
        share_sum<1>(config, block, sums + block.thread() / 32, warp_sum, &largest);
    });

    const RowOutput output = row_output(config, params, row, sum, global_scale);
    u32 byte;
    float k;
    find_scales<1, kVector>(config, output, &largest, p, &byte, &k, [&](u32) { return exists; });
    write_codes<kVector>(config, output, p[0], k, element, exists);
    write_scale(config, output, byte, element, exists);
    if (config.swizzled && params.zero_padding) zero_scale_padding(config, params, row, vector);
}

}  // namespace normquant
