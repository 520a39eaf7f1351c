#include "plan/plan.h"

#include <normquant/geometry.h>
#include <normquant/scale_layout.h>

#include <fmt/format.h>

#include <algorithm>

namespace nq {
namespace {

// Rows share a block of this size when one alone would be smaller. Rows of a block wait for each other: small is faster.
constexpr std::uint32_t kSharedBlock = 64;

Plan make_plan(Variant variant, std::uint32_t threads_per_row, std::uint32_t least_block, std::uint32_t load_bytes) {
    return {variant, threads_per_row, std::max(threads_per_row, least_block), load_bytes};
}

std::uint32_t largest_valid(std::uint32_t hidden, std::uint32_t limit) {
    std::uint32_t best = 0;
    for (std::uint32_t n = 1; n <= limit; n *= 2) {
        if (normquant::threads_per_row_valid(hidden, n)) best = n;
    }
    return best;
}

std::uint32_t smallest_valid(std::uint32_t hidden) {
    std::uint32_t n = 1;
    while (!normquant::threads_per_row_valid(hidden, n)) n *= 2;
    return n;
}

std::string valid_threads(std::uint32_t hidden) {
    std::string text;
    for (std::uint32_t n = 1; n <= 1024; n *= 2) {
        if (normquant::threads_per_row_valid(hidden, n)) text += fmt::format("{}{}", text.empty() ? "" : ", ", n);
    }
    return text;
}

bool can_load_32(const Problem& problem, const Arch& arch, std::uint32_t threads_per_row) {
    return features(arch).loads_256 && !normquant::half_granules(problem.hidden, threads_per_row);
}

}  // namespace

const char* name(Variant variant) {
    switch (variant) {
        case Variant::throughput: return "throughput";
        case Variant::latency: return "latency";
        case Variant::throughput_32b: return "throughput_32b";
        case Variant::latency_32b: return "latency_32b";
    }
    return "?";
}

std::vector<Plan> plans_for(const Problem& problem, const Arch& arch) {
    // Throughput: the fewest threads that still hold the row, each with whole granules, so that most of a thread's work is
    // elements and not reductions. Latency: as many as shorten the row without a costly wide barrier.
    std::uint32_t throughput = smallest_valid(problem.hidden);
    while (!normquant::row_in_registers(problem.hidden, throughput) && throughput < 512) throughput *= 2;
    const std::uint32_t latency = std::max(throughput, largest_valid(problem.hidden, 512));

    std::vector<Plan> plans = {make_plan(Variant::throughput, throughput, kSharedBlock, 16),
                               make_plan(Variant::latency, latency, 32, 16)};
    if (can_load_32(problem, arch, throughput)) plans.push_back(make_plan(Variant::throughput_32b, throughput, kSharedBlock, 32));
    if (can_load_32(problem, arch, latency)) plans.push_back(make_plan(Variant::latency_32b, latency, 32, 32));
    return plans;
}

Result<Plan> plan_with_threads(const Problem& problem, const Arch& arch, std::uint32_t threads_per_row, Variant variant) {
    if (!normquant::threads_per_row_valid(problem.hidden, threads_per_row)) {
        return Error{NQ_ERR_INVALID_ARGUMENT, fmt::format("threads_per_row is {}; hidden {} accepts {}", threads_per_row,
                                                          problem.hidden, valid_threads(problem.hidden)), {}};
    }
    const bool wide = variant == Variant::throughput_32b || variant == Variant::latency_32b;
    if (wide && !can_load_32(problem, arch, threads_per_row)) {
        return Error{NQ_ERR_UNSUPPORTED_PROBLEM,
                     fmt::format("variant {} does not exist for {} threads a row on {}: it takes sm_100 or newer and whole granules a thread",
                                 name(variant), threads_per_row, arch.name()), {}};
    }
    const bool latency = variant == Variant::latency || variant == Variant::latency_32b;
    return make_plan(variant, threads_per_row, latency ? 32 : kSharedBlock, wide ? 32 : 16);
}

std::string canonical_text(const Plan& plan) {
    return fmt::format("{} threads={} block={} load={}", name(plan.variant), plan.threads_per_row, plan.block_threads, plan.load_bytes);
}

std::uint32_t grid_blocks(const Plan& plan, const Problem& problem, std::int64_t rows, bool zero_padding) {
    const bool padded = zero_padding && problem.scale_layout == ScaleLayout::swizzled;
    const std::uint64_t covered = padded ? normquant::padded_rows(static_cast<std::uint64_t>(rows)) : static_cast<std::uint64_t>(rows);
    return static_cast<std::uint32_t>((covered + plan.rows_per_block() - 1) / plan.rows_per_block());
}

}  // namespace nq
