// Which variant a launch uses: pure arithmetic on what the launch knows.
#pragma once

#include "plan/plan.h"

#include <normquant/geometry.h>

#include <algorithm>

namespace nq {

// The most rows for which a variant is the fastest; throughput is for those above.
struct RowLimits {
    std::int64_t split = 0, latency = 0;
};

// Measured on an H200, bf16 NVFP4, linear and swizzled, by `normquant bench --threads N --variant latency` beside the default: 16 to 128
// rows of 4096, 5120, 7168 and 8192 for the split form, 400 to 4224 rows of 512 to 16384 for the others. Layouts cross apart: where
// threads lack granules, linear rows lose up to 5 % (2880) shortly before the limit, and swizzled ones gain 8 to 13 %. Wider rows and
// other GPUs follow the same rule, unmeasured. The times are in tests/data/crossovers_h200.csv.
constexpr std::int64_t kSplitBlocksOfTwo = 3;    // for two multiprocessors, of blocks that each read the whole row
constexpr std::int64_t kClusterBlocksOfTwo = 5;  // of blocks that each read their part: not measured
constexpr std::int64_t kPlainRows = 4;           // a multiprocessor, where throughput is not staged or a residual added; else:
constexpr std::int64_t kFullRows = 24;           // where no thread of the latency plan lacks a granule
constexpr std::int64_t kPartRows = 16;           // where some do, by the share that is there
constexpr std::int64_t kTurnsOfFour = 7;         // four times the staged plan's turns, where threads have more than two granules

constexpr RowLimits row_limits(const Problem& problem, const Plan& split, const Plan& latency, const Plan& throughput,
                               int multiprocessors) {
    RowLimits limits;
    const std::int64_t blocks_of_two = split.cluster > 1 ? kClusterBlocksOfTwo : kSplitBlocksOfTwo;
    limits.split = blocks_of_two * multiprocessors / (2 * std::int64_t{split.blocks_per_row});
    limits.latency = kPlainRows * multiprocessors;
    if (throughput.form != Form::staged || problem.adds()) return limits;
    const std::uint32_t hidden = problem.hidden;
    const std::int64_t pieces = normquant::granules_per_thread(hidden, latency.threads_per_row), granules = hidden / normquant::kGranule;
    const std::int64_t room = latency.threads_per_row * pieces / (normquant::half_granules(hidden, latency.threads_per_row) ? 2 : 1);
    limits.latency = room == granules ? kFullRows * multiprocessors : kPartRows * multiprocessors * granules / room;
    if (pieces > 2) limits.latency = std::min(limits.latency, kTurnsOfFour * throughput.rows_per_block() * multiprocessors / 4);
    return limits;
}

// aligned32: base and row stride of x, and the weight, are multiples of 32 bytes.
constexpr Variant choose_variant(std::int64_t rows, const RowLimits& limits, bool aligned32) {
    if (rows <= limits.split) return Variant::split;
    if (rows <= limits.latency) return aligned32 ? Variant::latency_32b : Variant::latency;
    return aligned32 ? Variant::throughput_32b : Variant::throughput;
}

}  // namespace nq
