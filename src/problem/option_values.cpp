#include "problem/option_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace nq {
namespace {

struct Value {
    std::string option;
    std::string value;
    bool number = false;
    bool is_default = false;  // of warmup, which makes several formats and layouts where none is named
};

std::string format_name(const Problem& problem) {
    const bool e4m3 = problem.scale_format == ScaleFormat::e4m3;
    if (problem.block_size == (e4m3 ? 16u : 32u)) return e4m3 ? "nvfp4" : "mxfp4";
    return fmt::format("{}/{}", name(problem.scale_format), problem.block_size);
}

std::vector<Value> values_of(const Problem& problem) {
    const auto on_off = [](bool on) { return on ? "on" : "off"; };
    const bool same = problem.weight_dtype == problem.dtype;
    return {
        {"op", name(problem.op), false, problem.op == Op::rmsnorm},
        {"dtype", name(problem.dtype), false, problem.dtype == DType::bf16},
        {"weight-dtype", same ? "same" : name(problem.weight_dtype), false, same},
        {"weight-bias", problem.weight_bias_one ? "1" : "0", true, !problem.weight_bias_one},
        {"format", format_name(problem)},
        {"layout", name(problem.scale_layout)},
        {"y-out", on_off(problem.y_out), false, !problem.y_out},
        {"overlap", on_off(problem.overlap), false, !problem.overlap},
        {"device-rows", on_off(problem.device_rows), false, !problem.device_rows},
        {"batches", on_off(problem.batches), false, !problem.batches},
    };
}

}  // namespace

std::string warmup_command(const Problem& problem, const Arch& arch) {
    std::string command = fmt::format("normquant warmup --hidden {} --arch {}", problem.hidden, arch.name());
    for (const Value& value : values_of(problem)) {
        if (!value.is_default) command += fmt::format(" --{} {}", value.option, value.value);
    }
    return command;
}

std::string manifest_text(const Problem& problem) {
    std::string text = fmt::format("{{\"hidden\":{}", problem.hidden);
    for (Value& value : values_of(problem)) {
        std::ranges::replace(value.option, '-', '_');
        const char* const quote = value.number ? "" : "\"";
        text += fmt::format(",\"{}\":{}{}{}", value.option, quote, value.value, quote);
    }
    return text + "}";
}

}  // namespace nq
