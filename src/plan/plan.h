// How a problem runs: which variants exist, and the threads, rows a block and grid of each.
#pragma once

#include "problem/arch.h"
#include "problem/problem.h"
#include "support/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nq {

enum class Variant : std::uint32_t {
    throughput = NQ_VARIANT_THROUGHPUT,
    latency = NQ_VARIANT_LATENCY,
    throughput_32b = NQ_VARIANT_THROUGHPUT_32B,
    latency_32b = NQ_VARIANT_LATENCY_32B,
};
const char* name(Variant);

struct Plan {
    Variant variant = Variant::throughput;
    std::uint32_t threads_per_row = 0;
    std::uint32_t block_threads = 0;
    std::uint32_t load_bytes = 16;
    std::uint32_t row_groups = 0;  // of the staged form, in which a block takes many rows; 0: a row for threads_per_row threads

    std::uint32_t rows_per_block() const { return block_threads / threads_per_row; }  // at a time
    friend bool operator==(const Plan&, const Plan&) = default;
};

// The closed list: a function of the problem and the target alone. Never empty for a problem with a kernel.
std::vector<Plan> plans_for(const Problem& problem, const Arch& arch);

// The plan with this many threads a row; 32-byte loads when `variant` asks for them and the plan allows it.
Result<Plan> plan_with_threads(const Problem& problem, const Arch& arch, std::uint32_t threads_per_row, Variant variant);

// "throughput threads=64 block=128 load=16"; part of the cache key.
std::string canonical_text(const Plan& plan);

struct LaunchShape {
    std::uint32_t blocks = 0;
    std::uint32_t block_threads = 0;
    std::uint32_t shared_bytes = 0;  // dynamic
};
// For these rows and, when the kernel zeroes it, the padding rows of a swizzled scale buffer.
LaunchShape launch_shape(const Plan& plan, const Problem& problem, std::int64_t rows, bool zero_padding, std::uint32_t multiprocessors);

}  // namespace nq
