// RMSNorm -> FP4 in one pass: a thread keeps its part of the row in registers between the sum of squares and the quantization.
//
// Config holds what a kernel is specialized for. In a generated unit its members are static constexpr, in the emulator a run-time
// object, which only fixes the array sizes:
//   hidden, dtype, weight_dtype, block_size, scale_format, swizzled   the problem
//   threads_per_row, load_bytes                                       the plan
//   fp4_path, native_e4m3                                             the target
//   kElements                                                         of a piece: 16, or 8 where 8*T0 threads share a row
//   kPieces, kLanes, kTurnUnroll                                      array sizes; 1 keeps the turns of a wide row a loop
#pragma once

#include <normquant/fp4.cuh>
#include <normquant/geometry.h>
#include <normquant/memory.cuh>
#include <normquant/params.h>
#include <normquant/reduce.cuh>
#include <normquant/scale.cuh>
#include <normquant/scale_layout.h>

namespace normquant {

// The two accumulators of one lane of the summation tree.
struct Lane {
    float even = 0.0f, odd = 0.0f;

    NQ_DEVICE void accumulate(u32 dtype, const u32* vector) {  // 8 elements
        NQ_UNROLL
        for (u32 i = 0; i < 8; i += 2) {
            const float a = unpack(dtype, vector, i), b = unpack(dtype, vector, i + 1);
            even = fma(a, a, even);
            odd = fma(b, b, odd);
        }
    }
};

// Where a thread's pieces lie. It owns the lane pairs first_slot ... first_slot + slots - 1 of one column of the tree; its piece
// (turn, slot) is the granule of round 4*turn + first_slot + slot in that column, or the half of it that is the thread's lane.
template <class Config>
struct Walk {
    u32 column, first_slot, half;

    NQ_DEVICE Walk(const Config& config, u32 thread) {
        if (Config::kElements == 8) {
            column = thread / 8;
            first_slot = thread % 8 / 2;
            half = thread % 2;
        } else {
            const u32 slot = thread * slots(config);
            column = slot / 4;
            first_slot = slot % 4;
            half = 0;
        }
    }

    NQ_DEVICE static u32 slots(const Config& config) { return slots_per_thread(config.hidden, config.threads_per_row); }
    NQ_DEVICE static u32 turns(const Config& config) { return normquant::turns(config.hidden); }
    // No thread has a piece there: known at compile time.
    NQ_DEVICE static bool never(const Config& config, u32 turn, u32 slot) { return 4 * turn + slot >= column_rounds(config.hidden); }

    NQ_DEVICE u32 granule(const Config& config, u32 turn, u32 slot) const {
        return column + tree_threads(config.hidden) * (4 * turn + first_slot + slot);
    }
    NQ_DEVICE bool exists(const Config& config, u32 turn, u32 slot) const {
        const u32 last_round = 4 * turn + 4 - slots(config) + slot;  // of any thread
        const bool always = (last_round + 1) * tree_threads(config.hidden) <= config.hidden / kGranule;
        return always || granule(config, turn, slot) < config.hidden / kGranule;
    }
    NQ_DEVICE u32 element(const Config& config, u32 turn, u32 slot) const {
        return granule(config, turn, slot) * kGranule + half * 8;
    }
};

template <class Config>
NQ_DEVICE void load_piece(const Config& config, u32* x, const void* row, u32 element, bool exists) {
    NQ_UNROLL
    for (u32 i = 0; i < Config::kElements / 2; ++i) x[i] = 0;
    if (exists) load_words<Config::kElements / 2>(config, x, byte_offset(row, 2 * static_cast<i64>(element)));
}

// p[e] = v[e] * W[e]; returns max |p|, NaN if any p is.
template <class Config>
NQ_DEVICE float weigh(const Config& config, float* p, const u32* x, const void* weight, u32 element, bool exists) {
    constexpr u32 kElements = Config::kElements;
    u32 w[kElements];  // 16-bit weights fill the first half
    NQ_UNROLL
    for (u32 i = 0; i < kElements; ++i) w[i] = 0;
    if (exists) {
        if (config.weight_dtype == kFp32) {
            load_words<kElements>(config, w, byte_offset(weight, 4 * static_cast<i64>(element)));
        } else {
            load_words<kElements / 2>(config, w, byte_offset(weight, 2 * static_cast<i64>(element)));
        }
    }
    float largest = 0.0f;
    NQ_UNROLL
    for (u32 e = 0; e < kElements; ++e) {
        p[e] = mul(unpack(config.dtype, x, e), config.weight_dtype == kFp32 ? as_float(w[e]) : unpack(config.weight_dtype, w, e));
        largest = max_nan(largest, abs(p[e]));
    }
    return largest;
}

// Padding of a swizzled scale buffer: the blocks behind a row's last, and whole rows behind the last.
template <class Config>
NQ_DEVICE void zero_scale_padding(const Config& config, const Params& params, i64 row, u32 thread) {
    const u32 blocks = config.hidden / config.block_size, tiles = scale_tiles(blocks);
    void* scales = byte_offset(params.scale, static_cast<i64>(swizzled_row_offset(static_cast<u64>(row), blocks)));
    if (row < params.rows) {
        for (u32 b = blocks + thread; b < tiles * kTileBlocks; b += config.threads_per_row) {
            store_8(byte_offset(scales, swizzled_block_offset(b)), 0);
        }
    } else if (static_cast<u64>(row) < padded_rows(static_cast<u64>(params.rows))) {
        for (u32 t = thread; t < tiles; t += config.threads_per_row) store_32(byte_offset(scales, t * kTileBytes), 0);
    }
}

template <class Config, class Block>
NQ_DEVICE void rmsnorm_fp4(const Config& config, const Block& block, const Params& params) {
    constexpr u32 kElements = Config::kElements;
    const u32 slots = Walk<Config>::slots(config), turns = Walk<Config>::turns(config);
    const bool held = row_in_registers(config.hidden, config.threads_per_row);

    const u32 thread = block.thread() % config.threads_per_row;
    const i64 row = static_cast<i64>(block.index()) * (block.threads() / config.threads_per_row) + block.thread() / config.threads_per_row;
    const bool live = row < params.rows;  // threads of other rows only take part in shuffles and barriers, with zeros
    const Walk<Config> walk(config, thread);
    const void* x_row = byte_offset(params.x, 2 * row * params.x_stride);

    // Input, and its sum of squares.
    u32 x[Config::kPieces][kElements / 2];
    Lane lanes[Config::kLanes];
    if (held) {
        NQ_UNROLL
        for (u32 turn = 0; turn < turns; ++turn) {
            NQ_UNROLL
            for (u32 slot = 0; slot < slots; ++slot) {
                load_piece(config, x[turn * slots + slot], x_row, walk.element(config, turn, slot), live && walk.exists(config, turn, slot));
            }
        }
    }
    NQ_UNROLL_TURNS
    for (u32 turn = 0; turn < turns; ++turn) {
        NQ_UNROLL
        for (u32 slot = 0; slot < slots; ++slot) {
            if (Walk<Config>::never(config, turn, slot)) continue;
            u32* piece = x[held ? turn * slots + slot : 0];
            if (!held) load_piece(config, piece, x_row, walk.element(config, turn, slot), live && walk.exists(config, turn, slot));
            NQ_UNROLL
            for (u32 v = 0; v < kElements / 8; ++v) lanes[slot * (kElements / 8) + v].accumulate(config.dtype, piece + 4 * v);
        }
    }
    const u32 lane_count = slots * (kElements / 8);  // 8, 4, 2 or 1
    float sums[8];
    NQ_UNROLL
    for (u32 i = 0; i < 8; ++i) sums[i] = i < lane_count ? add(lanes[i < lane_count ? i : 0].even, lanes[i < lane_count ? i : 0].odd) : 0.0f;
    // Adjacent pairs until one is left.
    NQ_UNROLL
    for (u32 i = 0; i < 4; ++i) sums[i] = lane_count == 8 ? add(sums[2 * i], sums[2 * i + 1]) : sums[i];
    NQ_UNROLL
    for (u32 i = 0; i < 2; ++i) sums[i] = lane_count >= 4 ? add(sums[2 * i], sums[2 * i + 1]) : sums[i];
    if (lane_count >= 2) sums[0] = add(sums[0], sums[1]);
    const float sum_of_squares = row_sum(config, block, sums[0]);

    // Normalization factor.
    const float rstd = reciprocal_sqrt(fma(sum_of_squares, 1.0f / static_cast<float>(config.hidden), params.eps));
    const float global_scale = config.scale_format == kE4m3 && params.global_scale ? load_float(params.global_scale) : 1.0f;

    // Block scales and codes.
    const u32 blocks = config.hidden / config.block_size;
    void* fp4_row = byte_offset(params.fp4, row * params.fp4_stride);
    void* scale_row = byte_offset(params.scale, static_cast<i64>(scale_offset(static_cast<u64>(row), 0, blocks, config.swizzled)));
    NQ_UNROLL_TURNS
    for (u32 turn = 0; turn < turns; ++turn) {
        NQ_UNROLL
        for (u32 slot = 0; slot < slots; ++slot) {
            if (Walk<Config>::never(config, turn, slot)) continue;
            const u32 element = walk.element(config, turn, slot);
            const bool exists = live && walk.exists(config, turn, slot);
            u32* piece = x[held ? turn * slots + slot : 0];
            if (!held) load_piece(config, piece, x_row, element, exists);
            // Without this the unpacked row, twice the size of the packed one, stays in registers from the first pass on.
            NQ_UNROLL
            for (u32 i = 0; i < kElements / 2; ++i) forget_origin(piece[i]);

            float p[kElements];
            float block_max = weigh(config, p, piece, params.weight, element, exists);
            if (kElements == 8) block_max = max_nan(block_max, block.shuffle_xor(block_max, 1));
            if (config.block_size == 32) {
                block_max = max_nan(block_max, block.shuffle_xor(block_max, block32_partner(config.hidden, config.threads_per_row)));
            }
            const BlockScale scale = block_scale(config, block_max, rstd, global_scale);
            NQ_UNROLL
            for (u32 e = 0; e < kElements; ++e) p[e] = mul(p[e], scale.k);
            if (!exists) continue;

            if (kElements == 16) {
                store_64(byte_offset(fp4_row, element / 2), e2m1x8(config, p), e2m1x8(config, p + kElements - 8));
            } else {
                store_32(byte_offset(fp4_row, element / 2), e2m1x8(config, p));
            }
            if (element % config.block_size == 0) {
                const u32 b = element / config.block_size;
                store_8(byte_offset(scale_row, config.swizzled ? swizzled_block_offset(b) : b), scale.byte);
            }
        }
    }
    if (config.swizzled && params.zero_padding) zero_scale_padding(config, params, row, thread);
}

}  // namespace normquant
