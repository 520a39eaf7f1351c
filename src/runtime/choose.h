// Which variant a launch uses: pure arithmetic on what the launch knows.
#pragma once

#include "plan/plan.h"

namespace nq {

// Up to this many rows the device is not full, and spreading a row over more threads shortens the launch.
constexpr std::int64_t latency_rows(int multiprocessors) { return std::int64_t{2} * multiprocessors; }

// aligned32: base and row stride of x, and the weight, are multiples of 32 bytes.
constexpr Variant choose_variant(std::int64_t rows, int multiprocessors, bool aligned32) {
    if (rows <= latency_rows(multiprocessors)) return aligned32 ? Variant::latency_32b : Variant::latency;
    return aligned32 ? Variant::throughput_32b : Variant::throughput;
}

}  // namespace nq
