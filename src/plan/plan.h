// How a problem runs: which variants exist, and the threads, rows a block and grid of each.
#pragma once

#include "problem/arch.h"
#include "problem/problem.h"
#include "support/result.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nq {

enum class Variant : std::uint32_t {
    throughput = NQ_VARIANT_THROUGHPUT,
    latency = NQ_VARIANT_LATENCY,
    throughput_32b = NQ_VARIANT_THROUGHPUT_32B,
    latency_32b = NQ_VARIANT_LATENCY_32B,
    split = NQ_VARIANT_SPLIT,
};
constexpr std::size_t kVariants = 5;
const char* name(Variant);

// The kernel's source: rmsnorm_fp4.cuh, staged.cuh, split.cuh.
enum class Form { plain, staged, split };

struct Plan {
    Variant variant = Variant::throughput;
    Form form = Form::plain;
    std::uint32_t threads_per_row = 0;  // of the summation tree; in the split form, of each block
    std::uint32_t block_threads = 0;
    std::uint32_t load_bytes = 16;
    std::uint32_t row_groups = 0;   // staged: groups of threads that take rows, at most
    std::uint32_t row_buffers = 0;  // staged: of each group
    std::uint32_t vector = 0;       // split: elements that a thread quantizes
    std::uint32_t cluster = 1;      // plain: blocks of a row, which share its sum
    // What a launch needs, and the above and the problem imply.
    std::uint32_t blocks_per_row = 1;
    std::uint32_t shared_bytes = 0;  // dynamic

    // At a time; 1 where several blocks share a row.
    std::uint32_t rows_per_block() const { return blocks_per_row > 1 ? 1 : block_threads / threads_per_row; }
    friend bool operator==(const Plan&, const Plan&) = default;
};

// What the caller wants otherwise, for tests and tuning. 0: as normquant chooses.
struct PlanOverride {
    std::uint32_t threads_per_row = 0;  // one plan, with these; variant and cluster say which
    Variant variant = Variant::throughput;
    std::uint32_t cluster = 0;
    std::uint32_t shared_limit = 0;   // bytes a block may have
    std::uint32_t cluster_limit = 0;  // blocks a cluster may have
    friend auto operator<=>(const PlanOverride&, const PlanOverride&) = default;
};

// Without an override the closed list: a function of the problem and the target alone. Never empty for a problem with a kernel.
std::vector<Plan> plans_for(const Problem& problem, const Arch& arch, const PlanOverride& limits = {});

// The plan with override.threads_per_row.
Result<Plan> plan_of(const Problem& problem, const Arch& arch, const PlanOverride& override);

// "throughput threads=64 block=128 load=16"; part of the cache key.
std::string canonical_text(const Plan& plan);

struct LaunchShape {
    std::uint32_t blocks = 0;  // grid: blocks x blocks_per_row
    std::uint32_t blocks_per_row = 1;
    std::uint32_t block_threads = 0;
    std::uint32_t shared_bytes = 0;  // dynamic
};
struct LaunchRows {
    std::int64_t rows = 0;       // the most
    bool maybe_fewer = false;    // the device knows how many
    bool zero_padding = false;   // the kernel zeroes the padding rows of a swizzled scale buffer
};
LaunchShape launch_shape(const Plan& plan, const Problem& problem, const LaunchRows& rows, std::uint32_t multiprocessors);

}  // namespace nq
