#include "emulator/block.h"

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>

#include <ucontext.h>

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

// Where a thread of control goes on. A ucontext_t begins it; from then on _setjmp switches, as swapcontext asks the kernel for the signal
// mask, which is half of the emulator's time. ASan wants to see the switch.
struct EmulatedBlock::Context {
    ucontext_t begin{};
#if !NQ_ASAN
    bool begun = false;
    jmp_buf at;
#endif
    // The caller goes on in `from` when something switches back to it.
    static void change(Context& from, Context& to) {
#if NQ_ASAN
        swapcontext(&from.begin, &to.begin);
#else
        if (_setjmp(from.at) != 0) return;
        from.begun = true;
        to.leave_for();
#endif
    }
    [[noreturn]] void leave_for() {
#if !NQ_ASAN
        if (begun) _longjmp(at, 1);
#endif
        setcontext(&begin);
        std::abort();
    }
};

struct EmulatedBlock::Fiber {
    Context context;
    std::unique_ptr<unsigned char[]> stack = std::make_unique_for_overwrite<unsigned char[]>(kStackBytes);
    EmulatedBlock* block = nullptr;
    unsigned thread = 0;
    Kind waiting = Kind::none;
    unsigned distance = 0, threads = 0;
    float sent = 0.0f, received = 0.0f;
    void* fake_stack = nullptr;
    std::exception_ptr failure;
};

EmulatedBlock::EmulatedBlock(unsigned threads, Grid grid, std::size_t shared_bytes)
    : threads_(threads), grid_(grid), scheduler_(std::make_unique<Context>()), shared_(grid.cluster ? grid.parts : 1), dynamic_bytes_(shared_bytes) {
    constexpr std::size_t kAlignment = 128;
    void* memory = nullptr;
    if (posix_memalign(&memory, kAlignment, std::max(shared_bytes, kAlignment)) != 0) throw std::bad_alloc();
    dynamic_.reset(static_cast<unsigned char*>(memory));
    if (threads == 0 || threads % 32 != 0) throw std::invalid_argument("a block is a multiple of 32 threads");
    for (unsigned t = 0; t < threads * shared_.size(); ++t) {
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
    block.scheduler_->leave_for();
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
    Context::change(*scheduler_, fiber.context);
#if NQ_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    if (fiber.failure) std::rethrow_exception(fiber.failure);
}

float EmulatedBlock::meet(unsigned thread, Kind kind, unsigned distance, float value, unsigned threads) {
    Fiber& fiber = *fibers_[thread];
    fiber.waiting = kind;
    fiber.distance = distance;
    fiber.threads = threads;
    fiber.sent = value;
#if NQ_ASAN
    __sanitizer_start_switch_fiber(&fiber.fake_stack, scheduler_stack_, scheduler_stack_bytes_);
#endif
    Context::change(fiber.context, *scheduler_);
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

void EmulatedBlock::run(unsigned index, unsigned part, const std::function<void(const View&)>& kernel) {
    index_ = index;
    part_ = part;
    cluster_runs_ = waited_ = false;
    arrived_.assign(fibers_.size(), false);
    kernel_ = &kernel;
    std::memset(static_cast<void*>(shared_.data()), 0xa5, shared_.size() * sizeof(Shared));
    std::memset(dynamic_.get(), 0xa5, dynamic_bytes_);
    for (auto& fiber : fibers_) {
        std::memset(fiber->stack.get() + kStackBytes - kGarbageBytes, 0xa5, kGarbageBytes);
        fiber->waiting = Kind::none;
        fiber->failure = nullptr;
        fiber->context = {};
        ucontext_t& begin = fiber->context.begin;
        getcontext(&begin);
        begin.uc_stack.ss_sp = fiber->stack.get();
        begin.uc_stack.ss_size = kStackBytes;
        begin.uc_link = nullptr;
        const auto address = reinterpret_cast<std::uintptr_t>(fiber.get());
        makecontext(&begin, reinterpret_cast<void (*)()>(&EmulatedBlock::entry), 2,
                    static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
    }

    // Each warp runs until it is at a barrier, waits for a copy, or ends; then barriers that are complete open.
    const unsigned warps = static_cast<unsigned>(fibers_.size() / 32);
    std::vector<bool> stopped(warps, false);
    const auto waiting = [&](unsigned warp) { return fibers_[warp * 32]->waiting; };
    for (;;) {
        bool progress = false;
        for (unsigned warp = 0; warp < warps; ++warp) {
            if (stopped[warp]) continue;
            progress = run_warp(warp) || progress;
            stopped[warp] = waiting(warp) == Kind::barrier || waiting(warp) == Kind::done;
        }
        for (unsigned warp = 0; warp < warps; ++warp) {
            if (waiting(warp) != Kind::barrier || !stopped[warp]) continue;
            const Fiber& first = *fibers_[warp * 32];
            std::vector<unsigned> met;
            for (unsigned w = 0; w < warps; ++w)
                if (stopped[w] && waiting(w) == Kind::barrier && fibers_[w * 32]->distance == first.distance) met.push_back(w);
            for (const unsigned w : met)
                if (fibers_[w * 32]->threads != first.threads) throw Divergence("a barrier with two numbers of threads");
            if (met.size() * 32 > first.threads) throw Divergence("more threads at a barrier than it has");
            if (met.size() * 32 < first.threads) continue;
            for (const unsigned w : met) stopped[w] = false;
            progress = true;
        }
        bool done = true;
        for (unsigned warp = 0; warp < warps; ++warp) done = done && stopped[warp] && waiting(warp) == Kind::done;
        if (done) {
            if (predecessors_ && !waited_) throw Divergence("a block ends without having waited for earlier kernels");
            return;
        }
        if (!progress) throw Divergence("no warp can go on: some wait at a barrier that others never reach, or for a copy that nobody started");
    }
}

// To the next barrier, wait or end. False if it only found once more that what it waits for has not happened.
bool EmulatedBlock::run_warp(unsigned warp) {
    const unsigned first_thread = warp * 32;
    const bool waited = fibers_[first_thread]->waiting == Kind::wait;
    for (bool moved = false;; moved = true) {
        for (unsigned t = first_thread; t < first_thread + 32; ++t) resume(t);
        const Fiber& first = *fibers_[first_thread];
        for (unsigned t = first_thread; t < first_thread + 32; ++t) {
            const Fiber& fiber = *fibers_[t];
            if (fiber.waiting != first.waiting || fiber.distance != first.distance || fiber.threads != first.threads) {
                throw Divergence("threads " + std::to_string(first_thread) + " and " + std::to_string(t) +
                                 " of a warp are at different collectives");
            }
        }
        if (first.waiting == Kind::shuffle) exchange(warp);
        if (first.waiting == Kind::wait) return moved || !waited;
        if (first.waiting == Kind::barrier || first.waiting == Kind::done) return true;
    }
}

}  // namespace nq::test
