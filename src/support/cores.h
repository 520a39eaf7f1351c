// How much of the machine this process may use: fewer cores and less memory than there are, in a container.
#pragma once

#include <cstdint>
#include <string>

namespace nq {

struct Limits {
    unsigned processors = ~0u;                   // that its time is limited to, rounded up
    std::uint64_t memory_bytes = ~std::uint64_t{0};
};
// Of the process's control groups and all above them, of either version. root: where /proc and /sys are, but for tests.
Limits control_group_limits(const std::string& root = "");

// On which it may run, as many as its time is worth. At least 1.
unsigned cores();

// Compiles that it can take: one a core, in the memory there is. At least 1.
unsigned compiles_at_a_time(unsigned processors, const Limits& limits);
unsigned compiles_at_a_time();

}  // namespace nq
