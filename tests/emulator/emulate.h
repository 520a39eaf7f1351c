// The real kernel source, run on the host for any plan and any target's instruction path.
#pragma once

#include "plan/plan.h"
#include "problem/problem.h"
#include "support/arrangement.h"
#include "support/numerics.h"

#include <normquant/types.cuh>

#include <cstdint>

namespace nq::test {

struct EmulatedTarget {
    normquant::Fp4Path fp4_path = normquant::kFp4Packed;
    bool native_e4m3 = true;
    bool packed_f32 = false;
};

constexpr std::uint32_t kMultiprocessors = 2;  // of the emulated device: few, so that a staged block takes several turns

// Buffers are exactly as large as the call may touch, gaps and rows behind the device's count excluded, with canaries and a sanitizer's
// guards around them; outputs hold `garbage` before. Where launches may overlap, inputs come into being when a block waits for them, for
// each block anew. Throws Divergence, and std::runtime_error when what is no output was written, or an output before that wait.
Outputs emulate(const Problem& problem, const Plan& plan, const EmulatedTarget& target, const Inputs& inputs, unsigned char garbage = 0xab,
                const Arrangement& arrangement = {});

}  // namespace nq::test
