// One CUDA block, or a cluster of blocks, on the host: a fiber a thread, warps in lockstep at shuffles, the block at barriers. Threads
// that meet at different collectives, or leave early, are a divergence error. Registers (stacks) and shared memory start as garbage.
#pragma once

#include <normquant/arrival.cuh>
#include <normquant/types.cuh>

#include <bit>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace nq::test {

struct Divergence : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class EmulatedBlock {
public:
    // What a kernel sees as its block; one a thread.
    class View {
    public:
        View(EmulatedBlock& block, unsigned thread) : block_(block), thread_(thread) {}
        normquant::u32 thread() const { return thread_ % block_.threads_; }
        normquant::u32 threads() const { return block_.threads_; }
        normquant::u32 index() const { return block_.index_; }
        normquant::u32 blocks() const { return block_.grid_.blocks; }
        normquant::u32 part() const { return block_.cluster() ? rank() : block_.part_; }
        normquant::u32 parts() const { return block_.grid_.parts; }
        void barrier() const { barrier(0, block_.threads_); }
        void barrier(normquant::u32 id, normquant::u32 threads) const {
            block_.meet(thread_, Kind::barrier, rank() * kBarriers + id, 0.0f, threads);
        }
        // Threads of a warp wait together, all before the first asks, and go on together.
        template <class Condition>
        void wait_until(Condition holds) const {
            do block_.meet(thread_, Kind::wait, 0, 0.0f);
            while (!holds());
            block_.meet(thread_, Kind::arrived, 0, 0.0f);
        }
        float shuffle_xor(float value, normquant::u32 distance) const {
            return block_.meet(thread_, Kind::shuffle, distance, value);
        }
        normquant::u32 shuffle_xor(normquant::u32 value, normquant::u32 distance) const {
            return std::bit_cast<normquant::u32>(shuffle_xor(std::bit_cast<float>(value), distance));
        }
        float* warp_sums() const { return block_.shared_[rank()].sums; }
        unsigned char* shared() const { return block_.dynamic_.get(); }
        normquant::ArrivalBarrier& sums_arrival() const { return block_.shared_[rank()].arrival; }
        // What an earlier kernel writes is there from now on.
        void wait_for_predecessors() const {
            block_.meet(thread_, Kind::barrier, kPredecessors, 0.0f, static_cast<unsigned>(block_.fibers_.size()));
            if (!std::exchange(block_.waited_, true) && block_.predecessors_) block_.predecessors_();
        }
        void release_dependents() const {}
        void cluster_arrive() const { block_.arrived_[thread_] = true; }
        void cluster_wait() const {
            if (!block_.arrived_[thread_]) throw Divergence("a thread waits for its cluster before it has arrived");
            block_.meet(thread_, Kind::barrier, kClusterBarrier, 0.0f, static_cast<unsigned>(block_.fibers_.size()));
            block_.cluster_runs_ = true;
        }
        void send(normquant::u32 part, normquant::ArrivalBarrier&, float* place, float value) const {
            if (!block_.cluster_runs_) throw Divergence("a block of the cluster may not have begun yet");
            Shared& other = block_.shared_.at(part);
            other.arrival.receive(other.sums + (place - warp_sums()), value);
        }

    private:
        normquant::u32 rank() const { return thread_ / block_.threads_; }
        EmulatedBlock& block_;
        unsigned thread_;
    };

    struct Grid {
        unsigned blocks = 1, parts = 1;  // parts: blocks of a row
        bool cluster = false;            // the parts run side by side
    };
    // threads: of a block, a multiple of 32. Dynamic shared memory ends where the allocation does, for ASan to see.
    EmulatedBlock(unsigned threads, Grid grid, std::size_t shared_bytes = 0);
    explicit EmulatedBlock(unsigned threads) : EmulatedBlock(threads, Grid{}) {}
    ~EmulatedBlock();
    EmulatedBlock(const EmulatedBlock&) = delete;
    EmulatedBlock& operator=(const EmulatedBlock&) = delete;

    // Called when all threads of a block wait for earlier kernels, in each block once; their memory is not to be used before. A block that
    // does not wait is an error.
    void set_predecessors(std::function<void()> finish) { predecessors_ = std::move(finish); }

    // Runs every thread of block (index, part), or of cluster `index`, to its end.
    void run(unsigned index, unsigned part, const std::function<void(const View&)>& kernel);
    void run(unsigned index, const std::function<void(const View&)>& kernel) { run(index, 0, kernel); }

private:
    enum class Kind { none, shuffle, barrier, wait, arrived, done };
    struct Context;
    struct Fiber;

    // distance: of a shuffle; of a barrier its id, 0 for the whole block's.
    float meet(unsigned thread, Kind kind, unsigned distance, float value, unsigned threads = 0);
    bool run_warp(unsigned warp);
    void resume(unsigned thread);
    void exchange(unsigned warp);
    static void entry(unsigned high, unsigned low);
    void body(unsigned thread);

    static constexpr unsigned kBarriers = 16, kClusterBarrier = ~0u, kPredecessors = ~0u - 1;
    struct Shared {
        alignas(16) float sums[32];
        normquant::ArrivalBarrier arrival;
    };
    bool cluster() const { return grid_.cluster; }

    unsigned threads_;
    Grid grid_;
    unsigned index_ = 0, part_ = 0;
    bool cluster_runs_ = false, waited_ = false;
    std::function<void()> predecessors_;
    std::vector<char> arrived_;  // of threads, at the cluster
    unsigned current_ = 0;
    std::vector<std::unique_ptr<Fiber>> fibers_;
    const std::function<void(const View&)>* kernel_ = nullptr;
    std::unique_ptr<Context> scheduler_;
    const void* scheduler_stack_ = nullptr;
    std::size_t scheduler_stack_bytes_ = 0;
    std::vector<Shared> shared_;  // of each block of the cluster
    struct Free {
        void operator()(unsigned char* p) const { std::free(p); }
    };
    std::size_t dynamic_bytes_;
    std::unique_ptr<unsigned char, Free> dynamic_;
};

}  // namespace nq::test
