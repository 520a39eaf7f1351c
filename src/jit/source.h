// The generated translation unit: the constants of one kernel, tied to the host's geometry by static_assert, and one include.
#pragma once

#include "plan/plan.h"
#include "problem/arch.h"
#include "problem/problem.h"

#include <string>

namespace nq {

inline constexpr const char* kKernelEntry = "normquant_kernel";

std::string render_source(const Problem& problem, const Plan& plan, const Arch& arch);

}  // namespace nq
