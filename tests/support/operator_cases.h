// Everything that a launch may ask for beyond the plain operator, in combinations.
#pragma once

#include "plan/plan.h"
#include "support/arrangement.h"

#include <string>
#include <vector>

namespace nq::test {

struct OperatorCase {
    Problem problem;
    Arrangement arrangement;
    Inputs inputs;
    std::string text;  // for people
};

// Which of several values a factor takes: (how many values each has) -> rows in which every pair of values of two factors occurs.
std::vector<std::vector<unsigned>> pairwise(const std::vector<unsigned>& values);
std::vector<std::vector<unsigned>> every_combination(const std::vector<unsigned>& values);

// The residual, y_out, layouts, weights, bias, strides, overlap and the row count of the device.
const std::vector<unsigned>& operator_factors();
// `choice`: a row of the above. Types, blocks, formats and values come from the seed.
OperatorCase operator_case(std::uint32_t hidden, std::int64_t rows, const std::vector<unsigned>& choice, std::uint64_t seed);

// What the reference writes, and `garbage` where nothing is to be written.
Outputs expected_outputs(const OperatorCase& test, unsigned threads, unsigned char garbage);

// Does a launch write swizzled scales by fours of rows (staged.cuh)? It takes many.
bool scales_by_fours(const OperatorCase& test, const Plan& plan, std::uint32_t multiprocessors);

}  // namespace nq::test
