#include "problems.h"

#include "errors.h"
#include "options.h"
#include "targets.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <functional>

namespace nq::cli {
namespace {

using Problems = std::vector<nq_problem>;

// Every problem so far, once with each value.
Outcome expand(Problems& problems, const std::vector<std::string>& values, const char* otherwise,
               const std::function<Outcome(nq_problem&, const std::string&)>& set) {
    Problems expanded;
    for (const nq_problem& problem : problems) {
        for (const std::string& value : values.empty() ? std::vector<std::string>{otherwise} : values) {
            nq_problem next = problem;
            if (Outcome known = set(next, value); !known) return known;
            expanded.push_back(next);
        }
    }
    problems = std::move(expanded);
    return Unit{};
}

// A field that is one of a few names.
auto choose_into(std::uint32_t nq_problem::*field, Result<std::uint32_t> (*parse)(std::string_view, const std::string&),
                 const char* option) {
    return [=](nq_problem& problem, const std::string& text) -> Outcome {
        const auto value = parse(option, text);
        if (!value) return value.error();
        problem.*field = *value;
        return Unit{};
    };
}

Names bias_names() { return {"0", "1"}; }

// A flag that the second of two names sets.
auto flag(std::uint32_t bit, const char* option, Names (*names)()) {
    return [=](nq_problem& problem, const std::string& text) -> Outcome {
        if (text == names().back()) problem.flags |= bit;
        return one_of(option, text, names());
    };
}

Outcome set_hidden(nq_problem& problem, const std::string& text) {
    const auto hidden = parse_count("--hidden", text, 16, kMaxHidden);
    if (!hidden) return hidden.error();
    problem.hidden = *hidden;
    return Unit{};
}

// After the row's type.
Outcome set_weight(nq_problem& problem, const std::string& text) {
    const char* const own = dtype_name(problem.dtype);
    problem.weight_dtype = text == "fp32" ? static_cast<std::uint32_t>(NQ_FP32) : problem.dtype;
    if (text == "fp32" || text == "same" || text == own) return Unit{};
    return usage_error(fmt::format("--weight-dtype '{}' is not accepted: choose one of same (or {}), fp32", text, own));
}

Outcome set_format(nq_problem& problem, const std::string& text) {
    const auto format = parse_named_format("--format", text);
    if (!format) return format.error();
    problem.block_size = format->block_size;
    problem.scale_format = format->scale_format;
    return Unit{};
}

}  // namespace

const std::vector<ProblemOption>& problem_options() {
    static const std::vector<ProblemOption> kOptions = {
        {"--hidden", &ProblemLists::hidden, "Row lengths H: 16 to 131072, multiples of the block size"},
        {"--arch", &ProblemLists::archs, "GPUs (h200, b200, rtx5090), targets (sm_90, sm_100f), or all", target_names_and_gpus},
        {"--op", &ProblemLists::ops, "rmsnorm, add_rmsnorm (residual add first) [rmsnorm]", op_names},
        {"--dtype", &ProblemLists::dtypes, "fp16, bf16 [bf16]", dtype_names},
        {"--weight-dtype", &ProblemLists::weights, "same (as --dtype), fp32 [same]", weight_names},
        {"--weight-bias", &ProblemLists::weight_biases, "0, or 1: the weight is stored as w - 1 (Gemma) [0]", bias_names},
        {"--format", &ProblemLists::formats, "nvfp4, mxfp4, e4m3/32, ue8m0/16", all_format_names},
        {"--layout", &ProblemLists::layouts, "linear, swizzled, both (at once)", any_layout_names},
        {"--y-out", &ProblemLists::y_outs, "off, on: also write the normed row [off]", switch_names},
        {"--overlap", &ProblemLists::overlaps, "off, on: programmatic dependent launch, sm_90 and later [off]", switch_names},
        {"--device-rows", &ProblemLists::device_rows, "off, on: the row count may be read on the device [off]", switch_names},
        {"--batches", &ProblemLists::batches, "off, on: x may lie in batches with a stride of their own [off]", switch_names},
    };
    return kOptions;
}

void add_problem_options(CLI::App& app, ProblemLists& lists) {
    for (const ProblemOption& option : problem_options()) {
        std::vector<std::string>& values = lists.*option.values;
        CLI::Option* const added =
            app.add_option(option.option, values, option.help)->delimiter(',')->allow_extra_args(false);
        if (!values.empty()) added->capture_default_str();
        if (option.names != nullptr) offer(added, option.names());
    }
}

Result<std::vector<Problem>> problems_of(const ProblemLists& lists, std::vector<std::string>* left_out) {
    Problems all;
    if (!lists.hidden.empty()) all.push_back(NQ_PROBLEM_INIT);
    const auto steps = {
        expand(all, lists.hidden, "", set_hidden),
        expand(all, lists.ops, "rmsnorm", choose_into(&nq_problem::op, parse_op, "--op")),
        expand(all, lists.dtypes, "bf16", choose_into(&nq_problem::dtype, parse_dtype, "--dtype")),
        expand(all, lists.weights, "same", set_weight),
        expand(all, lists.weight_biases, "0", flag(NQ_PROBLEM_WEIGHT_BIAS_ONE, "--weight-bias", bias_names)),
        expand(all, lists.formats, "nvfp4", set_format),
        expand(all, lists.layouts, "linear", choose_into(&nq_problem::scale_layout, parse_any_layout, "--layout")),
        expand(all, lists.y_outs, "off", flag(NQ_PROBLEM_Y_OUT, "--y-out", switch_names)),
        expand(all, lists.overlaps, "off", flag(NQ_PROBLEM_OVERLAP, "--overlap", switch_names)),
        expand(all, lists.device_rows, "off", flag(NQ_PROBLEM_DEVICE_ROWS, "--device-rows", switch_names)),
        expand(all, lists.batches, "off", flag(NQ_PROBLEM_BATCHES, "--batches", switch_names)),
    };
    for (const Outcome& step : steps) {
        if (!step) return step.error();
    }
    std::vector<Problem> problems;
    for (const nq_problem& problem : all) {
        const auto valid = problem_from_c(&problem);
        if (valid) {
            add_once(problems, *valid);
        } else if (left_out == nullptr) {
            return valid.error();
        } else {
            add_once(*left_out, fmt::format("H={} {}: {}", problem.hidden, format_name(problem), valid.error().message));
        }
    }
    return problems;
}

}  // namespace nq::cli
