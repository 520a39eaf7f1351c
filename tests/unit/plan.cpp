// Properties of plans and launch shapes, over widths and devices of every kind.
#include "plan/plan.h"

#include "support/catch.h"

#include <normquant/geometry.h>
#include <normquant/scale_layout.h>

#include <algorithm>

using namespace nq;

namespace {

constexpr const char* kArchs[] = {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100f", "sm_110f", "sm_120f"};

Problem problem_of(std::uint32_t hidden, ScaleLayout layout = ScaleLayout::linear, DType weight = DType::bf16) {
    Problem problem;
    problem.hidden = hidden;
    problem.scale_layout = layout;
    problem.weight_dtype = weight;
    return problem;
}

}  // namespace

TEST_CASE("every plan has whole warps, valid threads a row, and fits its target") {
    std::size_t staged = 0;
    for (const char* name : kArchs) {
        const Arch arch = *parse_arch(name);
        for (std::uint32_t hidden = 16; hidden <= 131072; hidden += hidden < 8192 ? 16 : 1008) {
            for (const DType weight : {DType::bf16, DType::fp32}) {
                const Problem problem = problem_of(hidden, ScaleLayout::linear, weight);
                // The target's shared memory, that of a smaller device, and hardly any.
                const std::uint32_t limits[] = {0, 99 << 10, 20 << 10};
                const std::uint32_t limit = limits[hidden / 16 % 3];
                for (const Plan& plan : plans_for(problem, arch, {.shared_limit = limit})) {
                    INFO(name << " hidden " << hidden << " limit " << limit << " " << canonical_text(plan));
                    REQUIRE(normquant::threads_per_row_valid(hidden, plan.threads_per_row));
                    REQUIRE(plan.block_threads % 32 == 0);
                    REQUIRE(plan.block_threads <= 1024);
                    REQUIRE(plan.block_threads % plan.threads_per_row == 0);
                    REQUIRE(plan.cluster == 1);
                    if (plan.form == Form::split) REQUIRE(plan.blocks_per_row * plan.threads_per_row * plan.vector >= hidden);
                    if (plan.form != Form::staged) continue;
                    ++staged;
                    REQUIRE(plan.variant == Variant::throughput);
                    const std::uint32_t members = normquant::group_threads(plan.threads_per_row);
                    REQUIRE(plan.row_groups * members == plan.block_threads);
                    REQUIRE((members == 32 || plan.row_groups <= 15));  // a named barrier each
                    REQUIRE(plan.shared_bytes <= features(arch).staged_bytes);
                    REQUIRE((limit == 0 || plan.shared_bytes <= limit));
                    REQUIRE(launch_shape(plan, problem, {.rows = 1'000'000}, 132).shared_bytes == plan.shared_bytes);
                }
            }
        }
    }
    CHECK(staged > 1000);
}

TEST_CASE("clusters: where the target, the limit and the threads allow them") {
    std::size_t exist = 0;
    for (const char* name : kArchs) {
        const Arch arch = *parse_arch(name);
        for (std::uint32_t hidden = 16; hidden <= 131072; hidden += hidden < 8192 ? 16 : 1008) {
            const Problem problem = problem_of(hidden);
            for (std::uint32_t threads = 32; threads <= 1024; threads *= 2) {
                if (!normquant::threads_per_row_valid(hidden, threads)) continue;
                for (std::uint32_t cluster = 2; cluster <= 32; cluster *= 2) {
                    for (const std::uint32_t limit : {0u, 4u}) {
                        INFO(name << " hidden " << hidden << " threads " << threads << " cluster " << cluster << " limit " << limit);
                        const Result<Plan> plan = plan_of(problem, arch, {.threads_per_row = threads, .cluster = cluster, .cluster_limit = limit});
                        const bool possible = arch.major >= 9 && cluster <= (limit == 0 ? 16u : limit) && threads / cluster >= 32;
                        REQUIRE(static_cast<bool>(plan) == possible);
                        if (!possible) continue;
                        ++exist;
                        REQUIRE(plan->block_threads * cluster == threads);
                        REQUIRE(plan->blocks_per_row == cluster);
                        REQUIRE(plan->rows_per_block() == 1);
                        REQUIRE(launch_shape(*plan, problem, {.rows = 300}, 132).blocks == 300);
                    }
                }
            }
        }
    }
    CHECK(exist > 1000);
    const Problem problem = problem_of(4096);
    const Arch arch = *parse_arch("sm_90");
    CHECK(plan_of(problem, arch, {.threads_per_row = 512, .cluster = 3}).error().status == NQ_ERR_INVALID_ARGUMENT);
    CHECK(plan_of(problem, arch, {.threads_per_row = 512, .variant = Variant::split, .cluster = 4}).error().status == NQ_ERR_INVALID_ARGUMENT);
    CHECK(plan_of(problem, arch, {.threads_per_row = 512, .cluster = 8, .cluster_limit = 4}).error().status == NQ_ERR_UNSUPPORTED_DEVICE);
    CHECK(plan_of(problem, arch, {.threads_per_row = 64, .cluster = 4}).error().status == NQ_ERR_UNSUPPORTED_PROBLEM);
}

TEST_CASE("a launch reaches every row and every row of padding, with no more threads than the plan") {
    for (const std::uint32_t hidden : {64u, 512u, 2048u, 2880u, 4096u, 7168u, 12288u, 16384u, 32768u, 65536u}) {
        for (const ScaleLayout layout : {ScaleLayout::linear, ScaleLayout::swizzled}) {
            const Problem problem = problem_of(hidden, layout);
            for (const Plan& plan : plans_for(problem, *parse_arch("sm_90"))) {
                for (const std::uint32_t multiprocessors : {1u, 7u, 16u, 132u, 148u}) {
                    for (const std::int64_t count : {1, 2, 5, 127, 128, 129, 264, 265, 1000, 1024, 16384, 70001, -1, -128, -1000}) {
                        const std::int64_t rows = count < 0 ? -count : count;
                        const bool fewer = count < 0;  // perhaps
                        INFO(canonical_text(problem) << " | " << canonical_text(plan) << " rows " << count << " SMs " << multiprocessors);
                        const LaunchShape shape = launch_shape(plan, problem, {rows, fewer, true}, multiprocessors);
                        REQUIRE(shape.blocks > 0);
                        REQUIRE(shape.block_threads > 0);
                        REQUIRE(shape.block_threads <= plan.block_threads);
                        const std::uint64_t real = static_cast<std::uint64_t>(rows);
                        const std::uint64_t covered = layout == ScaleLayout::swizzled ? normquant::padded_rows(real) : real;
                        REQUIRE(shape.blocks_per_row == plan.blocks_per_row);
                        if (plan.form != Form::staged) {
                            // Blocks for the rows, and blocks whose threads zero 16 bytes each of the last tile row; at least one for
                            // what turns out to be padding.
                            const std::uint32_t chunks = covered == real ? 0 : normquant::scale_tiles(hidden / 16) * 32;
                            const std::uint64_t row_blocks = (real + plan.rows_per_block() - 1) / plan.rows_per_block();
                            const std::uint64_t spare = shape.blocks - row_blocks, a_block = std::uint64_t{shape.blocks_per_row} * shape.block_threads;
                            REQUIRE(shape.block_threads == plan.block_threads);
                            REQUIRE(shape.blocks >= row_blocks);
                            REQUIRE(spare * a_block >= chunks);
                            if (chunks != 0) REQUIRE((spare - 1) * a_block < chunks);
                            if (chunks == 0) REQUIRE(spare <= (fewer ? 1 : 0));
                            if (fewer && layout == ScaleLayout::swizzled) REQUIRE((spare > 0 || plan.rows_per_block() == 1));
                            continue;
                        }
                        REQUIRE(shape.blocks <= multiprocessors);
                        REQUIRE(shape.block_threads % normquant::group_threads(plan.threads_per_row) == 0);
                        // Fewer groups, but no more turns than all of them would make.
                        const std::uint64_t most = std::uint64_t{multiprocessors} * plan.rows_per_block();
                        const std::uint64_t at_a_time = std::uint64_t{shape.blocks} * (shape.block_threads / plan.threads_per_row);
                        const auto turns = [&](std::uint64_t each) { return (real + each - 1) / each; };
                        REQUIRE(turns(at_a_time) == turns(most));
                    }
                }
            }
        }
    }
}
