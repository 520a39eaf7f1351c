// A test case that cannot run on this machine says why and returns: `return skip("not root");`. The program then ends
// with 77, unless a test failed. Such cases stand in a ctest entry of their own, lest they hide that the others ran.
#pragma once

#include "support/catch.h"

#include <atomic>
#include <string>

namespace nq::test {

inline std::atomic<int> skipped_cases{0};

inline void skip(const std::string& reason) {
    ++skipped_cases;
    WARN("SKIPPED: " << reason);
}

}  // namespace nq::test
