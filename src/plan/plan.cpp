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
    return {variant, threads_per_row, std::max(threads_per_row, least_block), load_bytes, 0};
}

constexpr std::uint32_t kCopyBarrierBytes = 8;
constexpr std::uint32_t kRegisters = 64 << 10;  // of every SM
constexpr std::uint32_t kMostGroups = 15;       // each has a named barrier, and the 16th is the block's

std::uint32_t staged_bytes(const Problem& problem, std::uint32_t threads, std::uint32_t groups) {
    const std::uint32_t weight_size = problem.weight_dtype == DType::fp32 ? 4 : 2;
    return normquant::StagedLayout(problem.hidden, threads, groups, weight_size, kCopyBarrierBytes).bytes;
}

// The staged form with as many rows at a time as registers and shared memory allow; row_groups is 0 if that is none.
Plan staged_plan(const Problem& problem, const Arch& arch, std::uint32_t threads) {
    Plan plan{Variant::throughput, threads, 0, 16, 0};
    const std::uint32_t limit = features(arch).staged_bytes, members = normquant::group_threads(threads);
    if (limit == 0 || normquant::half_granules(problem.hidden, threads) || normquant::granules_per_thread(problem.hidden, threads) > 7) return plan;
    std::uint32_t groups = std::min(kMostGroups, kRegisters / (normquant::staged_registers(problem.hidden, threads, problem.block_size) * members));
    groups = std::min(groups, 1024 / members);
    while (groups > 0 && staged_bytes(problem, threads, groups) > limit) --groups;
    plan.row_groups = groups;
    plan.block_threads = groups * members;
    return plan;
}

// Where it was found to be faster: rows of a warp or more, with at least 12 warps an SM.
std::vector<Plan> preferred_staged(const Problem& problem, const Arch& arch, std::uint32_t least_threads) {
    if (least_threads < 32) return {};
    for (const std::uint32_t threads : {least_threads, 2 * least_threads}) {
        if (!normquant::threads_per_row_valid(problem.hidden, threads)) continue;
        const Plan plan = staged_plan(problem, arch, threads);
        if (plan.row_groups != 0 && plan.block_threads >= 12 * 32) return {plan};
    }
    return {};
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
    // elements and not reductions; twice as many for the short rows of which a warp has several. Latency: as many as shorten the
    // row without a costly wide barrier.
    const std::uint32_t least = smallest_valid(problem.hidden);
    std::uint32_t throughput = least;
    while (!normquant::row_in_registers(problem.hidden, throughput) && throughput < 512) throughput *= 2;
    if (least < 32 && normquant::threads_per_row_valid(problem.hidden, 2 * least)) throughput = 2 * least;
    const std::uint32_t latency = std::max(throughput, largest_valid(problem.hidden, 512));

    std::vector<Plan> plans = preferred_staged(problem, arch, least);
    const bool staged = !plans.empty();
    if (!staged) plans.push_back(make_plan(Variant::throughput, throughput, kSharedBlock, 16));
    plans.push_back(make_plan(Variant::latency, latency, 32, 16));
    if (!staged && can_load_32(problem, arch, throughput)) plans.push_back(make_plan(Variant::throughput_32b, throughput, kSharedBlock, 32));
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
    if (variant == Variant::throughput) {
        if (const Plan staged = staged_plan(problem, arch, threads_per_row); staged.row_groups != 0) return staged;
    }
    const bool latency = variant == Variant::latency || variant == Variant::latency_32b;
    return make_plan(variant, threads_per_row, latency ? 32 : kSharedBlock, wide ? 32 : 16);
}

std::string canonical_text(const Plan& plan) {
    return fmt::format("{} threads={} block={} load={}{}", name(plan.variant), plan.threads_per_row, plan.block_threads, plan.load_bytes,
                       plan.row_groups != 0 ? fmt::format(" groups={}", plan.row_groups) : "");
}

LaunchShape launch_shape(const Plan& plan, const Problem& problem, std::int64_t rows, bool zero_padding, std::uint32_t multiprocessors) {
    const bool padded = zero_padding && problem.scale_layout == ScaleLayout::swizzled;
    const std::uint64_t real = static_cast<std::uint64_t>(rows), covered = padded ? normquant::padded_rows(real) : real;
    const auto ceil_div = [](std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; };
    if (plan.row_groups == 0 || rows == 0)
        return {static_cast<std::uint32_t>(ceil_div(covered, plan.rows_per_block())), plan.block_threads, 0};

    // As few groups as make no more turns than all of them would: the last turn is full, and fewer rows compete.
    const std::uint64_t group_rows = plan.rows_per_block() / plan.row_groups, turns = ceil_div(real, std::uint64_t{multiprocessors} * plan.rows_per_block());
    const auto groups = static_cast<std::uint32_t>(ceil_div(real, multiprocessors * turns * group_rows));
    const std::uint64_t blocks = std::min<std::uint64_t>(multiprocessors, ceil_div(covered, groups * group_rows));
    return {static_cast<std::uint32_t>(blocks), plan.block_threads / plan.row_groups * groups,
            staged_bytes(problem, plan.threads_per_row, plan.row_groups)};
}

}  // namespace nq
