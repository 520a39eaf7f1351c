// RMSNorm -> FP4 in one pass: a thread keeps its part of the row in registers between the sum of squares and the quantization.
#pragma once

#include <normquant/input.cuh>
#include <normquant/output.cuh>

namespace normquant {

// Straight from global memory: a row for each threads_per_row threads of the block, or for a cluster of blocks.
template <class Config, class Block>
NQ_DEVICE void rmsnorm_fp4(const Config& config, const Block& block, const Params& params) {
    constexpr u32 kElements = Config::kElements;
    const bool held = config.in_registers, one_row = config.rows_per_block == 1;

    wait_for_inputs(config, block, params);
    const u32 rows = rows_of(config, params), row_blocks = (rows + config.rows_per_block - 1) / config.rows_per_block;
    const u32 row_thread = (config.cluster > 1 ? block.part() * block.threads() : 0) + block.thread();
    if (may_have_spare_blocks(config) && block.index() >= row_blocks) {
        const u64 threads = config.cluster * block.threads();
        return zero_padding_rows(config, params, rows, (block.index() - row_blocks) * threads + row_thread, (block.blocks() - row_blocks) * threads);
    }
    const u32 thread = row_thread % config.threads_per_row, row_of_block = row_thread / config.threads_per_row;
    const u32 row = block.index() * config.rows_per_block + row_of_block;
    // Threads of other rows only take part in shuffles and barriers, with zeros; a block of one row has none.
    const bool live = one_row || row < rows;
    if (config.cluster > 1) {
        if (block.thread() == 0) {
            block.sums_arrival().init();
            ArrivalBarrier::publish();
            block.sums_arrival().expect(config.threads_per_row / 32 * 4);
        }
        block.cluster_arrive();
    }
    const Walk<Config> walk(config, thread);
    const RowInput input(config, params, row);

    // Input, its sum of squares and, where there is room, the weighted values.
    u32 x[Config::kPieces][kElements / 2], r[Config::kProducts][kElements / 2];
    float p[Config::kProducts][kElements], largest[Config::kProducts] = {};
    Lane lanes[Config::kLanes];
    const auto load = [&](u32 i, u32 element, bool exists) {
        load_x<kElements>(config, x[i], input, element, live && exists);
        if (config.add && config.hold_products) load_residual<kElements>(r[i], input, element, live && exists);
    };
    const auto weigh_into = [&](u32 i, const u32* x_piece, u32 element, bool exists) {
        u32 w[kElements];
        load_weight<kElements>(config, w, params.weight, element, live && exists);
        largest[i] = weigh_piece(config, block, p[i], x_piece, w);
    };
    if (held) walk.each_piece(config, [&](u32 piece, u32, u32 element, bool exists) { load(piece, element, exists); });
    const float global_scale = global_scale_of(config, params);
    if (config.overlap) block.release_dependents();
    walk.each_piece(config, [&](u32 piece, u32 slot, u32 element, bool exists) {
        const u32 i = held ? piece : 0;
        if (!held) load(i, element, exists);
        if (config.add) {
            u32* residual = r[config.hold_products ? i : 0];
            if (!config.hold_products) load_residual<kElements>(residual, input, element, live && exists);
            add_residual<kElements>(config, x[i], residual, input, element, live && exists);
        }
        NQ_UNROLL
        for (u32 v = 0; v < kElements / 8; ++v) lanes[slot * (kElements / 8) + v].accumulate(config, x[i] + 4 * v);
        if (config.hold_products) weigh_into(i, x[i], element, exists);
    });
    float* sums = block.warp_sums() + row_of_block * (config.threads_per_row / 32);
    const float sum = row_sum(config, block, lane_sum(config, lanes), sums, [&](float warp_sum) {
        share_sum<Config::kProducts>(config, block, sums + thread / 32, warp_sum, largest);
    });

    const RowOutput output(config, params, row, sum, global_scale);
    u32 byte[Config::kProducts] = {};
    float k[Config::kProducts] = {};
    if (config.hold_products) {
        walk.each_piece(config, [&](u32 piece, u32, u32 element, bool exists) {
            write_y<kElements>(config, output, p[piece], element, live && exists);
        });
        find_scales<Config::kProducts, kElements>(config, output, largest, p, byte, k, [&](u32 i) { return live && walk.piece_exists(config, i); });
    }
    walk.each_piece(config, [&](u32 piece, u32, u32 element, bool exists) {
        const u32 i = held ? piece : 0, product = config.hold_products ? piece : 0;
        if (!config.hold_products) {
            if (!held && config.add) load_sum<kElements>(x[i], input, element, live && exists);
            else if (!held) load(i, element, exists);
            // Without this the unpacked row, twice the size of the packed one, stays in registers from the first pass on.
            NQ_UNROLL
            for (u32 word = 0; word < kElements / 2; ++word) forget_origin(x[i][word]);
            weigh_into(0, x[i], element, exists);
            write_y<kElements>(config, output, p[0], element, live && exists);
            find_scales<1, kElements>(config, output, largest, p, byte, k, [&](u32) { return live && exists; });
        }
        write_codes<kElements>(config, output, p[product], k[product], element, live && exists);
        write_scale_linear(config, output, byte[product], element, live && exists);
        write_scale_swizzled(config, output, byte[product], element, live && exists);
    });
    if (live) zero_padding_blocks(config, params, output, thread);
}

}  // namespace normquant
