// What the host pays: preparing a kernel cold, warm and in memory, and a launch beside the driver's own call.
#pragma once

#include "bench_shapes.h"

namespace nq::cli {

// Microseconds. A ratio is the median of those of single rounds.
struct HostCosts {
    Spread cold_one, cold_one_compile;  // nq_prepare of one kernel with an empty cache, and NVRTC's part of it
    double cold_one_ratio = 0;
    Spread cold_all, slowest_compile;  // likewise of every variant, compiled at a time
    double cold_all_ratio = 0;
    std::size_t variants = 0;
    Spread warm;    // from the disk cache, by a new context
    Spread memory;  // once more in the same context

    Spread launch, raw_function;       // nq_launch, and cuLaunchKernelEx with what it asks for
    std::optional<Spread> raw_kernel;  // by CUkernel, where the driver tells which
    double launch_ratio = 0;           // to raw_function
    std::optional<double> launch_to_raw_kernel;
};

// Of one row.
Result<HostCosts> time_host(Device& device, const Nvrtc& nvrtc, const nq_problem& problem);

}  // namespace nq::cli
