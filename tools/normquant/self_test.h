// Does this device produce the reference's bytes? A dozen problems over every dtype, format and layout, on inputs with
// zeros, NaN, infinities, subnormals and outliers.
#pragma once

#include "execution.h"

namespace nq::cli {

struct SelfTestCase {
    std::string name;  // the problem in words
    bool passed = false;
    std::string message;  // "" or what went wrong
};

std::vector<SelfTestCase> self_test(Device& device, nq_context* context);

}  // namespace nq::cli
