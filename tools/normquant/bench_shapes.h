// The device's times for one shape: the fused kernel beside what it is compared with, taking turns.
#pragma once

#include "bench_floor.h"
#include "bench_graph.h"

#include <normquant/normquant.h>

#include <optional>
#include <vector>

namespace nq::cli {

// Where a launch finds its rows: sets of tensors in turn, more than L2 holds, or one set again and again.
enum class InputsFrom { memory, l2 };
const char* name(InputsFrom);

// Up to this many rows are those of a decode step, which the kernel before it has just written.
inline constexpr std::int64_t kMostRowsInL2 = 64;

struct Spread {
    double median = 0, p10 = 0, p90 = 0;
};
Spread spread(std::vector<double> values);

struct ShapeQuery {
    nq_problem problem;  // of every candidate, but for the scale layout
    std::int64_t rows = 0;
    InputsFrom inputs = InputsFrom::memory;
    std::vector<std::uint32_t> layouts;
    std::vector<std::uint32_t> threads;  // a row; 0 for what normquant chooses
    bool overlap = false;                // each once more with launches that overlap
    std::uint32_t variant = NQ_VARIANT_THROUGHPUT, cluster = 0;  // of the others
    unsigned replays = 0;
};

// Bytes that a launch must read and write: all rows, weight, codes and scales once, without padding.
std::uint64_t moved_bytes(const nq_problem& problem, std::int64_t rows);

struct Candidate {
    std::uint32_t layout = NQ_LAYOUT_LINEAR;
    std::uint32_t threads = 0;
    bool overlap = false;
    KernelNode launch;
    Spread microseconds;
};

struct ShapeTimes {
    unsigned sets = 0;      // of tensors
    unsigned launches = 0;  // a replay
    std::uint64_t bytes = 0;
    FloorKernel best_floor = FloorKernel::vector;
    Spread floor, empty, copy;  // microseconds of a launch
    std::vector<Candidate> candidates;
};

// How many sets make launches read from memory; an error if that takes too many.
Result<unsigned> sets_for(const ShapeQuery& query, std::uint64_t l2_bytes);

Result<ShapeTimes> time_shape(Device& device, nq_context* context, const FloorKernels& floor, const ShapeQuery& query);

}  // namespace nq::cli
