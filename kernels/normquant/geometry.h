// Pure arithmetic of the fixed summation tree and of the threads that walk it. Shared by host, device and tests.
//
// A row of G = hidden/16 granules is summed over T0 columns of 8 lanes. Granule g lies in column g mod T0, round g div T0;
// its two 8-element vectors belong to the lanes 8*column + 2*(round mod 4) and the next one. N threads divide the 8*T0 lanes
// evenly and in order, so every N adds the same numbers in the same order.
#pragma once

#include <normquant/types.cuh>

namespace normquant {

NQ_CONSTEXPR u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }

// T0: of the powers of two T <= 256 with 3 <= ceil(G/T) <= 8 the one with the smallest T*ceil(G/T), the largest among equals.
NQ_CONSTEXPR u32 tree_threads(u32 hidden) {
    const u32 granules = hidden / kGranule;
    if (granules < 3) return 1;
    if (granules > 2048) return 256;
    u32 best = 0;
    for (u32 t = 1; t <= 256; t *= 2) {
        const u32 rounds = ceil_div(granules, t);
        if (rounds < 3 || rounds > 8) continue;
        if (best == 0 || t * rounds <= best * ceil_div(granules, best)) best = t;
    }
    return best;
}

// Rounds of granules in a column.
NQ_CONSTEXPR u32 column_rounds(u32 hidden) { return ceil_div(hidden / kGranule, tree_threads(hidden)); }

// Threads a row: T0, 2*T0, 4*T0 own whole granules; 8*T0 own half a granule each. One block holds the row.
// With T0 = 1 it takes 4 threads for the two granules of a 32-element block to lie in different threads, as everywhere else.
NQ_CONSTEXPR bool threads_per_row_valid(u32 hidden, u32 threads) {
    const u32 t0 = tree_threads(hidden), least = t0 == 1 ? 4 : t0;
    return threads >= least && threads <= 1024 && (threads == t0 || threads == 2 * t0 || threads == 4 * t0 || threads == 8 * t0);
}

NQ_CONSTEXPR bool half_granules(u32 hidden, u32 threads) { return threads == 8 * tree_threads(hidden); }

// A thread's slots are the lane pairs it owns: granule round 4*turn + (first slot + slot) for each turn.
NQ_CONSTEXPR u32 slots_per_thread(u32 hidden, u32 threads) {
    return half_granules(hidden, threads) ? 1 : 4 * tree_threads(hidden) / threads;
}
// Turns of four rounds. A thread with all four slots needs no more slots in the first turn than there are rounds.
NQ_CONSTEXPR u32 turns(u32 hidden) { return ceil_div(column_rounds(hidden), 4); }

// Granules (or halves) a thread handles at most.
NQ_CONSTEXPR u32 granules_per_thread(u32 hidden, u32 threads) {
    const u32 slots = slots_per_thread(hidden, threads), rounds = column_rounds(hidden);
    u32 most = 0;
    for (u32 turn = 0; turn < turns(hidden); ++turn) {
        const u32 left = rounds - 4 * turn;
        most += left < slots ? left : slots;
    }
    return most;
}

// A packed granule takes 8 registers, half of one 4. What does not fit beside the rest of the kernel is read a second time.
NQ_CONSTEXPR bool row_in_registers(u32 hidden, u32 threads) {
    const u32 registers = granules_per_thread(hidden, threads) * (half_granules(hidden, threads) ? 4 : 8);
    return registers <= (threads > 512 ? 16u : 64u);
}

// Are the row's weighted values, fp32, kept from the sum of squares to the quantization? Else the packed row is, and is weighed then.
NQ_CONSTEXPR bool products_in_registers(u32 hidden, u32 threads) {
    return row_in_registers(hidden, threads) && granules_per_thread(hidden, threads) * (half_granules(hidden, threads) ? 8 : 16) <= 64;
}

// Blocks an SM should hold: bounds the registers of a thread to the fewest that its row and the kernel need without spilling
// (80 for 24 warps, 96 for 20, 128 for 16, 168 for 12). lean: what needs fewest, NVFP4 with 16-bit weights on sm_90. fp32 weights need
// the most.
NQ_CONSTEXPR u32 resident_blocks(u32 hidden, u32 threads, u32 block_threads, bool lean, bool fp32_weight) {
    const u32 pieces = row_in_registers(hidden, threads) ? granules_per_thread(hidden, threads) : 1;
    const bool half = half_granules(hidden, threads), many_products = products_in_registers(hidden, threads) && pieces * (half ? 8 : 16) > 32;
    const bool short_row = pieces <= (half ? 8u : 4u) && !many_products;
    // A row of more than 16384 has a block of 256 threads: fewer than two of them would leave the SM half empty.
    const u32 warps = short_row ? (lean ? 24 : fp32_weight ? 16 : 20) : lean || block_threads >= 256 ? 16 : 12;
    const u32 blocks = warps * 32 / block_threads;
    return blocks < 1 ? 1 : blocks > 16 ? 16 : blocks;  // no SM holds fewer than 16
}

// The staged form (staged.cuh): groups of threads, each of whole warps, that take rows through shared memory.
NQ_CONSTEXPR u32 group_threads(u32 threads) { return threads < 32 ? 32 : threads; }

// Registers a thread needs for the fp32 values of its granules and all else, in the steps in which an SM hands them out. Groups of one
// warp were found to want more rather than many. packed_f32: the target's packed arithmetic needs fewer.
NQ_CONSTEXPR u32 staged_registers(u32 hidden, u32 threads, u32 block_size, bool packed_f32) {
    const u32 granules = granules_per_thread(hidden, threads);
    if (packed_f32 && granules == 4) return 96;
    return granules <= 3 ? (block_size == 32 ? 96 : 80) : granules <= 5 && group_threads(threads) > 32 ? 128 : 168;
}

// Parts of a block's shared memory, each 16-byte aligned: the weight, the groups' row buffers, warp sums twice, a copy barrier a buffer.
// granules: of a thread. inputs: 1, or 2 where a buffer's rows of x are followed by theirs of the residual.
struct StagedLayout {
    u32 weight_bytes, row_bytes, group_rows, residual, buffer_bytes, sums, barriers, bytes;

    NQ_CONSTEXPR StagedLayout(u32 hidden, u32 threads, u32 granules, u32 groups, u32 buffers, u32 weight_size, u32 inputs, u32 barrier_bytes)
        : weight_bytes(granules * threads * kGranule * weight_size),
          row_bytes(hidden * 2),
          group_rows(group_threads(threads) / threads),
          residual(group_rows * row_bytes),
          buffer_bytes(inputs * group_rows * row_bytes),
          sums(weight_bytes + groups * buffers * buffer_bytes),
          barriers((sums + groups * 2 * (group_threads(threads) / 32) * 4 + 15) / 16 * 16),
          bytes(barriers + groups * buffers * barrier_bytes) {}
};

// The two granules of a 32-element block lie in neighbouring columns (rounds, with one column): the xor distance of their threads.
NQ_CONSTEXPR u32 block32_partner(u32 hidden, u32 threads) {
    const u32 lanes_apart = tree_threads(hidden) == 1 ? 2 : 8;
    return lanes_apart * threads / (8 * tree_threads(hidden));
}

}  // namespace normquant
