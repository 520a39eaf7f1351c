// What the output bytes mean: y' = code * scale / global_scale.
#pragma once

#include <normquant/normquant.h>

#include <cstdint>
#include <span>

namespace nq::cli {

// One row. `scales` is the whole buffer of the problem's layout; global_scale 1 when there was none.
void dequantize_row(const nq_problem& problem, std::int64_t row, const unsigned char* fp4_row,
                    const unsigned char* scales, double global_scale, std::span<double> out);

}  // namespace nq::cli
