#include "support/operator_cases.h"

#include "support/random_inputs.h"

#include <normquant/staged.cuh>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

namespace nq::test {
namespace {

enum Factor : std::size_t { kResidual, kYOut, kLayout, kWeight, kBias, kStrides, kOverlap, kDeviceRows, kPadding };

}  // namespace

std::vector<std::vector<unsigned>> every_combination(const std::vector<unsigned>& values) {
    std::vector<std::vector<unsigned>> rows = {{}};
    for (const unsigned count : values) {
        std::vector<std::vector<unsigned>> longer;
        for (const auto& row : rows) {
            for (unsigned v = 0; v < count; ++v) {
                longer.push_back(row);
                longer.back().push_back(v);
            }
        }
        rows = std::move(longer);
    }
    return rows;
}

// Greedy: of all combinations the one with the most pairs that are still missing, until none is.
std::vector<std::vector<unsigned>> pairwise(const std::vector<unsigned>& values) {
    using Pair = std::tuple<std::size_t, unsigned, std::size_t, unsigned>;
    const auto pairs_of = [&](const std::vector<unsigned>& row) {
        std::vector<Pair> pairs;
        for (std::size_t i = 0; i < row.size(); ++i)
            for (std::size_t j = i + 1; j < row.size(); ++j) pairs.emplace_back(i, row[i], j, row[j]);
        return pairs;
    };
    const auto all = every_combination(values);
    std::set<Pair> missing;
    for (const auto& row : all) {
        const auto pairs = pairs_of(row);
        missing.insert(pairs.begin(), pairs.end());
    }
    std::vector<std::vector<unsigned>> chosen;
    while (!missing.empty()) {
        const auto gain = [&](const std::vector<unsigned>& row) {
            const auto pairs = pairs_of(row);
            return std::count_if(pairs.begin(), pairs.end(), [&](const Pair& pair) { return missing.contains(pair); });
        };
        // Every 7th combination is enough to choose from, while many are missing.
        const std::vector<unsigned>* best = nullptr;
        std::ptrdiff_t most = 0;
        for (const std::size_t step : {std::size_t{7}, std::size_t{1}}) {
            for (std::size_t i = chosen.size() % step; i < all.size() && best == nullptr; i += step) {
                if (gain(all[i]) > most && gain(all[i]) >= static_cast<std::ptrdiff_t>(values.size())) most = gain(all[i]), best = &all[i];
            }
        }
        if (best == nullptr) {
            for (const auto& row : all)
                if (const auto g = gain(row); g > most) most = g, best = &row;
        }
        chosen.push_back(*best);
        for (const Pair& pair : pairs_of(*best)) missing.erase(pair);
    }
    return chosen;
}

const std::vector<unsigned>& operator_factors() {
    static const std::vector<unsigned> factors = {3, 2, 3, 2, 2, 3, 3, 5, 2};
    return factors;
}

OperatorCase operator_case(std::uint32_t hidden, std::int64_t rows, const std::vector<unsigned>& choice, std::uint64_t seed) {
    OperatorCase result;
    Problem& problem = result.problem;
    problem.hidden = hidden;
    problem.dtype = seed % 2 ? DType::bf16 : DType::fp16;
    problem.block_size = seed / 2 % 2 && hidden % 32 == 0 ? 32 : 16;
    problem.scale_format = seed / 4 % 2 ? ScaleFormat::ue8m0 : ScaleFormat::e4m3;
    problem.op = choice[kResidual] ? Op::add_rmsnorm : Op::rmsnorm;
    problem.y_out = choice[kYOut] != 0;
    problem.scale_layout = static_cast<ScaleLayout>(choice[kLayout]);
    problem.weight_dtype = choice[kWeight] ? DType::fp32 : problem.dtype;
    problem.weight_bias_one = choice[kBias] != 0;

    Arrangement& at = result.arrangement;
    at.separate_residual = choice[kResidual] == 2;
    if (choice[kStrides] != 0) {
        at.x_gap = 24, at.residual_gap = 8, at.y_gap = 16, at.fp4_gap = 8;
        if (problem.linear()) at.scales_gap = 3;
    }
    if (choice[kStrides] == 2) at.batch_rows = std::max<std::int64_t>(1, rows / 3), at.batch_gap = 40;
    problem.batches = choice[kStrides] == 2;
    problem.overlap = choice[kOverlap] != 0;
    at.constant_weight = choice[kOverlap] == 2;
    at.keep_padding = choice[kPadding] != 0;

    result.inputs = random_inputs(problem, rows, kDistributions[seed % std::size(kDistributions)], seed);
    problem.device_rows = choice[kDeviceRows] != 0;
    const std::int32_t counts[] = {0, static_cast<std::int32_t>(rows / 2), -5, static_cast<std::int32_t>(rows) + 1};
    if (choice[kDeviceRows] != 0) result.inputs.device_rows = counts[choice[kDeviceRows] - 1];

    result.text = canonical_text(problem) + " rows " + std::to_string(rows) + " choice";
    for (const unsigned c : choice) result.text += " " + std::to_string(c);
    return result;
}

Outputs expected_outputs(const OperatorCase& test, unsigned threads, unsigned char garbage) {
    const Inputs& inputs = test.inputs;
    Outputs expected = run_reference(test.problem, inputs, threads, garbage, test.arrangement.keep_padding);
    // The reference has updated the residual in place.
    if (test.arrangement.separate_residual && inputs.device_rows) {
        const std::int64_t live = std::clamp<std::int64_t>(*inputs.device_rows, 0, inputs.rows);
        std::fill(expected.residual.begin() + live * 2 * test.problem.hidden, expected.residual.end(), garbage);
    }
    return expected;
}

bool scales_by_fours(const OperatorCase& test, const Plan& plan, std::uint32_t multiprocessors) {
    const Inputs& inputs = test.inputs;
    if (plan.form != Form::staged || !test.problem.swizzled() || plan.threads_per_row < 32) return false;
    const LaunchRows launched{inputs.rows, inputs.device_rows.has_value(), !test.arrangement.keep_padding};
    const LaunchShape shape = launch_shape(plan, test.problem, launched, multiprocessors);
    const auto rows = std::clamp<std::int64_t>(inputs.device_rows.value_or(inputs.rows), 0, inputs.rows);
    const normquant::RowOrder order(static_cast<std::uint32_t>(rows), shape.blocks * shape.block_threads / plan.threads_per_row, true);
    return order.fours_turns > 0;
}

}  // namespace nq::test
