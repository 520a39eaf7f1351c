// What the calling thread allocates and locks, whoever in the process calls: functions of the C library that this
// program defines in its place and passes on. For a program of its own, as every call of it takes this way.
//
// Allocations: malloc and its kin, and so operator new. Locks: everything of POSIX threads that may wait (mutexes,
// rwlocks, spinlocks, once, condition variables, semaphores), the guards of local statics, and futexes through
// syscall(), which is how std::atomic and its like wait. Not seen: loops on atomics, and what the C library locks for
// itself.
#pragma once

#include <ostream>

namespace nq::test {

struct Counts {
    unsigned allocations = 0, frees = 0, locks = 0;
    friend bool operator==(const Counts&, const Counts&) = default;
    friend std::ostream& operator<<(std::ostream& out, const Counts& counts) {
        return out << counts.allocations << " allocations, " << counts.frees << " frees, " << counts.locks << " locks";
    }
};

void start_counting();
Counts stop_counting();

template <class Body>
Counts counted(Body body) {
    start_counting();
    body();
    return stop_counting();
}

}  // namespace nq::test
