// A loop spread over a few threads that live no longer than the loop.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace nq {

// body(i) for each i below count, on the calling thread and up to threads - 1 others. The first exception is rethrown
// when all have ended; what had not begun by then is skipped.
template <class Body>
void parallel_for(std::size_t count, unsigned threads, Body body) {
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex failure_mutex;
    const auto work = [&] {
        try {
            for (std::size_t i = next++; i < count; i = next++) body(i);
        } catch (...) {
            next = count;
            const std::lock_guard lock(failure_mutex);
            if (!failure) failure = std::current_exception();
        }
    };
    {
        std::vector<std::jthread> helpers;
        helpers.reserve(std::min<std::size_t>(threads, count));
        try {
            while (helpers.size() + 1 < std::min<std::size_t>(threads, count)) helpers.emplace_back(work);
        } catch (const std::system_error&) {
            // The process may start no more threads: those there are do it all.
        }
        work();
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace nq
