// Option values arrive as text and are parsed here, so that every message names the option, the value and what is
// accepted.
#pragma once

#include "support/result.h"

#include <normquant/normquant.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}

namespace nq::cli {

Result<std::uint32_t> parse_count(std::string_view option, const std::string& text, std::uint32_t least,
                                  std::uint32_t most);
// A decimal number rounded to binary32; neither inf nor nan.
Result<float> parse_float(std::string_view option, const std::string& text);

// Of options whose value is one of a few names: what completions offer.
using Names = std::vector<std::string>;
void offer(CLI::Option* option, Names names);
Names offered(const CLI::Option* option);

// The text is one of the names.
Outcome one_of(std::string_view option, const std::string& text, const Names& names);

Names dtype_names();
Names layout_names();
Names any_layout_names();
Names op_names();
Names block_names();
Names scale_names();
Names format_names();
Names all_format_names();  // as parse_named_format() reads them
Names weight_names();      // same (as the rows), fp32
Names switch_names();      // off, on

Result<std::uint32_t> parse_dtype(std::string_view option, const std::string& text);   // fp16, bf16
Result<std::uint32_t> parse_layout(std::string_view option, const std::string& text);  // linear, swizzled
Result<std::uint32_t> parse_any_layout(std::string_view option, const std::string& text);  // and both
Result<std::uint32_t> parse_op(std::string_view option, const std::string& text);  // rmsnorm, add_rmsnorm

struct Format {
    std::uint32_t block_size = 16;
    std::uint32_t scale_format = NQ_SCALE_E4M3;
};
// nvfp4 or mxfp4, whose block size and scale format a non-empty `block` or `scale` replaces.
Result<Format> parse_format(const std::string& format, const std::string& block, const std::string& scale);

// As format_name() has it: nvfp4, mxfp4, e4m3/32, ue8m0/16.
Result<Format> parse_named_format(std::string_view option, const std::string& text);

const char* op_name(std::uint32_t op);
const char* dtype_name(std::uint32_t dtype);
const char* layout_name(std::uint32_t layout);
const char* scale_name(std::uint32_t scale_format);
std::string format_name(const nq_problem& problem);  // "nvfp4", "mxfp4", else "ue8m0/16"

// "H=4096 bf16 nvfp4 weight=bf16 linear", then what is not the plain case: "add_rmsnorm", "bias=1", "y_out", "overlap".
std::string problem_text(const nq_problem& problem);

using ContextPtr = std::unique_ptr<nq_context, void (*)(nq_context*)>;
// cache_dir empty: what the environment says.
Result<ContextPtr> create_context(const std::string& cache_dir, nq_context_options options = NQ_CONTEXT_OPTIONS_INIT);

void add_cache_dir(CLI::App& app, std::string& cache_dir);  // --cache-dir

}  // namespace nq::cli
