// The sum over the threads of a row. The tree's order is fixed (geometry.h); partners of a shuffle add the same two numbers, so both hold
// the same bits.
#pragma once

#include <normquant/geometry.h>
#include <normquant/memory.cuh>

namespace normquant {

NQ_DEVICE void load_sums(float* d, const float* sums, u32 warps) {
    if (warps < 4) {
        d[0] = sums[0], d[1] = sums[1];
        return;
    }
    u32 words[4];
    load_shared_128(words, sums);
    NQ_UNROLL
    for (u32 i = 0; i < 4; ++i) d[i] = as_float(words[i]);
}

// Sum over the threads_per_row threads of a row, each bringing one partial; every thread gets it. `sums` holds a float for each warp of
// the row, aligned to all of them or 16 bytes; share(warp sum) brings it there, and waits for all of them.
template <class Config, class Block, class Share>
NQ_DEVICE float row_sum(const Config& config, const Block& block, float partial, const float* sums, Share share) {
    const u32 threads = config.threads_per_row, warps = ceil_div(threads, 32);
    NQ_UNROLL
    for (u32 d = 1; d < (threads < 32 ? threads : 32); d *= 2) partial = add(partial, block.shuffle_xor(partial, d));
    if (threads <= 32) return partial;
    share(partial);
    // Every thread finishes the tree: loads of four sums take less time than shuffles.
    float tree[32];
    NQ_UNROLL
    for (u32 i = 0; i < 32; i += 4) {
        if (i < warps) load_sums(tree + i, sums + i, warps);
    }
    NQ_UNROLL
    for (u32 d = 1; d < 32; d *= 2) {
        NQ_UNROLL
        for (u32 i = 0; i + d < 32; i += 2 * d) {
            if (i + d < warps) tree[i] = add(tree[i], tree[i + d]);
        }
    }
    return tree[0];
}

}  // namespace normquant
