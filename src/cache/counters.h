// What a cache has done. One list names every counter; nq_counters has the same names and says what each means.
#pragma once

#include <atomic>
#include <cstdint>

// X(name)
#define NQ_COUNTERS(X)    \
    X(memory_hits)        \
    X(layer_hits)         \
    X(disk_hits)          \
    X(misses)             \
    X(compiles)           \
    X(failed_compiles)    \
    X(compile_ns)         \
    X(lock_waits)         \
    X(lock_wait_ns)       \
    X(lock_timeouts)      \
    X(bad_entries)        \
    X(stored_entries)     \
    X(stored_bytes)       \
    X(failed_stores)      \
    X(loaded_bytes)       \
    X(evicted_entries)    \
    X(evicted_bytes)

namespace nq {

struct CounterTotals {
#define NQ_DECLARE(name) std::uint64_t name = 0;
    NQ_COUNTERS(NQ_DECLARE)
#undef NQ_DECLARE
};

struct Counters {
#define NQ_DECLARE(name) std::atomic<std::uint64_t> name{0};
    NQ_COUNTERS(NQ_DECLARE)
#undef NQ_DECLARE

    CounterTotals totals() const {
        CounterTotals totals;
#define NQ_COPY(name) totals.name = name.load(std::memory_order_relaxed);
        NQ_COUNTERS(NQ_COPY)
#undef NQ_COPY
        return totals;
    }
};

inline void add(std::atomic<std::uint64_t>& counter, std::uint64_t value = 1) {
    counter.fetch_add(value, std::memory_order_relaxed);
}

}  // namespace nq
