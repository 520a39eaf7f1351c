// The real kernel source, run on the host for any plan and any target's instruction path.
#pragma once

#include "plan/plan.h"
#include "problem/problem.h"
#include "support/numerics.h"

#include <normquant/types.cuh>

#include <cstdint>

namespace nq::test {

struct EmulatedTarget {
    normquant::Fp4Path fp4_path = normquant::kFp4Packed;
    bool native_e4m3 = true;
    bool packed_f32 = false;
};

// Row gaps that a launch may have: elements of x and bytes of FP4 between the rows' ends and the next rows.
struct Gaps {
    std::int64_t x = 0;    // a multiple of 8
    std::int64_t fp4 = 0;  // a multiple of 8
};

// Buffers are exactly as large as the call may touch, gaps excluded at the end, so that ASan sees one byte beyond; outputs hold
// `garbage` before. Throws Divergence, and std::runtime_error when a gap of the FP4 buffer was written.
Outputs emulate(const Problem& problem, const Plan& plan, const EmulatedTarget& target, const Inputs& inputs,
                unsigned char garbage = 0xab, Gaps gaps = {}, bool keep_padding = false);

}  // namespace nq::test
