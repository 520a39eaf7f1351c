// A thread's view of its block: where it is, barriers, shuffles, shared memory, and the cluster. The emulator has its own.
#pragma once

#include <normquant/arrival.cuh>

namespace normquant {

#if defined(__CUDACC_RTC__)

struct Block {
    NQ_DEVICE u32 thread() const { return threadIdx.x; }
    NQ_DEVICE u32 threads() const { return blockDim.x; }
    NQ_DEVICE u32 index() const { return blockIdx.x; }
    NQ_DEVICE u32 blocks() const { return gridDim.x; }
    // Of the blocks that share a row.
    NQ_DEVICE u32 part() const { return blockIdx.y; }
    NQ_DEVICE u32 parts() const { return gridDim.y; }
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
    NQ_DEVICE u32 shuffle_xor(u32 v, u32 distance) const { return __shfl_xor_sync(0xffffffffu, v, static_cast<int>(distance)); }
    template <class Condition>
    NQ_DEVICE void wait_until(Condition holds) const {
        while (!holds()) {}
    }
    // One float a warp of a row.
    NQ_DEVICE float* warp_sums() const {
        __shared__ __align__(16) float sums[32];
        return sums;
    }
    // A launch may overlap with the end of the kernel before it: what that one writes is there once this returns. A kernel behind this
    // one that overlaps may begin once every block has released it.
    NQ_DEVICE void wait_for_predecessors() const { asm volatile("griddepcontrol.wait;" ::: "memory"); }
    NQ_DEVICE void release_dependents() const { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
    // Where the parts of a row are a cluster: all of its blocks have begun once all have arrived. Orders nothing else.
    NQ_DEVICE void cluster_arrive() const { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
    NQ_DEVICE void cluster_wait() const { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
    NQ_DEVICE void send(u32 part, ArrivalBarrier& arrival, float* place, float v) const { arrival.send(part, place, v); }
    NQ_DEVICE ArrivalBarrier& sums_arrival() const {
        __shared__ ArrivalBarrier barrier;
        return barrier;
    }
    // 16-byte aligned; as much as the launch asks for.
    NQ_DEVICE unsigned char* shared() const {
        extern __shared__ __align__(128) unsigned char bytes[];
        return bytes;
    }
};

#endif

}  // namespace normquant
