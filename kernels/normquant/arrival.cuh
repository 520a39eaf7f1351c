// Counts bytes that arrive in a block's shared memory: by bulk copy, or from another block of its cluster. Of sm_90 and later.
#pragma once

#include <normquant/types.cuh>

namespace normquant {

#if defined(__CUDACC_RTC__)

NQ_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// One arrival a phase: that of expect(). The phases are waited for in turn: parity 0, 1, 0, ...
struct ArrivalBarrier {
    u64 state;

    NQ_DEVICE void init() { asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&state)) : "memory"); }
    // Of all that this thread has initialized, before others use them after a barrier.
    NQ_DEVICE static void publish() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
    NQ_DEVICE void expect(u32 bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(&state)), "r"(bytes) : "memory");
    }
    NQ_DEVICE bool has_passed(u32 parity) {
        u32 passed;
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(passed)
            : "r"(shared_address(&state)), "r"(parity)
            : "memory");
        return passed != 0;
    }
    // Of what other blocks of the cluster send: only an acquire of its scope pairs with them. It empties L1, too.
    NQ_DEVICE bool cluster_has_passed(u32 parity) {
        u32 passed;
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(passed)
            : "r"(shared_address(&state)), "r"(parity)
            : "memory");
        return passed != 0;
    }
    // 16-byte aligned, a multiple of 16 bytes.
    template <class Config>
    NQ_DEVICE void copy(const Config& config, void* shared, const void* global, u32 bytes) {
        if (config.copy_to_cta) {
            asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
                         "l"(global), "r"(bytes), "r"(shared_address(&state))
                         : "memory");
        } else {
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
                         "l"(global), "r"(bytes), "r"(shared_address(&state))
                         : "memory");
        }
    }
    // To `place` in the shared memory of the cluster's block `rank`, and to this barrier's counterpart there.
    NQ_DEVICE void send(u32 rank, float* place, float v) {
        asm volatile(
            "{\n\t.reg .u32 place, barrier;\n\t"
            "mapa.shared::cluster.u32 place, %0, %2;\n\t"
            "mapa.shared::cluster.u32 barrier, %1, %2;\n\t"
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [place], %3, [barrier];\n\t}" ::"r"(shared_address(place)),
            "r"(shared_address(&state)), "r"(rank), "f"(v)
            : "memory");
    }
};

#else

// What is sent lands when it is waited for, at the latest possible time: who reads before has the old bytes.
struct ArrivalBarrier {
    static constexpr u32 kMost = 64;
    struct Bytes {
        void* to;
        const void* from;  // null: the value
        float value;
        u32 bytes;
    };
    u32 phase, expected, sent;
    Bytes pending[kMost];

    void init() { phase = expected = sent = 0; }
    static void publish() {}
    void expect(u32 bytes) { expected = bytes; }
    template <class Config>
    void copy(const Config&, void* shared, const void* global, u32 bytes) { pending[sent++] = {shared, global, 0.0f, bytes}; }
    void receive(float* place, float v) { pending[sent++] = {place, nullptr, v, sizeof v}; }
    bool has_passed(u32 parity) {
        if (phase % 2 != parity) return true;
        u32 bytes = 0;
        for (u32 i = 0; i < sent; ++i) bytes += pending[i].bytes;
        if (sent == 0 || bytes != expected) return false;
        for (u32 i = 0; i < sent; ++i) {
            const u8* from = static_cast<const u8*>(pending[i].from ? pending[i].from : &pending[i].value);
            for (u32 b = 0; b < pending[i].bytes; ++b) static_cast<u8*>(pending[i].to)[b] = from[b];
        }
        sent = 0;
        ++phase;
        return true;
    }
    bool cluster_has_passed(u32 parity) { return has_passed(parity); }
};

#endif

}  // namespace normquant
