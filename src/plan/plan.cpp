#include "plan/plan.h"

#include <normquant/geometry.h>
#include <normquant/scale_layout.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace nq {
namespace {

// Rows share a block of this size when one alone would be smaller. Rows of a block wait for each other: small is faster.
constexpr std::uint32_t kSharedBlock = 64;

Plan plain_plan(Variant variant, std::uint32_t threads_per_row, std::uint32_t least_block, std::uint32_t load_bytes) {
    return {.variant = variant,
            .threads_per_row = threads_per_row,
            .block_threads = std::max(threads_per_row, least_block),
            .load_bytes = load_bytes};
}

constexpr std::uint32_t kArrivalBarrierBytes = 8;
constexpr std::uint32_t kRegisters = 64 << 10;  // of every SM
constexpr std::uint32_t kNamedBarriers = 15;    // of a block; one more is the block's own

std::uint32_t staged_bytes(const Problem& problem, const Plan& plan) {
    const std::uint32_t weight_size = problem.weight_dtype == DType::fp32 ? 4 : 2;
    const std::uint32_t granules = normquant::granules_per_thread(problem.hidden, plan.threads_per_row);
    return normquant::StagedLayout(problem.hidden, plan.threads_per_row, granules, plan.row_groups, plan.row_buffers, weight_size,
                                   problem.adds() ? 2 : 1, kArrivalBarrierBytes)
        .bytes;
}

// The staged form with as many rows at a time as registers and shared memory allow; row_groups is 0 if that is none.
Plan staged_plan(const Problem& problem, const ArchFeatures& feature, std::uint32_t threads, std::uint32_t shared_limit) {
    Plan plan{.variant = Variant::throughput, .form = Form::staged, .threads_per_row = threads};
    const std::uint32_t hidden = problem.hidden, members = normquant::group_threads(threads);
    if (shared_limit == 0 || normquant::half_granules(hidden, threads) || normquant::granules_per_thread(hidden, threads) > 7) return plan;
    const std::uint32_t registers = normquant::staged_registers(hidden, threads, problem.block_size, feature.packed_f32);
    std::uint32_t most = std::min(kRegisters / registers, 1024u) / members;
    if (members > 32) most = std::min(most, kNamedBarriers);
    // A second buffer pays where a group has no other warps, or the block no other groups, to fill its pauses.
    const auto fit = [&](std::uint32_t buffers) {
        plan.row_buffers = buffers;
        plan.row_groups = most;
        while (plan.row_groups > 0 && staged_bytes(problem, plan) > shared_limit) --plan.row_groups;
    };
    fit(members == 32 || most <= 2 ? 2 : 1);
    if (plan.row_groups < most && plan.row_buffers == 2) fit(1);
    // The warps of an SM's four schedulers in equal numbers.
    const std::uint32_t warps = members / 32, balanced = warps >= 4 ? 1 : 4 / warps;
    if (plan.row_groups > balanced) plan.row_groups -= plan.row_groups % balanced;
    plan.block_threads = plan.row_groups * members;
    plan.shared_bytes = staged_bytes(problem, plan);
    return plan;
}

// Where it was found to be faster: rows of half a warp or more, with at least 12 warps an SM. Packed arithmetic leaves issue slots:
// there 20 are preferred, and 16 to 12.
std::vector<Plan> preferred_staged(const Problem& problem, const ArchFeatures& feature, std::uint32_t tree_threads,
                                   std::uint32_t shared_limit) {
    if (tree_threads < 8) return {};
    for (std::uint32_t warps = feature.packed_f32 ? 20 : 12; warps >= 12; warps -= 4) {
        for (const std::uint32_t threads : {tree_threads, 2 * tree_threads}) {
            if (threads < 16 || (tree_threads < 32 && threads == tree_threads)) continue;
            if (!normquant::threads_per_row_valid(problem.hidden, threads)) continue;
            const Plan plan = staged_plan(problem, feature, threads, shared_limit);
            if (plan.row_groups != 0 && plan.block_threads >= warps * 32) return {plan};
        }
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

std::uint32_t limited(std::uint32_t limit_of_target, std::uint32_t limit) { return limit == 0 ? limit_of_target : std::min(limit, limit_of_target); }

constexpr std::uint32_t kSplitThreads = 128;  // of a block, where several share a row

// The split form: blocks of four warps, each thread with one vector; none where that is most of a narrow row.
std::uint32_t split_threads(std::uint32_t hidden) {
    std::uint32_t threads = smallest_valid(hidden);
    while (threads < kSplitThreads && normquant::threads_per_row_valid(hidden, 2 * threads)) threads *= 2;
    return threads < 64 ? 0 : threads;
}

Plan split_plan(std::uint32_t hidden, std::uint32_t threads) {
    // Wide rows take whole granules: more blocks would read the row once more each.
    const std::uint32_t vector = hidden <= 5120 ? 8 : 16;
    return {.variant = Variant::split,
            .form = Form::split,
            .threads_per_row = threads,
            .block_threads = threads,
            .vector = vector,
            .blocks_per_row = normquant::ceil_div(hidden, threads * vector)};
}

// The plain form, its threads divided among the blocks of a cluster.
Plan cluster_plan(Variant variant, std::uint32_t threads, std::uint32_t cluster) {
    Plan plan = plain_plan(variant, threads, 32, 16);
    plan.cluster = plan.blocks_per_row = cluster;
    plan.block_threads = threads / cluster;
    return plan;
}

// What splits a row that is read and updated in place: blocks of four warps, each with its part of the row, tell each other their sums.
// Two of them take longer than one block with the whole row (1.10 x, H 2048 on an H200), four as long (4096) or less (0.75 x, 7168).
std::optional<Plan> split_cluster_plan(std::uint32_t hidden, std::uint32_t most_blocks) {
    const std::uint32_t threads = largest_valid(hidden, 512), cluster = threads / kSplitThreads;
    if (cluster < 4 || cluster > most_blocks) return std::nullopt;
    return cluster_plan(Variant::split, threads, cluster);
}

Result<Plan> cluster_plan(const Arch& arch, const PlanOverride& override) {
    const std::uint32_t threads = override.threads_per_row, cluster = override.cluster;
    const std::uint32_t most = limited(features(arch).cluster_blocks, override.cluster_limit);
    const auto refuse = [&](nq_status status, const std::string& accepted) {
        return Error{status, fmt::format("cluster_size is {} with {} threads a row on {}; {}", cluster, threads, arch.name(), accepted), {}};
    };
    if ((cluster & (cluster - 1)) != 0 || cluster > 16) return refuse(NQ_ERR_INVALID_ARGUMENT, "accepted are 1, 2, 4, 8 and 16");
    if (override.variant != Variant::throughput && override.variant != Variant::latency)
        return refuse(NQ_ERR_INVALID_ARGUMENT, fmt::format("variant {} has none", name(override.variant)));
    if (most < cluster) return refuse(NQ_ERR_UNSUPPORTED_DEVICE, fmt::format("accepted there are clusters of up to {}", most));
    if (threads / cluster < 32) return refuse(NQ_ERR_UNSUPPORTED_PROBLEM, "each block takes 32 threads or more");
    return cluster_plan(Variant::latency, threads, cluster);
}

}  // namespace

const char* name(Variant variant) {
    switch (variant) {
        case Variant::throughput: return "throughput";
        case Variant::latency: return "latency";
        case Variant::throughput_32b: return "throughput_32b";
        case Variant::latency_32b: return "latency_32b";
        case Variant::split: return "split";
    }
    return "?";
}

std::vector<Plan> plans_for(const Problem& problem, const Arch& arch, const PlanOverride& limits) {
    const std::uint32_t hidden = problem.hidden, least = smallest_valid(hidden);
    // Throughput: the fewest threads that still hold the row, each with whole granules, so that most of a thread's work is
    // elements and not reductions; twice as many for the short rows of which a warp has several.
    std::uint32_t throughput = least;
    while (!normquant::row_in_registers(hidden, throughput) && throughput < 512) throughput *= 2;
    if (least < 32 && normquant::threads_per_row_valid(hidden, 2 * least)) throughput = 2 * least;
    // Latency: up to four warps, which hold the row, each thread with whole granules: wider barriers cost more than they save.
    std::uint32_t latency = std::max(throughput, largest_valid(hidden, 128));
    if (latency > 32 && latency > throughput && normquant::half_granules(hidden, latency)) latency /= 2;

    std::vector<Plan> plans = preferred_staged(problem, features(arch), normquant::tree_threads(hidden), limited(features(arch).staged_bytes, limits.shared_limit));
    const bool staged = !plans.empty();
    if (!staged) plans.push_back(plain_plan(Variant::throughput, throughput, kSharedBlock, 16));
    plans.push_back(plain_plan(Variant::latency, latency, 32, 16));
    if (problem.adds()) {
        if (const auto plan = split_cluster_plan(hidden, limited(features(arch).cluster_blocks, limits.cluster_limit))) plans.push_back(*plan);
    } else if (const std::uint32_t threads = split_threads(hidden); threads != 0) {
        plans.push_back(split_plan(hidden, threads));
    }
    if (!staged && can_load_32(problem, arch, throughput)) plans.push_back(plain_plan(Variant::throughput_32b, throughput, kSharedBlock, 32));
    if (plans.size() < 4 && can_load_32(problem, arch, latency)) plans.push_back(plain_plan(Variant::latency_32b, latency, 32, 32));
    return plans;
}

Result<Plan> plan_of(const Problem& problem, const Arch& arch, const PlanOverride& override) {
    const std::uint32_t threads = override.threads_per_row;
    if (!normquant::threads_per_row_valid(problem.hidden, threads)) {
        return Error{NQ_ERR_INVALID_ARGUMENT, fmt::format("threads_per_row is {}; hidden {} accepts {}", threads,
                                                          problem.hidden, valid_threads(problem.hidden)), {}};
    }
    if (override.cluster > 1) return cluster_plan(arch, override);
    const auto missing = [&](const char* takes) {
        return Error{NQ_ERR_UNSUPPORTED_PROBLEM,
                     fmt::format("variant {} does not exist for {} threads a row on {}: it takes {}", name(override.variant), threads,
                                 arch.name(), takes), {}};
    };
    switch (override.variant) {
        case Variant::throughput:
            if (const Plan staged = staged_plan(problem, features(arch), threads, limited(features(arch).staged_bytes, override.shared_limit)); staged.row_groups != 0)
                return staged;
            return plain_plan(Variant::throughput, threads, kSharedBlock, 16);
        case Variant::latency: return plain_plan(Variant::latency, threads, 32, 16);
        case Variant::split:
            if (threads % 32 != 0) return missing("whole warps");
            if (problem.adds()) return missing("a row that is not updated in place, or a cluster_size");
            return split_plan(problem.hidden, threads);
        case Variant::throughput_32b:
        case Variant::latency_32b:
            if (!can_load_32(problem, arch, threads)) return missing("sm_100 or newer and whole granules a thread");
            return plain_plan(override.variant, threads, override.variant == Variant::latency_32b ? 32 : kSharedBlock, 32);
    }
    return missing("one of the variants of enum nq_variant");
}

std::string canonical_text(const Plan& plan) {
    std::string text = fmt::format("{} threads={} block={} load={}", name(plan.variant), plan.threads_per_row, plan.block_threads, plan.load_bytes);
    if (plan.form == Form::staged) text += fmt::format(" groups={} buffers={}", plan.row_groups, plan.row_buffers);
    if (plan.form == Form::split) text += fmt::format(" vector={}", plan.vector);
    if (plan.cluster > 1) text += fmt::format(" cluster={}", plan.cluster);
    return text;
}

LaunchShape launch_shape(const Plan& plan, const Problem& problem, const LaunchRows& rows, std::uint32_t multiprocessors) {
    const auto ceil_div = [](std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; };
    const auto real = static_cast<std::uint64_t>(rows.rows);
    LaunchShape shape{.blocks_per_row = plan.blocks_per_row, .block_threads = plan.block_threads, .shared_bytes = plan.shared_bytes};
    if (real == 0) return shape;
    switch (plan.form) {
        case Form::plain:
        case Form::split: {
            // Blocks behind the last row zero the padding rows: 16 bytes a thread, if all rows are there.
            const bool padding = rows.zero_padding && problem.swizzled() && real % normquant::kTileRows != 0;
            const std::uint64_t chunks = padding ? normquant::scale_tiles(problem.blocks()) * (normquant::kTileBytes / 16) : 0;
            const std::uint64_t threads = std::uint64_t{shape.blocks_per_row} * plan.block_threads;
            // A row that shares its block leaves none spare when there are fewer rows than that.
            const bool one_more = chunks == 0 && rows.maybe_fewer && rows.zero_padding && problem.swizzled() && plan.rows_per_block() > 1;
            shape.blocks = static_cast<std::uint32_t>(ceil_div(real, plan.rows_per_block()) + ceil_div(chunks, threads) + one_more);
            break;
        }
        case Form::staged: {
            // As few groups as make no more turns than all of them would: the last turn is full, and fewer rows compete. But in
            // numbers that occupy the four schedulers of an SM equally.
            const std::uint64_t group_rows = plan.rows_per_block() / plan.row_groups, turns = ceil_div(real, std::uint64_t{multiprocessors} * plan.rows_per_block());
            const std::uint32_t members = plan.block_threads / plan.row_groups, balanced = members >= 128 ? 1 : 128 / members;
            std::uint64_t groups = ceil_div(real, multiprocessors * turns * group_rows);
            if (turns > 1) groups = std::min<std::uint64_t>(ceil_div(groups, balanced) * balanced, plan.row_groups);
            shape.blocks = static_cast<std::uint32_t>(std::min<std::uint64_t>(multiprocessors, ceil_div(real, groups * group_rows)));
            shape.block_threads = static_cast<std::uint32_t>(groups) * members;
            break;
        }
    }
    return shape;
}

}  // namespace nq
