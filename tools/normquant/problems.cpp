#include "problems.h"

#include "errors.h"
#include "options.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>

namespace nq::cli {
namespace {

template <class T>
void add_once(std::vector<T>& list, const T& value) {
    if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

}  // namespace

void add_problem_options(CLI::App& app, ProblemLists& lists) {
    const auto list = [&app](const char* name, std::vector<std::string>& values, const char* help) {
        return app.add_option(name, values, help)->delimiter(',')->allow_extra_args(false);
    };
    list("--hidden", lists.hidden, "Row lengths H: 16 to 131072, multiples of the block size")->required();
    list("--arch", lists.archs, "Targets, as sm_90 or sm_100f")->required();
    list("--dtype", lists.dtypes, "fp16, bf16")->capture_default_str();
    list("--weight-dtype", lists.weights, "same (as --dtype), fp32")->capture_default_str();
    list("--format", lists.formats, "nvfp4, mxfp4")->capture_default_str();
    list("--layout", lists.layouts, "linear, swizzled")->capture_default_str();
}

Result<std::vector<Problem>> problems_of(const ProblemLists& lists) {
    std::vector<Problem> problems;
    for (const std::string& hidden_text : lists.hidden) {
        const auto hidden = parse_count("--hidden", hidden_text, 16, kMaxHidden);
        if (!hidden) return hidden.error();
        for (const std::string& dtype_text : lists.dtypes) {
            const auto dtype = parse_dtype("--dtype", dtype_text);
            if (!dtype) return dtype.error();
            for (const std::string& weight : lists.weights) {
                if (weight != "same" && weight != "fp32") {
                    return usage_error(
                        fmt::format("--weight-dtype '{}' is not accepted: choose one of same, fp32", weight));
                }
                for (const std::string& format_text : lists.formats) {
                    const auto format = parse_format(format_text, "", "");
                    if (!format) return format.error();
                    for (const std::string& layout_text : lists.layouts) {
                        const auto layout = parse_layout("--layout", layout_text);
                        if (!layout) return layout.error();
                        nq_problem problem = NQ_PROBLEM_INIT;
                        problem.hidden = *hidden;
                        problem.dtype = *dtype;
                        problem.weight_dtype = weight == "same" ? *dtype : static_cast<std::uint32_t>(NQ_FP32);
                        problem.block_size = format->block_size;
                        problem.scale_format = format->scale_format;
                        problem.scale_layout = *layout;
                        const auto valid = problem_from_c(&problem);
                        if (!valid) return valid.error();
                        add_once(problems, *valid);
                    }
                }
            }
        }
    }
    return problems;
}

Result<std::vector<Arch>> archs_of(const ProblemLists& lists) {
    std::vector<Arch> archs;
    for (const std::string& text : lists.archs) {
        const auto arch = parse_arch(text);
        if (!arch) return usage_error(fmt::format("--arch: {}", arch.error().message));
        add_once(archs, *arch);
    }
    return archs;
}

}  // namespace nq::cli
