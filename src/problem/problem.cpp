#include "problem/problem.h"

#include "problem/struct_size.h"

#include <normquant/scale_layout.h>

#include <fmt/format.h>

namespace nq {
namespace {

constexpr std::uint32_t kKnownFlags = NQ_PROBLEM_WEIGHT_BIAS_ONE | NQ_PROBLEM_Y_OUT | NQ_PROBLEM_OVERLAP |
                                      NQ_PROBLEM_DEVICE_ROWS | NQ_PROBLEM_BATCHES;

Error refuse(const char* field, std::uint32_t value, const std::string& accepted) {
    return Error{NQ_ERR_INVALID_ARGUMENT, fmt::format("nq_problem.{} is {}; accepted: {}", field, value, accepted)};
}

}  // namespace

const char* name(Op op) {
    switch (op) {
        case Op::rmsnorm:
            return "rmsnorm";
        case Op::add_rmsnorm:
            return "add_rmsnorm";
    }
    return "?";
}

const char* name(DType dtype) {
    switch (dtype) {
        case DType::fp16:
            return "fp16";
        case DType::bf16:
            return "bf16";
        case DType::fp32:
            return "fp32";
    }
    return "?";
}

const char* name(ScaleFormat format) {
    switch (format) {
        case ScaleFormat::e4m3:
            return "e4m3";
        case ScaleFormat::ue8m0:
            return "ue8m0";
    }
    return "?";
}

const char* name(ScaleLayout layout) {
    switch (layout) {
        case ScaleLayout::linear:
            return "linear";
        case ScaleLayout::swizzled:
            return "swizzled";
        case ScaleLayout::both:
            return "both";
    }
    return "?";
}

Result<Problem> problem_from_c(const nq_problem* c) {
    if (c == nullptr) return Error{NQ_ERR_INVALID_ARGUMENT, "problem is NULL; accepted: a pointer to an nq_problem"};
    if (Outcome size = check_struct_size("nq_problem", c, sizeof(nq_problem)); !size) return std::move(size).error();

    if (c->op != NQ_OP_RMSNORM && c->op != NQ_OP_ADD_RMSNORM) {
        return refuse("op", c->op, "NQ_OP_RMSNORM (0), NQ_OP_ADD_RMSNORM (1)");
    }
    if (c->dtype != NQ_FP16 && c->dtype != NQ_BF16) return refuse("dtype", c->dtype, "NQ_FP16 (0), NQ_BF16 (1)");
    if (c->weight_dtype != c->dtype && c->weight_dtype != NQ_FP32) {
        return refuse("weight_dtype", c->weight_dtype, fmt::format("dtype ({}), NQ_FP32 (2)", c->dtype));
    }
    if (c->block_size != 16 && c->block_size != 32) return refuse("block_size", c->block_size, "16, 32");
    if (c->hidden < c->block_size || c->hidden > kMaxHidden || c->hidden % c->block_size != 0) {
        return refuse("hidden", c->hidden,
                      fmt::format("multiples of block_size ({0}) from {0} to {1}", c->block_size, kMaxHidden));
    }
    if (c->scale_format != NQ_SCALE_E4M3 && c->scale_format != NQ_SCALE_UE8M0) {
        return refuse("scale_format", c->scale_format, "NQ_SCALE_E4M3 (0), NQ_SCALE_UE8M0 (1)");
    }
    if (c->scale_layout > NQ_LAYOUT_BOTH) {
        return refuse("scale_layout", c->scale_layout, "NQ_LAYOUT_LINEAR (0), NQ_LAYOUT_SWIZZLED (1), NQ_LAYOUT_BOTH (2)");
    }
    if ((c->flags & ~kKnownFlags) != 0) {
        return Error{NQ_ERR_INVALID_ARGUMENT,
                     fmt::format("nq_problem.flags is {:#x}; accepted: any of NQ_PROBLEM_WEIGHT_BIAS_ONE (0x1), NQ_PROBLEM_Y_OUT (0x2), "
                                 "NQ_PROBLEM_OVERLAP (0x4), NQ_PROBLEM_DEVICE_ROWS (0x8), NQ_PROBLEM_BATCHES (0x10)",
                                 c->flags)};
    }
    return Problem{.op = static_cast<Op>(c->op),
                   .hidden = c->hidden,
                   .dtype = static_cast<DType>(c->dtype),
                   .weight_dtype = static_cast<DType>(c->weight_dtype),
                   .block_size = c->block_size,
                   .scale_format = static_cast<ScaleFormat>(c->scale_format),
                   .scale_layout = static_cast<ScaleLayout>(c->scale_layout),
                   .weight_bias_one = (c->flags & NQ_PROBLEM_WEIGHT_BIAS_ONE) != 0,
                   .y_out = (c->flags & NQ_PROBLEM_Y_OUT) != 0,
                   .overlap = (c->flags & NQ_PROBLEM_OVERLAP) != 0,
                   .device_rows = (c->flags & NQ_PROBLEM_DEVICE_ROWS) != 0,
                   .batches = (c->flags & NQ_PROBLEM_BATCHES) != 0};
}

nq_problem problem_to_c(const Problem& problem) {
    nq_problem c = NQ_PROBLEM_INIT;
    c.op = static_cast<std::uint32_t>(problem.op);
    c.hidden = problem.hidden;
    c.dtype = static_cast<std::uint32_t>(problem.dtype);
    c.weight_dtype = static_cast<std::uint32_t>(problem.weight_dtype);
    c.block_size = problem.block_size;
    c.scale_format = static_cast<std::uint32_t>(problem.scale_format);
    c.scale_layout = static_cast<std::uint32_t>(problem.scale_layout);
    c.flags = (problem.weight_bias_one ? NQ_PROBLEM_WEIGHT_BIAS_ONE : 0u) | (problem.y_out ? NQ_PROBLEM_Y_OUT : 0u) |
              (problem.overlap ? NQ_PROBLEM_OVERLAP : 0u) | (problem.device_rows ? NQ_PROBLEM_DEVICE_ROWS : 0u) |
              (problem.batches ? NQ_PROBLEM_BATCHES : 0u);
    return c;
}

std::string canonical_text(const Problem& problem) {
    return fmt::format("op={} hidden={} dtype={} weight={} block={} scale={} layout={} bias={:d} y_out={:d}{}{}{}",
                       name(problem.op), problem.hidden, name(problem.dtype), name(problem.weight_dtype),
                       problem.block_size, name(problem.scale_format), name(problem.scale_layout),
                       problem.weight_bias_one, problem.y_out, problem.overlap ? " overlap=1" : "",
                       problem.device_rows ? " device_rows=1" : "", problem.batches ? " batches=1" : "");
}

std::size_t fp4_bytes(const Problem& problem, std::int64_t rows) {
    return static_cast<std::size_t>(rows) * (problem.hidden / 2);
}

std::size_t scale_bytes(const Problem& problem, std::int64_t rows) {
    return normquant::scale_buffer_bytes(static_cast<std::uint64_t>(rows), problem.blocks(), problem.swizzled());
}

}  // namespace nq
