// RMSNorm -> FP4 in one pass: a thread keeps its part of the row in registers between the sum of squares and the quantization.
//
// Config holds what a kernel is specialized for. In a generated unit its members are static constexpr, in the emulator a run-time
// object, which only fixes the array sizes:
//   hidden, dtype, weight_dtype, block_size, scale_format, swizzled   the problem
//   threads_per_row, load_bytes                                       the plan
//   fp4_path, native_e4m3                                             the target
//   hold_products                                                     the weighted values stay in registers, not the packed row
//   kElements                                                         of a piece: 16, or 8 where 8*T0 threads share a row
//   kPieces, kProducts, kLanes, kTurnUnroll                           array sizes; 1 keeps the turns of a wide row a loop
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

    // Of a piece by its number. Only the last turn has fewer pieces than slots.
    NQ_DEVICE bool piece_exists(const Config& config, u32 piece) const {
        return exists(config, piece / slots(config), piece % slots(config));
    }

    // visit(piece, slot, first element, whether it exists), pieces counted from 0 in ascending rounds.
    template <class Visit>
    NQ_DEVICE void each_piece(const Config& config, Visit visit) const {
        NQ_UNROLL_TURNS
        for (u32 turn = 0; turn < turns(config); ++turn) {
            NQ_UNROLL
            for (u32 slot = 0; slot < slots(config); ++slot) {
                if (never(config, turn, slot)) continue;
                visit(turn * slots(config) + slot, slot, element(config, turn, slot), exists(config, turn, slot));
            }
        }
    }
};

template <class Config>
NQ_DEVICE void load_piece(const Config& config, u32* x, const void* row, u32 element, bool exists) {
    NQ_UNROLL
    for (u32 i = 0; i < Config::kElements / 2; ++i) x[i] = 0;
    if (exists) load_words<Config::kElements / 2>(config, x, byte_offset(row, 2 * static_cast<i64>(element)));
}

// Where a piece's weights are: 16-bit ones fill the first half of the words.
template <class Config>
NQ_DEVICE void load_weight(const Config& config, u32* w, const void* weight, u32 element, bool exists) {
    constexpr u32 kElements = Config::kElements;
    NQ_UNROLL
    for (u32 i = 0; i < kElements; ++i) w[i] = 0;
    if (!exists) return;
    if (config.weight_dtype == kFp32) {
        load_words<kElements>(config, w, byte_offset(weight, 4 * static_cast<i64>(element)));
    } else {
        load_words<kElements / 2>(config, w, byte_offset(weight, 2 * static_cast<i64>(element)));
    }
}
template <class Config>
NQ_DEVICE float weight_of(const Config& config, const u32* w, u32 e) {
    return config.weight_dtype == kFp32 ? as_float(w[e]) : unpack(config.weight_dtype, w, e);
}

// The largest magnitude of the block that a piece belongs to, NaN if one is.
template <class Config, class Block>
NQ_DEVICE float block_max(const Config& config, const Block& block, const float* p) {
    float m[Config::kElements / 2];
    NQ_UNROLL
    for (u32 e = 0; e < Config::kElements / 2; ++e) m[e] = max_nan(abs(p[e]), abs(p[e + Config::kElements / 2]));
    NQ_UNROLL
    for (u32 n = Config::kElements / 4; n > 0; n /= 2) {
        NQ_UNROLL
        for (u32 e = 0; e < n; ++e) m[e] = max_nan(m[e], m[e + n]);
    }
    float largest = m[0];
    if (Config::kElements == 8) largest = max_nan(largest, block.shuffle_xor(largest, 1));
    if (config.block_size == 32) {
        largest = max_nan(largest, block.shuffle_xor(largest, block32_partner(config.hidden, config.threads_per_row)));
    }
    return largest;
}

// p[e] = v[e] * W[e] of a piece; returns the largest magnitude of its block.
template <class Config, class Block>
NQ_DEVICE float weigh(const Config& config, const Block& block, float* p, const u32* x, const u32* w) {
    NQ_UNROLL
    for (u32 e = 0; e < Config::kElements; ++e) p[e] = mul(unpack(config.dtype, x, e), weight_of(config, w, e));
    return block_max(config, block, p);
}

// What a thread knows of the row it writes.
struct RowOutput {
    void* fp4;
    void* scale;
    float rstd, global_scale;
};

// The scales of kCount pieces, whose largest values are known. p and k together give what is to be encoded. exists(i): a piece that
// does not exist is all zeros, and no reason for a detour.
template <u32 kCount, class Config, class Exists>
NQ_DEVICE void find_scales(const Config& config, const RowOutput& row, const float* largest, float (*p)[Config::kElements], u32* byte, float* k,
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
        NQ_UNROLL
        for (u32 e = 0; e < Config::kElements; ++e) p[i][e] = saturate(mul(p[i][e], special));
        k[i] = 1.0f;
    }
}

// Codes and scale of a piece.
template <class Config>
NQ_DEVICE void write_piece(const Config& config, const RowOutput& row, const float* p, u32 byte, float k, u32 element, bool exists) {
    constexpr u32 kElements = Config::kElements;
    float q[kElements];
    NQ_UNROLL
    for (u32 e = 0; e < kElements; ++e) q[e] = mul(p[e], k);
    const u32 codes = e2m1x8(config, q), more_codes = kElements == 16 ? e2m1x8(config, q + kElements - 8) : 0;
    if (!exists) return;
    if (kElements == 16) {
        store_64(byte_offset(row.fp4, element / 2), codes, more_codes);
    } else {
        store_32(byte_offset(row.fp4, element / 2), codes);
    }
    if (element % config.block_size == 0) {
        const u32 b = element / config.block_size;
        store_8(byte_offset(row.scale, config.swizzled ? swizzled_block_offset(b) : b), byte);
    }
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

// The sum of a thread's lanes: adjacent pairs until one is left.
template <class Config>
NQ_DEVICE float lane_sum(const Config& config, const Lane* lanes) {
    const u32 lane_count = Walk<Config>::slots(config) * (Config::kElements / 8);  // 8, 4, 2 or 1
    float sums[8];
    NQ_UNROLL
    for (u32 i = 0; i < 8; ++i) sums[i] = i < lane_count ? add(lanes[i < lane_count ? i : 0].even, lanes[i < lane_count ? i : 0].odd) : 0.0f;
    NQ_UNROLL
    for (u32 i = 0; i < 4; ++i) sums[i] = lane_count == 8 ? add(sums[2 * i], sums[2 * i + 1]) : sums[i];
    NQ_UNROLL
    for (u32 i = 0; i < 2; ++i) sums[i] = lane_count >= 4 ? add(sums[2 * i], sums[2 * i + 1]) : sums[i];
    return lane_count >= 2 ? add(sums[0], sums[1]) : sums[0];
}

template <class Config>
NQ_DEVICE RowOutput row_output(const Config& config, const Params& params, i64 row, float sum_of_squares, float global_scale) {
    const u32 blocks = config.hidden / config.block_size;
    RowOutput output;
    output.fp4 = byte_offset(params.fp4, row * params.fp4_stride);
    output.scale = byte_offset(params.scale, static_cast<i64>(scale_offset(static_cast<u64>(row), 0, blocks, config.swizzled)));
    output.rstd = reciprocal_sqrt(fma(sum_of_squares, 1.0f / static_cast<float>(config.hidden), params.eps));
    output.global_scale = global_scale;
    return output;
}

template <class Config>
NQ_DEVICE float global_scale_of(const Config& config, const Params& params) {
    return config.scale_format == kE4m3 && params.global_scale ? load_float(params.global_scale) : 1.0f;
}

// A thread a part of one row, straight from global memory. One row for each threads_per_row threads of the block.
template <class Config, class Block>
NQ_DEVICE void rmsnorm_fp4(const Config& config, const Block& block, const Params& params) {
    constexpr u32 kElements = Config::kElements;
    const bool held = row_in_registers(config.hidden, config.threads_per_row);

    const u32 thread = block.thread() % config.threads_per_row;
    const u32 rows = block.threads() / config.threads_per_row, row_of_block = block.thread() / config.threads_per_row;
    const i64 row = static_cast<i64>(block.index()) * rows + row_of_block;
    const bool live = row < params.rows;  // threads of other rows only take part in shuffles and barriers, with zeros
    const Walk<Config> walk(config, thread);
    const void* x_row = byte_offset(params.x, 2 * row * params.x_stride);

    // Input, its sum of squares and, where there is room, the weighted values.
    u32 x[Config::kPieces][kElements / 2];
    float p[Config::kProducts][kElements], largest[Config::kProducts] = {};
    Lane lanes[Config::kLanes];
    const auto load = [&](u32 i, u32 element, bool exists) { load_piece(config, x[i], x_row, element, live && exists); };
    const auto weigh_into = [&](u32 i, const u32* x_piece, u32 element, bool exists) {
        u32 w[kElements];
        load_weight(config, w, params.weight, element, live && exists);
        largest[i] = weigh(config, block, p[i], x_piece, w);
    };
    if (held) walk.each_piece(config, [&](u32 piece, u32, u32 element, bool exists) { load(piece, element, exists); });
    const float global_scale = global_scale_of(config, params);
    walk.each_piece(config, [&](u32 piece, u32 slot, u32 element, bool exists) {
        const u32 i = held ? piece : 0;
        if (!held) load(i, element, exists);
        NQ_UNROLL
        for (u32 v = 0; v < kElements / 8; ++v) lanes[slot * (kElements / 8) + v].accumulate(config.dtype, x[i] + 4 * v);
        if (config.hold_products) weigh_into(i, x[i], element, exists);
    });
    float* sums = block.warp_sums() + row_of_block * (config.threads_per_row / 32);
    const float sum = row_sum(config, block, lane_sum(config, lanes), sums, [&] { block.barrier(); });

    const RowOutput output = row_output(config, params, row, sum, global_scale);
    u32 byte[Config::kProducts] = {};
    float k[Config::kProducts] = {};
    if (config.hold_products) find_scales<Config::kProducts>(config, output, largest, p, byte, k, [&](u32 i) { return live && walk.piece_exists(config, i); });
    walk.each_piece(config, [&](u32 piece, u32, u32 element, bool exists) {
        const u32 i = held ? piece : 0, product = config.hold_products ? piece : 0;
        if (!config.hold_products) {
            if (!held) load(i, element, exists);
            // Without this the unpacked row, twice the size of the packed one, stays in registers from the first pass on.
            NQ_UNROLL
            for (u32 word = 0; word < kElements / 2; ++word) forget_origin(x[i][word]);
            weigh_into(0, x[i], element, exists);
            find_scales<1>(config, output, largest, p, byte, k, [&](u32) { return live && exists; });
        }
        write_piece(config, output, p[product], byte[product], k[product], element, live && exists);
    });
    if (config.swizzled && params.zero_padding) zero_scale_padding(config, params, row, thread);
}

}  // namespace normquant
