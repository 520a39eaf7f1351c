// One CUDA block on the host: a fiber a thread, warps in lockstep at shuffles, the block at barriers. Threads that meet at different
// collectives, or leave early, are a divergence error. Registers (stacks) and shared memory start as garbage.
#pragma once

#include <normquant/types.cuh>

#include <cstddef>
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
        void barrier() const { block_.meet(thread_, Kind::barrier, 0, 0.0f); }
        float shuffle_xor(float value, normquant::u32 distance) const {
            return block_.meet(thread_, Kind::shuffle, distance, value);
        }
        float* warp_sums() const { return block_.shared_; }

    private:
        EmulatedBlock& block_;
        unsigned thread_;
    };

    explicit EmulatedBlock(unsigned threads);  // a multiple of 32
    ~EmulatedBlock();
    EmulatedBlock(const EmulatedBlock&) = delete;
    EmulatedBlock& operator=(const EmulatedBlock&) = delete;

    // Runs every thread of block `index` to its end.
    void run(unsigned index, const std::function<void(const View&)>& kernel);

private:
    enum class Kind { none, shuffle, barrier, done };
    struct Fiber;

    float meet(unsigned thread, Kind kind, unsigned distance, float value);
    void resume(unsigned thread);
    void exchange(unsigned warp);
    static void entry(unsigned high, unsigned low);
    void body(unsigned thread);

    unsigned threads_;
    unsigned index_ = 0;
    unsigned current_ = 0;
    std::vector<std::unique_ptr<Fiber>> fibers_;
    const std::function<void(const View&)>* kernel_ = nullptr;
    ucontext_t scheduler_{};
    const void* scheduler_stack_ = nullptr;
    std::size_t scheduler_stack_bytes_ = 0;
    float shared_[32];
};

}  // namespace nq::test
