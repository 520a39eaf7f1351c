// One CUDA block on the host: a fiber a thread, warps in lockstep at shuffles, the block at barriers. Threads that meet at different
// collectives, or leave early, are a divergence error. Registers (stacks) and shared memory start as garbage.
#pragma once

#include <normquant/types.cuh>

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ucontext.h>

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
        normquant::u32 thread() const { return thread_; }
        normquant::u32 threads() const { return block_.threads_; }
        normquant::u32 index() const { return block_.index_; }
        normquant::u32 blocks() const { return block_.blocks_; }
        void barrier() const { block_.meet(thread_, Kind::barrier, 0, 0.0f, block_.threads_); }
        void barrier(normquant::u32 id, normquant::u32 threads) const { block_.meet(thread_, Kind::barrier, id, 0.0f, threads); }
        // Threads of a warp wait together, and go on together.
        template <class Condition>
        void wait_until(Condition holds) const {
            while (!holds()) block_.meet(thread_, Kind::wait, 0, 0.0f);
            block_.meet(thread_, Kind::arrived, 0, 0.0f);
        }
        float shuffle_xor(float value, normquant::u32 distance) const {
            return block_.meet(thread_, Kind::shuffle, distance, value);
        }
        float* warp_sums() const { return block_.shared_; }
        unsigned char* shared() const { return block_.dynamic_.get(); }

    private:
        EmulatedBlock& block_;
        unsigned thread_;
    };

    // threads: a multiple of 32. Dynamic shared memory ends where the allocation does, for ASan to see.
    explicit EmulatedBlock(unsigned threads, unsigned blocks = 1, std::size_t shared_bytes = 0);
    ~EmulatedBlock();
    EmulatedBlock(const EmulatedBlock&) = delete;
    EmulatedBlock& operator=(const EmulatedBlock&) = delete;

    // Runs every thread of block `index` to its end.
    void run(unsigned index, const std::function<void(const View&)>& kernel);

private:
    enum class Kind { none, shuffle, barrier, wait, arrived, done };
    struct Fiber;

    // distance: of a shuffle; of a barrier its id, 0 for the whole block's.
    float meet(unsigned thread, Kind kind, unsigned distance, float value, unsigned threads = 0);
    bool run_warp(unsigned warp);
    void resume(unsigned thread);
    void exchange(unsigned warp);
    static void entry(unsigned high, unsigned low);
    void body(unsigned thread);

    unsigned threads_, blocks_;
    unsigned index_ = 0;
    unsigned current_ = 0;
    std::vector<std::unique_ptr<Fiber>> fibers_;
    const std::function<void(const View&)>* kernel_ = nullptr;
    ucontext_t scheduler_{};
    const void* scheduler_stack_ = nullptr;
    std::size_t scheduler_stack_bytes_ = 0;
    float shared_[32];
    struct Free {
        void operator()(unsigned char* p) const { std::free(p); }
    };
    std::size_t dynamic_bytes_;
    std::unique_ptr<unsigned char, Free> dynamic_;
};

}  // namespace nq::test
