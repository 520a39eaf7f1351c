// The emulated kernel equals the reference, byte for byte, for every thread count, scale rule, layout and conversion path.
#include "emulator/emulate.h"

#include "support/catch.h"
#include "support/golden.h"
#include "support/operator_cases.h"
#include "support/problems.h"
#include "support/random_inputs.h"

#include <normquant/geometry.h>

#include <algorithm>
#include <initializer_list>

using namespace nq;
using namespace nq::test;

namespace {

constexpr EmulatedTarget kTargets[] = {{normquant::kFp4Native, true, true}, {normquant::kFp4Packed, true}, {normquant::kFp4Scalar, false}};

std::vector<std::uint32_t> thread_counts(std::uint32_t hidden) {
    std::vector<std::uint32_t> counts;
    for (std::uint32_t n = 1; n <= 1024; n *= 2) {
        if (normquant::threads_per_row_valid(hidden, n)) counts.push_back(n);
    }
    return counts;
}

// Blocks as the plans make them, of every form: with 32-byte loads where whole granules allow it, and as clusters.
std::vector<Plan> every_plan(const Problem& problem) {
    const Arch arch = *parse_arch("sm_100f");
    std::vector<Plan> plans;
    const auto add = [&](const Arch& target, const PlanOverride& override) {
        if (const Result<Plan> plan = plan_of(problem, target, override)) plans.push_back(*plan);
    };
    for (const std::uint32_t threads : thread_counts(problem.hidden)) {
        for (const Variant variant : {Variant::throughput, Variant::latency, Variant::throughput_32b, Variant::split})
            add(arch, {.threads_per_row = threads, .variant = variant});
        // Where the staged form exists the override above is that, with as many buffers as there is room for.
        add(*parse_arch("sm_80"), {.threads_per_row = threads});
        add(*parse_arch("sm_120f"), {.threads_per_row = threads});
        for (const std::uint32_t cluster : {2u, 4u, 8u, 16u}) add(arch, {.threads_per_row = threads, .cluster = cluster});
    }
    return plans;
}

void check(const Problem& problem, const Plan& plan, const EmulatedTarget& target, const Inputs& inputs, const Outputs& expected,
           unsigned char garbage, const Arrangement& arrangement) {
    INFO(canonical_text(problem) << " | " << canonical_text(plan) << " | fp4 path " << target.fp4_path << " rows " << inputs.rows);
    const Outputs got = emulate(problem, plan, target, inputs, garbage, arrangement);
    REQUIRE(got.fp4 == expected.fp4);
    REQUIRE(got.scales == expected.scales);
    REQUIRE(got.scales_linear == expected.scales_linear);
    REQUIRE(got.residual == expected.residual);
    REQUIRE(got.y_out == expected.y_out);
}

constexpr std::uint32_t kHidden[] = {16, 64, 80, 576, 2880, 4096, 7168, 16400, 32784};

}  // namespace

TEST_CASE("golden vectors") {
    std::size_t cases = 0;
    for (const std::string& name : golden_names()) {
        const GoldenCase golden = load_golden(name);
        ++cases;
        for (const EmulatedTarget& target : kTargets) {
            for (const Plan& plan : plans_for(golden.problem, *parse_arch("sm_100f"))) {
                INFO(name);
                check(golden.problem, plan, target, golden.inputs, golden.expected, 0xab, {});
            }
        }
    }
    CHECK(cases == 34);
}

// Every (type, weight, block, scale, layout) at every width, each with another plan, path, distribution and row count in turn.
TEST_CASE("representative matrix") {
    constexpr std::int64_t kRows[] = {1, 3, 5};
    std::uint64_t turn = 0;
    for (const std::uint32_t hidden : kHidden) {
        for (const Problem& problem : every_problem(hidden)) {
            const std::vector<Plan> plans = every_plan(problem);
            for (std::size_t i = 0; i < 2; ++i, ++turn) {
                const Distribution distribution = kDistributions[turn % std::size(kDistributions)];
                const Inputs inputs = random_inputs(problem, kRows[turn % std::size(kRows)], distribution, turn);
                check(problem, plans[turn % plans.size()], kTargets[turn / 2 % std::size(kTargets)], inputs,
                      run_reference(problem, inputs), static_cast<unsigned char>(turn), {.x_gap = 16 * static_cast<std::int64_t>(turn % 2), .fp4_gap = 8});
            }
        }
    }
}

TEST_CASE("every thread count gives the same bytes") {
    for (const std::uint32_t hidden : {16u, 48u, 64u, 80u, 96u, 128u, 576u, 1536u, 2880u, 5120u, 8192u, 16384u}) {
        Problem problem;
        problem.hidden = hidden;
        problem.scale_layout = ScaleLayout::swizzled;
        const Inputs inputs = random_inputs(problem, 7, Distribution::outliers, hidden);
        const Outputs expected = run_reference(problem, inputs);
        for (const Plan& plan : every_plan(problem)) check(problem, plan, kTargets[1], inputs, expected, 0xff, {});
    }
}

namespace {

void check_padding(std::initializer_list<std::uint32_t> widths) {
    for (const std::uint32_t hidden : widths) {
        for (const std::int64_t rows : {1, 7, 127, 128, 129, 255}) {
            Problem problem;
            problem.hidden = hidden;
            problem.scale_layout = ScaleLayout::swizzled;
            const Inputs inputs = random_inputs(problem, rows, Distribution::normal, hidden + static_cast<std::uint64_t>(rows));
            const Outputs expected = run_reference(problem, inputs);
            const std::vector<Plan> plans = plans_for(problem, *parse_arch("sm_90"));
            for (const Plan& plan : plans) {
                for (const unsigned poison : {0x7fu, 0xffu, 0xabu})
                    check(problem, plan, kTargets[1], inputs, expected, static_cast<unsigned char>(poison), {});
            }
        }
    }
}

}  // namespace

TEST_CASE("ragged rows and padding of the swizzled layout") { check_padding({64, 80, 96, 112}); }  // 4 to 7 blocks a row
TEST_CASE("the same of wide rows") { check_padding({2688}); }                                      // 168

TEST_CASE("padding is left alone on request") {
    Problem problem;
    problem.hidden = 80;
    problem.scale_layout = ScaleLayout::swizzled;
    const Inputs inputs = random_inputs(problem, 3, Distribution::normal, 1);
    const Plan plan = plans_for(problem, *parse_arch("sm_90"))[0];
    const Bytes zeroed = emulate(problem, plan, kTargets[1], inputs, 0x7e).scales;
    const Bytes kept = emulate(problem, plan, kTargets[1], inputs, 0x7e, {.keep_padding = true}).scales;
    std::size_t padding = 0;
    for (std::size_t i = 0; i < kept.size(); ++i) {
        if (kept[i] == zeroed[i]) continue;
        REQUIRE(zeroed[i] == 0);
        REQUIRE(kept[i] == 0x7e);
        ++padding;
    }
    CHECK(padding >= 1024 - 15 - 15);  // a byte that is really 0x7e cannot be told from padding
}

namespace {

void check_case(const OperatorCase& test, const Plan& plan, const EmulatedTarget& target) {
    INFO(test.text);
    constexpr unsigned char kGarbage = 0xa7;
    Arrangement arrangement = test.arrangement;
    if (plan.load_bytes == 32) {  // launches take such plans only where all rows are aligned to it
        for (std::int64_t* gap : {&arrangement.x_gap, &arrangement.batch_gap}) *gap = (*gap + 15) / 16 * 16;
    }
    check(test.problem, plan, target, test.inputs, expected_outputs(test, 1, kGarbage), kGarbage, arrangement);
}

void check_pairs(std::initializer_list<std::uint32_t> widths) {
    std::uint64_t turn = 0;
    const auto choices = pairwise(operator_factors());
    CHECK(choices.size() < 40);
    for (const std::uint32_t hidden : widths) {
        for (const auto& choice : choices) {
            const std::int64_t rows = hidden > 7168 ? 2 : turn % 3 == 0 ? 131 : 6;
            const OperatorCase test = operator_case(hidden, hidden > 576 ? std::min<std::int64_t>(rows, 6) : rows, choice, ++turn);
            const std::vector<Plan> plans = every_plan(test.problem);
            for (std::size_t i = 0; i < 3; ++i)
                check_case(test, plans[(turn * 7 + i * 5) % plans.size()], kTargets[(turn + i) % std::size(kTargets)]);
            // As it is launched.
            const std::vector<Plan> chosen = plans_for(test.problem, *parse_arch(turn % 2 ? "sm_90" : "sm_80"));
            check_case(test, chosen[turn % chosen.size()], kTargets[1]);
        }
    }
}

}  // namespace

TEST_CASE("everything that a launch may ask for, in pairs, on narrow rows") { check_pairs({16, 80, 576}); }
TEST_CASE("everything that a launch may ask for, in pairs, on wide rows") { check_pairs({2880, 7168, 16400, 32784}); }

TEST_CASE("everything that a launch may ask for, in pairs, on enough rows to write scales by fours of them") {
    std::uint64_t turn = 0;
    std::size_t fours[2] = {};  // with blocks of 16 and of 32
    for (const std::uint32_t hidden : {1024u, 2048u}) {
        for (const auto& choice : pairwise(operator_factors())) {
            ++turn;
            for (const std::uint64_t block32 : {0, 2}) {  // of the seed
                const std::int64_t rows = 260 + static_cast<std::int64_t>(turn * 37 % 141);
                OperatorCase test = operator_case(hidden, rows, choice, turn / 2 * 4 + turn % 2 + block32);
                if (!test.problem.swizzled()) continue;
                if (test.inputs.device_rows && *test.inputs.device_rows <= 0) test.inputs.device_rows = static_cast<std::int32_t>(rows) - 1;
                const Arch arch = *parse_arch(turn % 2 ? "sm_90" : "sm_120f");
                // As it is launched; with groups of one, two or more warps, and few of them, so that there are many turns.
                const Plan chosen = plans_for(test.problem, arch)[0];
                std::vector<Plan> plans = {chosen};
                const std::uint32_t more = chosen.threads_per_row * (turn % 4 < 2 ? 2 : 4);
                if (const auto plan = plan_of(test.problem, arch, {.threads_per_row = more, .shared_limit = 40 << 10})) plans.push_back(*plan);
                for (const Plan& plan : plans) {
                    check_case(test, plan, kTargets[turn % std::size(kTargets)]);
                    fours[test.problem.block_size == 32] += scales_by_fours(test, plan, kMultiprocessors);
                }
            }
        }
    }
    CHECK(fours[0] > 30);
    CHECK(fours[1] > 30);
}

TEST_CASE("no rows, no blocks") {
    Problem problem;
    problem.hidden = 7168;
    for (const Plan& plan : plans_for(problem, *parse_arch("sm_100f"))) CHECK(launch_shape(plan, problem, {0, false, true}, 132).blocks == 0);
}

TEST_CASE("everything that a launch may ask for, in all combinations", "[nightly]") {
    std::uint64_t turn = 0;
    for (const auto& choice : every_combination(operator_factors())) {
        const std::uint32_t hidden = kHidden[turn % std::size(kHidden)];
        const OperatorCase test = operator_case(hidden, hidden > 7168 ? 2 : 5, choice, ++turn);
        const std::vector<Plan> plans = every_plan(test.problem);
        for (std::size_t i = 0; i < 4; ++i) check_case(test, plans[(turn * 7 + i * 5) % plans.size()], kTargets[(turn + i) % std::size(kTargets)]);
    }
}

// A section a problem, so that the parts can run side by side: -c "hidden 4096" -c "problem 3".
TEST_CASE("full matrix", "[nightly]") {
    for (const std::uint32_t hidden : kHidden) {
        DYNAMIC_SECTION("hidden " << hidden) {
            const std::vector<Problem> problems = every_problem(hidden);
            for (std::size_t p = 0; p < problems.size(); ++p) {
                DYNAMIC_SECTION("problem " << p) {
                    const std::vector<Plan> plans = every_plan(problems[p]);
                    std::uint64_t seed = hidden * 100 + p;
                    for (const Distribution distribution : kDistributions) {
                        const std::int64_t rows = 1 + static_cast<std::int64_t>(++seed % 3);
                        const Inputs inputs = random_inputs(problems[p], rows, distribution, seed);
                        const Outputs expected = run_reference(problems[p], inputs);
                        const Arrangement gaps = seed % 2 != 0 ? Arrangement{.x_gap = 16, .fp4_gap = 8} : Arrangement{};
                        for (const Plan& plan : plans) {
                            for (const EmulatedTarget& target : kTargets) check(problems[p], plan, target, inputs, expected, 0xa5, gaps);
                        }
                    }
                }
            }
        }
    }
}
