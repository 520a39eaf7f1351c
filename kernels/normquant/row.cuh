// What all forms of the kernel are built of: how a row is divided among threads, weighed and summed. How it comes in is in input.cuh,
// how it is written in output.cuh.
//
// Config holds what a kernel is specialized for. In a generated unit its members are static constexpr, in the emulator a run-time
// object, which only fixes the array sizes:
//   hidden, dtype, weight_dtype, block_size, scale_format             the problem
//   swizzled, linear                                                  the layouts of the scales: one or both
//   add, weight_bias, y_out                                           the residual is added, 1 to the weight, the normed row written
//   device_rows, batches                                              the device may hold the row count; x may lie in batches
//   threads_per_row, rows_per_block, load_bytes                       the plan
//   tree, rounds, slots, turns, in_registers, block32_partner         geometry.h's, computed once: here they would cost the compiler more
//                                                                     than all else
//   cluster                                                           blocks that share a row and its sum; 1: none
//   row_groups, row_buffers                                           the staged form: the most a block may have; buffers of each
//   fp4_path, native_e4m3, packed_f32, copy_to_cta, overlap           the target; overlap: launches may, so that inputs are waited for
//   hold_products                                                     the weighted values stay in registers, not the packed row
//   kElements                                                         of a piece: 16, or 8 where 8*T0 threads share a row
//   kVector                                                           the split form: elements that a thread quantizes, 8 or 16
//   kPieces, kProducts, kLanes, kTurnUnroll                           array sizes; 1 keeps the turns of a wide row a loop
#pragma once

#include <normquant/block.cuh>
#include <normquant/geometry.h>
#include <normquant/memory.cuh>
#include <normquant/reduce.cuh>

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

template <class Config>
NQ_DEVICE float weight_of(const Config& config, const u32* w, u32 e) {
    const float weight = config.weight_dtype == kFp32 ? as_float(w[e]) : unpack(config.weight_dtype, w, e);
    return config.weight_bias ? add(1.0f, weight) : weight;
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
        block.wait_until([&] { return arrival.cluster_has_passed(0); });
    }
}

}  // namespace normquant
