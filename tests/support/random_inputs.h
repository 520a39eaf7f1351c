// Deterministic inputs that reach the corners: ordinary rows, outliers, zeros, ties, subnormals, random bits with NaN and Inf.
#pragma once

#include "support/numerics.h"

#include <cstdint>

namespace nq::test {

enum class Distribution { normal, outliers, zeros, ties, subnormals, random_bits, nan_inf };
inline constexpr Distribution kDistributions[] = {Distribution::normal,     Distribution::outliers,    Distribution::zeros,
                                                  Distribution::ties,       Distribution::subnormals,  Distribution::random_bits,
                                                  Distribution::nan_inf};
const char* name(Distribution distribution);

// Rows of one distribution; the weight is ordinary, or random bits with Distribution::random_bits.
Inputs random_inputs(const Problem& problem, std::int64_t rows, Distribution distribution, std::uint64_t seed);

}  // namespace nq::test
