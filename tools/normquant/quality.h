// How well FP4 represents the normed rows: against the norm computed in double.
#pragma once

#include "execution.h"

namespace nq::cli {

struct Quality {
    double snr_db = 0;               // 10 log10(sum y^2 / sum (y - y')^2)
    double max_block_error = 0;      // largest |y - y'| over its block's largest |y|
    double zero_share = 0;           // of the codes
    std::int64_t rows_left_out = 0;  // rows with a NaN or infinity, which the figures leave out
};

Quality measure_quality(const Call& call, const Outputs& outputs);

// The encode scale that puts the tensor's largest |y| at the top of both formats: RN(448 * 6 / amax), amax being the
// largest |RN(p * rstd)|; 1 if that is 0 or not finite.
float automatic_global_scale(const Call& call, const std::vector<float>& rstd);

}  // namespace nq::cli
