// What all forms of the kernel are built of: how a row is divided among threads, summed, weighed and written.
//
// Config holds what a kernel is specialized for. In a generated unit its members are static constexpr, in the emulator a run-time
// object, which only fixes the array sizes:
//   hidden, dtype, weight_dtype, block_size, scale_format, swizzled   the problem
//   threads_per_row, rows_per_block, load_bytes                       the plan
//   tree, rounds, slots, turns, in_registers, block32_partner         geometry.h's, computed once: here they would cost the compiler more
//                                                                     than all else
//   cluster                                                           blocks that share a row and its sum; 1: none
//   row_groups, row_buffers                                           the staged form: the most a block may have; buffers of each
//   fp4_path, native_e4m3, packed_f32, copy_to_cta                    the target
//   hold_products                                                     the weighted values stay in registers, not the packed row
//   kElements                                                         of a piece: 16, or 8 where 8*T0 threads share a row
//   kVector                                                           the split form: elements that a thread quantizes, 8 or 16
//   kPieces, kProducts, kLanes, kTurnUnroll                           array sizes; 1 keeps the turns of a wide row a loop
#pragma once

#include <normquant/block.cuh>
#include <normquant/fp4.cuh>
#include <normquant/geometry.h>
#include <normquant/memory.cuh>
#include <normquant/params.h>
#include <normquant/reduce.cuh>
#include <normquant/scale.cuh>
#include <normquant/scale_layout.h>

namespace normquant {

// d = a * b and d = a * b + c of two values, side by side in all operands.
template <class Config>
NQ_DEVICE void mul_pair(const Config& config, float* d, const float* a, const float* b) {
    if (config.packed_f32) return mul_f32x2(d, a, b);
    d[0] = mul(a[0], b[0]);
    d[1] = mul(a[1], b[1]);
}
template <class Config>
NQ_DEVICE void fma_pair(const Config& config, float* d, const float* a, const float* b, const float* c) {
    if (config.packed_f32) return fma_f32x2(d, a, b, c);
    d[0] = fma(a[0], b[0], c[0]);
    d[1] = fma(a[1], b[1], c[1]);
}

// The two accumulators of one lane of the summation tree: of its even and of its odd elements.
struct Lane {
    float sums[2] = {};

    template <class Config>
    NQ_DEVICE void accumulate(const Config& config, const u32* vector) {  // 8 elements
        NQ_UNROLL
        for (u32 i = 0; i < 8; i += 2) {
            const float v[2] = {unpack(config.dtype, vector, i), unpack(config.dtype, vector, i + 1)};
            fma_pair(config, sums, v, v, sums);
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
            const u32 slot = thread * config.slots;
            column = slot / 4;
            first_slot = slot % 4;
            half = 0;
        }
    }

    // No thread has a piece there: known at compile time.
    NQ_DEVICE static bool never(const Config& config, u32 turn, u32 slot) { return 4 * turn + slot >= config.rounds; }

    NQ_DEVICE u32 granule(const Config& config, u32 turn, u32 slot) const {
        return column + config.tree * (4 * turn + first_slot + slot);
    }
    NQ_DEVICE bool exists(const Config& config, u32 turn, u32 slot) const {
        const u32 last_round = 4 * turn + 4 - config.slots + slot;  // of any thread
        const bool always = (last_round + 1) * config.tree <= config.hidden / kGranule;
        return always || granule(config, turn, slot) < config.hidden / kGranule;
    }
    NQ_DEVICE u32 element(const Config& config, u32 turn, u32 slot) const {
        return granule(config, turn, slot) * kGranule + half * 8;
    }

    // Of a piece by its number. Only the last turn has fewer pieces than slots.
    NQ_DEVICE bool piece_exists(const Config& config, u32 piece) const {
        return exists(config, piece / config.slots, piece % config.slots);
    }

    // visit(piece, slot, first element, whether it exists), pieces counted from 0 in ascending rounds.
    template <class Visit>
    NQ_DEVICE void each_piece(const Config& config, Visit visit) const {
        NQ_UNROLL_TURNS
        for (u32 turn = 0; turn < config.turns; ++turn) {
            NQ_UNROLL
            for (u32 slot = 0; slot < config.slots; ++slot) {
                if (never(config, turn, slot)) continue;
                visit(turn * config.slots + slot, slot, element(config, turn, slot), exists(config, turn, slot));
            }
        }
    }
};

template <u32 kElements, class Config>
NQ_DEVICE void load_x(const Config& config, u32* x, const void* row, u32 element, bool exists) {
    NQ_UNROLL
    for (u32 i = 0; i < kElements / 2; ++i) x[i] = 0;
    if (exists) load_words<kElements / 2>(config, x, byte_offset(row, 2 * static_cast<i64>(element)));
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
template <class Config>
NQ_DEVICE float weight_of(const Config& config, const u32* w, u32 e) {
    return config.weight_dtype == kFp32 ? as_float(w[e]) : unpack(config.weight_dtype, w, e);
}

// Of kCount values, NaN if one is. By threes: some targets have the maximum of three as one instruction.
template <u32 kCount>
NQ_DEVICE float max_magnitude(const float* v) {
    if constexpr (kCount == 1) {
        return abs(v[0]);
    } else if constexpr (kCount == 2) {
        return max_nan(abs(v[0]), abs(v[1]));
    } else {
        constexpr u32 kThrees = kCount / 3, kLeft = kThrees + kCount % 3;
        float m[kLeft];
        NQ_UNROLL
        for (u32 i = 0; i < kLeft; ++i) {
            m[i] = i < kThrees ? max_nan(max_nan(abs(v[3 * i]), abs(v[3 * i + 1])), abs(v[3 * i + 2])) : v[2 * kThrees + i];
        }
        return max_magnitude<kLeft>(m);
    }
}

// p[e] = v[e] * W[e]; returns the largest magnitude, NaN if one is.
template <u32 kElements, class Config>
NQ_DEVICE float weigh(const Config& config, float* p, const u32* x, const u32* w) {
    NQ_UNROLL
    for (u32 e = 0; e < kElements; e += 2) {
        const float v[2] = {unpack(config.dtype, x, e), unpack(config.dtype, x, e + 1)};
        const float factor[2] = {weight_of(config, w, e), weight_of(config, w, e + 1)};
        mul_pair(config, p + e, v, factor);
    }
    return max_magnitude<kElements>(p);
}

// The same of the block that a piece of the walk belongs to.
template <class Config, class Block>
NQ_DEVICE float weigh_piece(const Config& config, const Block& block, float* p, const u32* x, const u32* w) {
    float largest = weigh<Config::kElements>(config, p, x, w);
    if (Config::kElements == 8) largest = max_nan(largest, block.shuffle_xor(largest, 1));
    if (config.block_size == 32) {
        largest = max_nan(largest, block.shuffle_xor(largest, config.block32_partner));
    }
    return largest;
}

// What a thread knows of the row it writes.
struct RowOutput {
    void* fp4;
    void* scale;
    float rstd, global_scale;
};

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
NQ_DEVICE void write_scale(const Config& config, const RowOutput& row, u32 byte, u32 element, bool exists) {
    if (!exists || element % config.block_size != 0) return;
    const u32 b = element / config.block_size;
    store_8(byte_offset(row.scale, config.swizzled ? swizzled_block_offset(b) : b), byte);
}

// Padding of a swizzled scale buffer: the blocks behind a row's last, and whole rows behind the last.
template <class Config>
NQ_DEVICE void zero_scale_padding(const Config& config, const Params& params, i64 row, u32 thread) {
    const u32 blocks = config.hidden / config.block_size, tiles = scale_tiles(blocks);
    void* scales = byte_offset(params.scale, static_cast<i64>(swizzled_row_offset(static_cast<u64>(row), blocks)));
    if (row < params.rows) {
        if (blocks % kTileBlocks == 0) return;
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
    const u32 lane_count = config.slots * (Config::kElements / 8);  // 8, 4, 2 or 1
    float sums[8];
    NQ_UNROLL
    for (u32 i = 0; i < 8; ++i) sums[i] = i < lane_count ? add(lanes[i < lane_count ? i : 0].sums[0], lanes[i < lane_count ? i : 0].sums[1]) : 0.0f;
    NQ_UNROLL
    for (u32 i = 0; i < 4; ++i) sums[i] = lane_count == 8 ? add(sums[2 * i], sums[2 * i + 1]) : sums[i];
    NQ_UNROLL
    for (u32 i = 0; i < 2; ++i) sums[i] = lane_count >= 4 ? add(sums[2 * i], sums[2 * i + 1]) : sums[i];
    return lane_count >= 2 ? add(sums[0], sums[1]) : sums[0];
}

// A warp's sum to where all threads of the row find it, in each of its blocks. largest: of the thread's kCount pieces.
template <u32 kCount, class Config, class Block>
NQ_DEVICE void share_sum(const Config& config, const Block& block, float* place, float warp_sum, const float* largest) {
    const u32 lane = block.thread() % 32;
    // Never true, which the compiler cannot know: the weighted values are to be found while the sum is on its way, not after.
    NQ_UNROLL
    for (u32 i = 0; i < kCount; ++i) {
        if (largest[i] < 0.0f) *place = largest[i];
    }
    if (config.cluster == 1) {
        if (lane == 0) *place = warp_sum;
        block.barrier();
    } else {
        ArrivalBarrier& arrival = block.sums_arrival();
        block.cluster_wait();  // every block runs: its shared memory is there
        if (lane < config.cluster) block.send(lane, arrival, place, warp_sum);
        block.wait_until([&] { return arrival.has_passed(0); });
    }
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

}  // namespace normquant
