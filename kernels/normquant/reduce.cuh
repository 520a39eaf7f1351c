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
    NQ_DEVICE u32 blocks() const { return gridDim.x; }
    NQ_DEVICE void barrier() const { __syncthreads(); }
    // Of `threads` threads, a multiple of 32, that use the same id from 1 to 15.
    NQ_DEVICE void barrier(u32 id, u32 threads) const {
        if (threads == 32) {
            __syncwarp();
        } else {
            asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
        }
    }
    NQ_DEVICE float shuffle_xor(float v, u32 distance) const { return __shfl_xor_sync(0xffffffffu, v, static_cast<int>(distance)); }
    template <class Condition>
    NQ_DEVICE void wait_until(Condition holds) const {
        while (!holds()) {}
    }
    // One float a warp.
    NQ_DEVICE float* warp_sums() const {
        __shared__ float sums[32];
        return sums;
    }
    // 16-byte aligned; as much as the launch asks for.
    NQ_DEVICE unsigned char* shared() const {
        extern __shared__ __align__(128) unsigned char bytes[];
        return bytes;
    }
};

#endif

// Sum over the threads_per_row threads of a row, each bringing one partial; every thread gets it. `sums` holds a float for each warp of
// the row; the barrier includes all of them.
template <class Config, class Block, class Barrier>
NQ_DEVICE float row_sum(const Config& config, const Block& block, float partial, float* sums, Barrier barrier) {
    const u32 threads = config.threads_per_row;
    NQ_UNROLL
    for (u32 d = 1; d < (threads < 32 ? threads : 32); d *= 2) partial = add(partial, block.shuffle_xor(partial, d));
    if (threads <= 32) return partial;

    const u32 warps = threads / 32, warp = block.thread() / 32, lane = block.thread() % 32;
    if (lane == 0) sums[warp % warps] = partial;
    barrier();
    // Lanes read the row's warp sums cyclically and finish the tree by shuffles: a run-time index into an array would be local memory.
    partial = sums[lane % warps];
    NQ_UNROLL
    for (u32 d = 1; d < warps; d *= 2) partial = add(partial, block.shuffle_xor(partial, d));
    return partial;
}

}  // namespace normquant
