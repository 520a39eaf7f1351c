// Sums and maxima across the threads of a row. The tree's order is fixed (geometry.h); partners of a shuffle add the same two numbers,
// so both hold the same bits.
#pragma once

#include <normquant/intrinsics.cuh>

namespace normquant {

#if defined(__CUDACC_RTC__)

struct Block {
    NQ_DEVICE u32 thread() const { return threadIdx.x; }
    NQ_DEVICE u32 threads() const { return blockDim.x; }
    NQ_DEVICE u32 index() const { return blockIdx.x; }
    NQ_DEVICE void barrier() const { __syncthreads(); }
    NQ_DEVICE float shuffle_xor(float v, u32 distance) const { return __shfl_xor_sync(0xffffffffu, v, static_cast<int>(distance)); }
    // One float a warp.
    NQ_DEVICE float* warp_sums() const {
        __shared__ float sums[32];
        return sums;
    }
};

#endif

// Sum over the threads_per_row threads of a row, each bringing one partial; every thread gets it. All threads of the block call it.
template <class Config, class Block>
NQ_DEVICE float row_sum(const Config& config, const Block& block, float partial) {
    const u32 threads = config.threads_per_row;
    NQ_UNROLL
    for (u32 d = 1; d < (threads < 32 ? threads : 32); d *= 2) partial = add(partial, block.shuffle_xor(partial, d));
    if (threads <= 32) return partial;

    const u32 warps = threads / 32, warp = block.thread() / 32, lane = block.thread() % 32;
    float* sums = block.warp_sums();
    if (lane == 0) sums[warp] = partial;
    block.barrier();
    // Lanes read the row's warp sums cyclically and finish the tree by shuffles: a run-time index into an array would be local memory.
    partial = sums[warp / warps * warps + lane % warps];
    NQ_UNROLL
    for (u32 d = 1; d < warps; d *= 2) partial = add(partial, block.shuffle_xor(partial, d));
    return partial;
}

}  // namespace normquant
