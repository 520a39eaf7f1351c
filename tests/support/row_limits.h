// How many rows of a problem the split and the latency variant take, as the library chooses.
#pragma once

#include "runtime/choose.h"

#include <algorithm>
#include <vector>

namespace nq::test {

inline RowLimits row_limits_of(const Problem& problem, const Arch& arch, int multiprocessors) {
    const std::vector<Plan> plans = plans_for(problem, arch);
    const auto plan = [&](Variant variant) {
        const auto found = std::find_if(plans.begin(), plans.end(), [&](const Plan& each) { return each.variant == variant; });
        return found != plans.end() ? *found : plans.at(1);  // the latency variant's stands in for split
    };
    return row_limits(problem, plan(Variant::split), plan(Variant::latency), plan(Variant::throughput), multiprocessors);
}

}  // namespace nq::test
