// The form for few rows: several blocks share a row, and each thread quantizes one vector of it. Every block finds the sum of squares for
// itself: reading the row from L2 once more takes less time than asking the other blocks. Not for a residual that is updated in place:
// a block might read what another has written.
#pragma once

#include <normquant/input.cuh>
#include <normquant/output.cuh>

namespace normquant {

template <class Config, class Block>
NQ_DEVICE void rmsnorm_fp4_split(const Config& config, const Block& block, const Params& params) {
    constexpr u32 kElements = Config::kElements, kVector = Config::kVector;
    const bool held = config.in_registers;
    wait_for_inputs(config, block, params);
    const u32 row = block.index(), rows = rows_of(config, params);
    const u32 vector = block.part() * block.threads() + block.thread(), element = vector * kVector;
    if (may_have_spare_blocks(config) && row >= rows) {
        const u64 threads = block.parts() * block.threads();
        return zero_padding_rows(config, params, rows, (row - rows) * threads + vector, (block.blocks() - rows) * threads);
    }
    const RowInput input(config, params, row);
    const bool exists = element < config.hidden;

    // All loads before their first use: the thread's part of the sum, and the vector that it quantizes.
    const Walk<Config> walk(config, block.thread());
    u32 summed[Config::kPieces][kElements / 2], x[kVector / 2], w[kVector];
    if (held) walk.each_piece(config, [&](u32 piece, u32, u32 e, bool there) { load_x<kElements>(config, summed[piece], input, e, there); });
    load_x<kVector>(config, x, input, element, exists);
    load_weight<kVector>(config, w, params.weight, element, exists);
    const float global_scale = global_scale_of(config, params);
    if (config.overlap) block.release_dependents();

    Lane lanes[Config::kLanes];
    walk.each_piece(config, [&](u32 piece, u32 slot, u32 e, bool there) {
        const u32 i = held ? piece : 0;
        if (!held) load_x<kElements>(config, summed[i], input, e, there);
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

    const RowOutput output(config, params, row, sum, global_scale);
    write_y<kVector>(config, output, p[0], element, exists);
    u32 byte;
    float k;
    find_scales<1, kVector>(config, output, &largest, p, &byte, &k, [&](u32) { return exists; });
    write_codes<kVector>(config, output, p[0], k, element, exists);
    write_scale_linear(config, output, byte, element, exists);
    write_scale_swizzled(config, output, byte, element, exists);
    if (block.part() == 0) zero_padding_blocks(config, params, output, block.thread());
}

}  // namespace normquant
