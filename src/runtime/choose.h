// Which variant a launch uses: pure arithmetic on what the launch knows.
#pragma once

#include "plan/plan.h"

namespace nq {

// Measured by `normquant bench --threads N --variant latency` and `--variant split`, over rows from 1 to 16 a multiprocessor; in blocks or rows a multiprocessor.
struct Crossovers {
    std::int64_t split_blocks_times_2 = 5;  // up to 2.5: more blocks read their rows from L2 more often than there are multiprocessors to do it
    std::int64_t latency_rows = 6;          // up to here blocks that stay on their multiprocessor have too few rows to overlap
};
constexpr Crossovers kCrossovers;

// split_blocks: blocks a row of the split variant. aligned32: base and row stride of x, and the weight, are multiples of 32 bytes.
constexpr Variant choose_variant(std::int64_t rows, std::int64_t split_blocks, int multiprocessors, bool aligned32) {
    // Divided, not multiplied: rows may be any number.
    if (rows <= kCrossovers.split_blocks_times_2 * multiprocessors / (2 * split_blocks)) return Variant::split;
    if (rows <= kCrossovers.latency_rows * multiprocessors) return aligned32 ? Variant::latency_32b : Variant::latency;
    return aligned32 ? Variant::throughput_32b : Variant::throughput;
}

}  // namespace nq
