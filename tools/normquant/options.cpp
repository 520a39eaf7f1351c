#include "options.h"

#include "errors.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <span>

namespace nq::cli {
namespace {

struct Choice {
    const char* name;
    std::uint32_t value;
};

constexpr Choice kDtypes[] = {{"fp16", NQ_FP16}, {"bf16", NQ_BF16}};
constexpr Choice kLayouts[] = {{"linear", NQ_LAYOUT_LINEAR}, {"swizzled", NQ_LAYOUT_SWIZZLED}};
constexpr Choice kAllLayouts[] = {
    {"linear", NQ_LAYOUT_LINEAR}, {"swizzled", NQ_LAYOUT_SWIZZLED}, {"both", NQ_LAYOUT_BOTH}};
constexpr Choice kOps[] = {{"rmsnorm", NQ_OP_RMSNORM}, {"add_rmsnorm", NQ_OP_ADD_RMSNORM}};
constexpr Choice kScales[] = {{"e4m3", NQ_SCALE_E4M3}, {"ue8m0", NQ_SCALE_UE8M0}};
constexpr Choice kBlocks[] = {{"16", 16}, {"32", 32}};
constexpr Choice kFormats[] = {{"nvfp4", NQ_SCALE_E4M3}, {"mxfp4", NQ_SCALE_UE8M0}};
constexpr Format kNamedFormats[] = {{16, NQ_SCALE_E4M3}, {32, NQ_SCALE_UE8M0}, {32, NQ_SCALE_E4M3}, {16, NQ_SCALE_UE8M0}};
constexpr Choice kFormatNames[] = {{"nvfp4", 0}, {"mxfp4", 1}, {"e4m3/32", 2}, {"ue8m0/16", 3}};  // places in the above

Names names_of(std::span<const Choice> choices) {
    Names names;
    for (const Choice& choice : choices) names.push_back(choice.name);
    return names;
}

Result<std::uint32_t> choose(std::string_view option, const std::string& text, std::span<const Choice> choices) {
    for (const Choice& choice : choices) {
        if (text == choice.name) return choice.value;
    }
    return one_of(option, text, names_of(choices)).error();
}

std::map<const CLI::Option*, Names>& offers() {
    static std::map<const CLI::Option*, Names> all;
    return all;
}

const char* name_of(std::uint32_t value, std::span<const Choice> choices) {
    for (const Choice& choice : choices) {
        if (choice.value == value) return choice.name;
    }
    return "unknown";
}

}  // namespace

Result<std::uint32_t> parse_count(std::string_view option, const std::string& text, std::uint32_t least,
                                  std::uint32_t most) {
    std::uint32_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, status] = std::from_chars(text.data(), end, value);
    if (status != std::errc{} || stop != end || value < least || value > most) {
        return usage_error(fmt::format("{} '{}' is not a whole number from {} to {}", option, text, least, most));
    }
    return value;
}

Result<float> parse_float(std::string_view option, const std::string& text) {
    float value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, status] = std::from_chars(text.data(), end, value);
    if (status != std::errc{} || stop != end || !std::isfinite(value)) {
        return usage_error(fmt::format("{} '{}' is not a finite binary32 number, such as 1e-6", option, text));
    }
    return value;
}

void offer(CLI::Option* option, Names names) { offers()[option] = std::move(names); }

Names offered(const CLI::Option* option) {
    const auto found = offers().find(option);
    return found == offers().end() ? Names{} : found->second;
}

Outcome one_of(std::string_view option, const std::string& text, const Names& names) {
    if (std::ranges::find(names, text) != names.end()) return Unit{};
    return usage_error(fmt::format("{} '{}' is not accepted: choose one of {}", option, text, fmt::join(names, ", ")));
}

Names dtype_names() { return names_of(kDtypes); }
Names layout_names() { return names_of(kLayouts); }
Names any_layout_names() { return names_of(kAllLayouts); }
Names op_names() { return names_of(kOps); }
Names block_names() { return names_of(kBlocks); }
Names scale_names() { return names_of(kScales); }
Names format_names() { return names_of(kFormats); }
Names all_format_names() { return names_of(kFormatNames); }
Names weight_names() { return {"same", "fp32"}; }
Names switch_names() { return {"off", "on"}; }

Result<std::uint32_t> parse_dtype(std::string_view option, const std::string& text) {
    return choose(option, text, kDtypes);
}

Result<std::uint32_t> parse_layout(std::string_view option, const std::string& text) {
    return choose(option, text, kLayouts);
}

Result<std::uint32_t> parse_any_layout(std::string_view option, const std::string& text) {
    return choose(option, text, kAllLayouts);
}

Result<std::uint32_t> parse_op(std::string_view option, const std::string& text) { return choose(option, text, kOps); }

Result<Format> parse_named_format(std::string_view option, const std::string& text) {
    const auto place = choose(option, text, kFormatNames);
    if (!place) return place.error();
    return kNamedFormats[*place];
}

Result<Format> parse_format(const std::string& format, const std::string& block, const std::string& scale) {
    const auto base = choose("--format", format, kFormats);
    if (!base) return base.error();
    Format result{*base == NQ_SCALE_E4M3 ? 16u : 32u, *base};
    if (!block.empty()) {
        const auto size = choose("--block", block, kBlocks);
        if (!size) return size.error();
        result.block_size = *size;
    }
    if (!scale.empty()) {
        const auto chosen = choose("--scale", scale, kScales);
        if (!chosen) return chosen.error();
        result.scale_format = *chosen;
    }
    return result;
}

const char* op_name(std::uint32_t op) { return name_of(op, kOps); }

const char* dtype_name(std::uint32_t dtype) { return dtype == NQ_FP32 ? "fp32" : name_of(dtype, kDtypes); }

const char* layout_name(std::uint32_t layout) { return name_of(layout, kAllLayouts); }

const char* scale_name(std::uint32_t scale_format) { return name_of(scale_format, kScales); }

std::string format_name(const nq_problem& problem) {
    if (problem.block_size == 16 && problem.scale_format == NQ_SCALE_E4M3) return "nvfp4";
    if (problem.block_size == 32 && problem.scale_format == NQ_SCALE_UE8M0) return "mxfp4";
    return fmt::format("{}/{}", scale_name(problem.scale_format), problem.block_size);
}

std::string problem_text(const nq_problem& problem) {
    return fmt::format("H={} {} {} weight={} {}{}{}{}{}{}{}", problem.hidden, dtype_name(problem.dtype), format_name(problem),
                       dtype_name(problem.weight_dtype), layout_name(problem.scale_layout),
                       problem.op == NQ_OP_RMSNORM ? "" : fmt::format(" {}", op_name(problem.op)),
                       (problem.flags & NQ_PROBLEM_WEIGHT_BIAS_ONE) != 0 ? " bias=1" : "",
                       (problem.flags & NQ_PROBLEM_Y_OUT) != 0 ? " y_out" : "",
                       (problem.flags & NQ_PROBLEM_OVERLAP) != 0 ? " overlap" : "",
                       (problem.flags & NQ_PROBLEM_DEVICE_ROWS) != 0 ? " device_rows" : "",
                       (problem.flags & NQ_PROBLEM_BATCHES) != 0 ? " batches" : "");
}

Result<ContextPtr> create_context(const std::string& cache_dir, nq_context_options options) {
    if (!cache_dir.empty()) options.cache_dir = cache_dir.c_str();
    nq_context* context = nullptr;
    const Outcome created = check(nq_context_create(&options, &context));
    if (!created) return created.error();
    return ContextPtr(context, nq_context_destroy);
}

void add_cache_dir(CLI::App& app, std::string& cache_dir) {
    app.add_option("--cache-dir", cache_dir,
                   "Root of the kernel cache (default: NORMQUANT_CACHE_DIR, else $XDG_CACHE_HOME/normquant, else "
                   "~/.cache/normquant)");
}

}  // namespace nq::cli
