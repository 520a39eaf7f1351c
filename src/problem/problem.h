// What is asked: the validated form of nq_problem, and its canonical text (the identity used in cache keys and messages).
#pragma once

#include "support/result.h"

#include <normquant/normquant.h>

#include <cstdint>
#include <string>

namespace nq {

enum class Op : std::uint32_t { rmsnorm = NQ_OP_RMSNORM, add_rmsnorm = NQ_OP_ADD_RMSNORM };
enum class DType : std::uint32_t { fp16 = NQ_FP16, bf16 = NQ_BF16, fp32 = NQ_FP32 };
enum class ScaleFormat : std::uint32_t { e4m3 = NQ_SCALE_E4M3, ue8m0 = NQ_SCALE_UE8M0 };
enum class ScaleLayout : std::uint32_t { linear = NQ_LAYOUT_LINEAR, swizzled = NQ_LAYOUT_SWIZZLED, both = NQ_LAYOUT_BOTH };

struct Problem {
    Op op = Op::rmsnorm;
    std::uint32_t hidden = 0;
    DType dtype = DType::bf16;
    DType weight_dtype = DType::bf16;
    std::uint32_t block_size = 16;
    ScaleFormat scale_format = ScaleFormat::e4m3;
    ScaleLayout scale_layout = ScaleLayout::linear;
    bool weight_bias_one = false;
    bool y_out = false;
    bool overlap = false;      // with the kernel before, where the target can
    bool device_rows = false;  // the device may hold the row count
    bool batches = false;      // x may lie in batches

    std::uint32_t blocks() const { return hidden / block_size; }  // scales a row
    bool adds() const { return op == Op::add_rmsnorm; }
    bool swizzled() const { return scale_layout != ScaleLayout::linear; }
    bool linear() const { return scale_layout != ScaleLayout::swizzled; }

    friend bool operator==(const Problem&, const Problem&) = default;
};

inline constexpr std::uint32_t kMaxHidden = 131072;
inline constexpr std::int64_t kMaxRows = 0x7fffffff;

const char* name(Op);
const char* name(DType);
const char* name(ScaleFormat);
const char* name(ScaleLayout);

// Checks every field, struct_size included. The message names the field, its value and what is accepted.
Result<Problem> problem_from_c(const nq_problem* problem);
nq_problem problem_to_c(const Problem& problem);

// "op=rmsnorm hidden=7168 dtype=bf16 weight=bf16 block=16 scale=e4m3 layout=linear bias=0 y_out=0"
std::string canonical_text(const Problem& problem);

// Byte sizes; the caller has checked 0 <= rows <= kMaxRows.
std::size_t fp4_bytes(const Problem& problem, std::int64_t rows);
std::size_t scale_bytes(const Problem& problem, std::int64_t rows);  // of the swizzled scales, where they are written

}  // namespace nq
