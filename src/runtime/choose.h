// Which variant a launch uses: pure arithmetic on what the launch knows.
#pragma once

#include "plan/plan.h"

namespace nq {

// Measured on an H200, bf16 NVFP4 linear, by `normquant bench --threads N --variant latency` and `--variant split`: the split form at 1
// to 264 rows of 2048, 4096, 7168 and 8192, the others at 400 and 528 rows of 4096 and 7168 and at 400 and 792 of 2048.
constexpr std::int64_t kSplitBlocksOfTwo = 5;  // that two multiprocessors run faster than a block a row
constexpr std::int64_t kLatencyRows = 4;       // a multiprocessor: blocks that stay there have too few rows to overlap

// split_blocks: blocks a row of the split variant. aligned32: base and row stride of x, and the weight, are multiples of 32 bytes.
constexpr Variant choose_variant(std::int64_t rows, std::int64_t split_blocks, int multiprocessors, bool aligned32) {
    // Divided, not multiplied: rows may be any number.
    if (rows <= kSplitBlocksOfTwo * multiprocessors / (2 * split_blocks)) return Variant::split;
    if (rows <= kLatencyRows * multiprocessors) return aligned32 ? Variant::latency_32b : Variant::latency;
    return aligned32 ? Variant::throughput_32b : Variant::throughput;
}

}  // namespace nq
