// The golden vectors of tests/data/golden, whose format is described there.
#pragma once

#include "support/numerics.h"

#include <string>
#include <vector>

namespace nq::test {

struct GoldenCase {
    std::string name;
    Problem problem;
    Inputs inputs;
    Outputs expected;  // NaNs in sum_of_squares and rstd may have any sign and payload: compare with same_floats
};

// File names without extension, in order.
std::vector<std::string> golden_names();
// Throws std::runtime_error when a file is missing or malformed.
GoldenCase load_golden(const std::string& name);

}  // namespace nq::test
