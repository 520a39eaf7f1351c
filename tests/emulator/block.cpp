#include "emulator/block.h"

#include <cstdint>
#include <cstring>
#include <exception>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define NQ_ASAN 1
#else
#define NQ_ASAN 0
#endif

namespace nq::test {

namespace {
#if NQ_ASAN
constexpr std::size_t kStackBytes = 256 * 1024;  // ASan's frames are larger
#else
constexpr std::size_t kStackBytes = 64 * 1024;
#endif
constexpr std::size_t kGarbageBytes = 16 * 1024;  // of the stack's busy end, which the kernel's frames occupy
}  // namespace

struct EmulatedBlock::Fiber {
    ucontext_t context{};
    std::unique_ptr<unsigned char[]> stack = std::make_unique_for_overwrite<unsigned char[]>(kStackBytes);
    EmulatedBlock* block = nullptr;
    unsigned thread = 0;
    Kind waiting = Kind::none;
    unsigned distance = 0;
    float sent = 0.0f, received = 0.0f;
    void* fake_stack = nullptr;
    std::exception_ptr failure;
};

EmulatedBlock::EmulatedBlock(unsigned threads) : threads_(threads) {
    if (threads == 0 || threads % 32 != 0) throw std::invalid_argument("a block is a multiple of 32 threads");
    for (unsigned t = 0; t < threads; ++t) {
        fibers_.push_back(std::make_unique<Fiber>());
        fibers_.back()->block = this;
        fibers_.back()->thread = t;
    }
}

EmulatedBlock::~EmulatedBlock() = default;

void EmulatedBlock::entry(unsigned high, unsigned low) {
    auto* fiber = reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>(high) << 32 | low);
    EmulatedBlock& block = *fiber->block;
#if NQ_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &block.scheduler_stack_, &block.scheduler_stack_bytes_);
#endif
    block.body(fiber->thread);
    fiber->waiting = Kind::done;
#if NQ_ASAN
    __sanitizer_start_switch_fiber(nullptr, block.scheduler_stack_, block.scheduler_stack_bytes_);
#endif
    setcontext(&block.scheduler_);
}

void EmulatedBlock::body(unsigned thread) {
    try {
        (*kernel_)(View(*this, thread));
    } catch (...) {
        fibers_[thread]->failure = std::current_exception();
    }
}

void EmulatedBlock::resume(unsigned thread) {
    Fiber& fiber = *fibers_[thread];
    current_ = thread;
#if NQ_ASAN
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, fiber.stack.get(), kStackBytes);
#endif
    swapcontext(&scheduler_, &fiber.context);
#if NQ_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    if (fiber.failure) std::rethrow_exception(fiber.failure);
}

float EmulatedBlock::meet(unsigned thread, Kind kind, unsigned distance, float value) {
    Fiber& fiber = *fibers_[thread];
    fiber.waiting = kind;
    fiber.distance = distance;
    fiber.sent = value;
#if NQ_ASAN
    __sanitizer_start_switch_fiber(&fiber.fake_stack, scheduler_stack_, scheduler_stack_bytes_);
#endif
    swapcontext(&fiber.context, &scheduler_);
#if NQ_ASAN
    __sanitizer_finish_switch_fiber(fiber.fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
    return fiber.received;
}

void EmulatedBlock::exchange(unsigned warp) {
    const unsigned first = warp * 32;
    for (unsigned t = first; t < first + 32; ++t) {
        const unsigned partner = first + ((t - first) ^ fibers_[t]->distance);
        if (partner >= first + 32) throw Divergence("shuffle distance " + std::to_string(fibers_[t]->distance) + " leaves the warp");
        fibers_[t]->received = fibers_[partner]->sent;
    }
}

void EmulatedBlock::run(unsigned index, const std::function<void(const View&)>& kernel) {
    index_ = index;
    kernel_ = &kernel;
    std::memset(shared_, 0xa5, sizeof shared_);
    for (auto& fiber : fibers_) {
        std::memset(fiber->stack.get() + kStackBytes - kGarbageBytes, 0xa5, kGarbageBytes);
        fiber->waiting = Kind::none;
        fiber->failure = nullptr;
        getcontext(&fiber->context);
        fiber->context.uc_stack.ss_sp = fiber->stack.get();
        fiber->context.uc_stack.ss_size = kStackBytes;
        fiber->context.uc_link = nullptr;
        const auto address = reinterpret_cast<std::uintptr_t>(fiber.get());
        makecontext(&fiber->context, reinterpret_cast<void (*)()>(&EmulatedBlock::entry), 2,
                    static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
    }

    const unsigned warps = threads_ / 32;
    std::vector<bool> at_barrier(warps, false), done(warps, false);
    for (;;) {
        for (unsigned warp = 0; warp < warps; ++warp) {
            while (!at_barrier[warp] && !done[warp]) {
                for (unsigned t = warp * 32; t < warp * 32 + 32; ++t) resume(t);
                const Fiber& first = *fibers_[warp * 32];
                for (unsigned t = warp * 32; t < warp * 32 + 32; ++t) {
                    if (fibers_[t]->waiting != first.waiting || fibers_[t]->distance != first.distance) {
                        throw Divergence("threads " + std::to_string(warp * 32) + " and " + std::to_string(t) +
                                         " of a warp are at different collectives");
                    }
                }
                if (first.waiting == Kind::shuffle) exchange(warp);
                at_barrier[warp] = first.waiting == Kind::barrier;
                done[warp] = first.waiting == Kind::done;
            }
        }
        unsigned waiting = 0;
        for (unsigned warp = 0; warp < warps; ++warp) waiting += at_barrier[warp];
        if (waiting == 0) return;
        if (waiting != warps) throw Divergence("some warps ended while others wait at a barrier");
        at_barrier.assign(warps, false);
    }
}

}  // namespace nq::test
