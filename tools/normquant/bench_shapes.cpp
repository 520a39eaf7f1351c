#include "bench_shapes.h"

#include "errors.h"
#include "random_values.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace nq::cli {
namespace {

constexpr std::uint64_t kL2Sizes = 4;       // so many times what L2 holds lies between two uses of a set
constexpr std::uint64_t kMostSets = 16384;  // each is a launch in a graph
constexpr std::uint64_t kReplayBytes = 4ull
                                       << 30;  // about a millisecond, in which the start of a replay does not count
constexpr std::uint64_t kLeastLaunches = 8, kMostLaunches = 1000;
constexpr unsigned kWarmUpReplays = 3;
constexpr std::int64_t kDistinctRows = 64;

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

std::vector<unsigned char> random_tensor(std::size_t elements, float mean, std::uint32_t dtype, Random& random) {
    std::vector<float> values(elements);
    // Near enough to normal: real rows toggle as many bits.
    for (float& value : values) value = mean + random.uniform() + random.uniform() + random.uniform();
    return encode(values, dtype);
}

// As many tensors of one kind as there are sets, in one allocation.
class Sets {
public:
    static Result<Sets> allocate(Device& device, unsigned sets, std::uint64_t bytes) {
        const std::uint64_t stride = round_up(bytes, 512);
        auto buffer = device.allocate(sets * stride);
        if (!buffer) return buffer.error();
        return Sets(std::move(*buffer), sets, stride);
    }

    CUdeviceptr operator[](unsigned set) const { return buffer_.address() + set * stride_; }
    std::uint64_t bytes() const { return sets_ * stride_; }

private:
    Sets(DeviceBuffer buffer, unsigned sets, std::uint64_t stride)
        : buffer_(std::move(buffer)), sets_(sets), stride_(stride) {}

    DeviceBuffer buffer_;
    std::uint64_t sets_, stride_;
};

// Repeats `pattern` over all of it. Zeros would take less power, and so less time, than rows do.
Outcome fill(Device& device, const Sets& sets, const std::vector<unsigned char>& pattern) {
    std::uint64_t filled = std::min<std::uint64_t>(pattern.size(), sets.bytes());
    const Driver& driver = *device.driver();
    const CUresult begun = driver.cuMemcpyHtoD(sets[0], pattern.data(), filled);
    if (Outcome done = device.outcome(begun, "filling the inputs"); !done) return done;
    while (filled < sets.bytes()) {
        const std::uint64_t more = std::min(filled, sets.bytes() - filled);
        const CUresult copied = driver.cuMemcpyDtoDAsync(sets[0] + filled, sets[0], more, nullptr);
        if (Outcome done = device.outcome(copied, "filling the inputs"); !done) return done;
        filled += more;
    }
    return device.outcome(driver.cuStreamSynchronize(nullptr), "filling the inputs");
}

bool adds(const nq_problem& problem) { return problem.op == NQ_OP_ADD_RMSNORM; }
bool writes_y(const nq_problem& problem) { return (problem.flags & NQ_PROBLEM_Y_OUT) != 0; }

std::size_t bytes_of(nq_status (*query)(const nq_problem*, std::int64_t, std::size_t*), const nq_problem& problem,
                     std::int64_t rows) {
    std::size_t bytes = 0;
    return query(&problem, rows, &bytes) == NQ_OK ? bytes : 0;  // the problem has been checked
}

// All of them once a round, each first in turn, so that neither drift nor the neighbour favours one. Microseconds by
// graph.
Result<std::vector<Spread>> take_turns(std::vector<TimedGraph>& graphs, TimedGraph& before, unsigned replays) {
    std::vector<std::vector<double>> times(graphs.size());
    for (unsigned round = 0; round < kWarmUpReplays + replays; ++round) {
        // While this one runs, the host enqueues the others: their replays start at once.
        if (const Outcome done = before.enqueue(); !done) return done.error();
        for (std::size_t i = 0; i < graphs.size(); ++i) {
            if (const Outcome done = graphs[(round + i) % graphs.size()].enqueue(); !done) return done.error();
        }
        for (std::size_t i = 0; i < graphs.size(); ++i) {
            const auto time = graphs[i].microseconds();
            if (!time) return time.error();
            if (round >= kWarmUpReplays) times[i].push_back(*time);
        }
    }
    std::vector<Spread> spreads;
    for (std::vector<double>& graph : times) spreads.push_back(spread(std::move(graph)));
    return spreads;
}

}  // namespace

const char* name(InputsFrom inputs) { return inputs == InputsFrom::memory ? "memory" : "l2"; }

Spread spread(std::vector<double> values) {
    std::ranges::sort(values);
    const auto at = [&](double part) {
        return values[static_cast<std::size_t>(std::lround(part * static_cast<double>(values.size() - 1)))];
    };
    return {at(0.5), at(0.1), at(0.9)};
}

std::uint64_t moved_bytes(const nq_problem& problem, std::int64_t rows) {
    const std::uint64_t elements = static_cast<std::uint64_t>(rows) * problem.hidden;
    const std::uint64_t weight = std::uint64_t{problem.hidden} * (problem.weight_dtype == NQ_FP32 ? 4 : 2);
    const std::uint64_t rows_of_16_bits = 1 + (adds(problem) ? 2 : 0) + (writes_y(problem) ? 1 : 0);
    return 2 * rows_of_16_bits * elements + weight + elements / 2 + elements / problem.block_size;
}

Result<unsigned> sets_for(const ShapeQuery& query, std::uint64_t l2_bytes) {
    const std::uint64_t bytes = moved_bytes(query.problem, query.rows);
    if (query.inputs == InputsFrom::l2) {
        if (2 * bytes <= l2_bytes) return 1u;
        return usage_error(fmt::format("--inputs l2: {}x{} moves {} bytes, which half of L2 ({} bytes) does not hold",
                                       query.problem.hidden, query.rows, bytes, l2_bytes));
    }
    const std::uint64_t sets = std::max<std::uint64_t>(2, (kL2Sizes * l2_bytes + bytes - 1) / bytes);
    if (sets <= kMostSets) return static_cast<unsigned>(sets);
    return usage_error(fmt::format(
        "--inputs memory: {}x{} moves {} bytes, too few for launches that rotate through {} times L2; accepted "
        "are shapes of {} bytes or more",
        query.problem.hidden, query.rows, bytes, kL2Sizes, kL2Sizes * l2_bytes / kMostSets));
}

Result<ShapeTimes> time_shape(Device& device, nq_context* context, const FloorKernels& floor, const ShapeQuery& query) {
    const nq_problem& problem = query.problem;
    const auto sets = sets_for(query, static_cast<std::uint64_t>(device.facts().l2_bytes));
    if (!sets) return sets.error();
    ShapeTimes result;
    result.sets = *sets;
    result.bytes = moved_bytes(problem, query.rows);
    result.launches =
        static_cast<unsigned>(round_up(std::clamp(kReplayBytes / result.bytes, kLeastLaunches, kMostLaunches), *sets));
    const std::int64_t elements = query.rows * problem.hidden;

    // Kernels first: a bad plan override ends this before memory is taken.
    for (const std::uint32_t layout : query.layouts) {
        for (const std::uint32_t threads : query.threads) {
            for (const bool overlap : {false, true}) {
                if (!overlap || query.overlap) result.candidates.push_back({layout, threads, overlap, {}, {}});
            }
        }
    }
    std::vector<const nq_kernel*> kernels;
    std::size_t scale_bytes = 0;
    for (const Candidate& candidate : result.candidates) {
        nq_problem asked = problem;
        asked.scale_layout = candidate.layout;
        if (candidate.overlap) asked.flags |= NQ_PROBLEM_OVERLAP;
        nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
        options.stream = device.stream();
        options.threads_per_row = candidate.threads;
        if (candidate.threads != 0) {
            options.variant = query.variant;
            options.cluster_size = query.cluster;
        }
        nq_kernel* kernel = nullptr;
        if (const Outcome prepared = check(nq_prepare(context, &asked, &options, &kernel)); !prepared)
            return prepared.error();
        kernels.push_back(kernel);
        scale_bytes = std::max(scale_bytes, bytes_of(nq_scale_bytes, asked, query.rows));
    }

    const auto x = Sets::allocate(device, *sets, static_cast<std::uint64_t>(elements) * 2);
    if (!x) return x.error();
    const auto fp4 = Sets::allocate(device, *sets, bytes_of(nq_fp4_bytes, problem, query.rows));
    if (!fp4) return fp4.error();
    const auto scales = Sets::allocate(device, *sets, scale_bytes);
    if (!scales) return scales.error();
    const std::uint64_t row_bytes = static_cast<std::uint64_t>(elements) * 2, linear_bytes = static_cast<std::uint64_t>(elements) / problem.block_size;
    const auto residual = Sets::allocate(device, *sets, adds(problem) ? row_bytes : 1);
    if (!residual) return residual.error();
    const auto y = Sets::allocate(device, *sets, writes_y(problem) ? row_bytes : 1);
    if (!y) return y.error();
    const bool both = std::ranges::count(query.layouts, std::uint32_t{NQ_LAYOUT_BOTH}) != 0;
    const auto scales_linear = Sets::allocate(device, *sets, both ? linear_bytes : 1);
    if (!scales_linear) return scales_linear.error();
    // A copy reads one half of what is to be moved, and writes the other.
    const std::uint64_t half = result.bytes / 2, second_half = round_up(half, 512);
    const auto copies = Sets::allocate(device, *sets, second_half + half);
    if (!copies) return copies.error();
    Random random(2688);
    const auto distinct = static_cast<std::size_t>(std::min(query.rows, kDistinctRows)) * problem.hidden;
    const std::vector<unsigned char> rows = random_tensor(distinct, 0, problem.dtype, random);
    for (const Sets* filled : {&*x, &*residual, &*copies}) {
        if (const Outcome done = fill(device, *filled, rows); !done) return done.error();
    }
    const auto weight = device.upload(random_tensor(problem.hidden, 1, problem.weight_dtype, random));
    if (!weight) return weight.error();

    std::vector<TimedGraph> graphs;
    const auto capture = [&](const std::function<Outcome(unsigned)>& launch) -> Outcome {
        auto graph = TimedGraph::capture(device, result.launches, launch);
        if (!graph) return graph.error();
        graphs.push_back(std::move(*graph));
        return Unit{};
    };
    for (const FloorKernel which : {FloorKernel::vector, FloorKernel::granule, FloorKernel::empty}) {
        const Outcome captured = capture([&](unsigned i) {
            const unsigned set = i % *sets;
            return floor.launch(which, {(*x)[set], (*residual)[set], (*y)[set], (*fp4)[set], (*scales)[set]}, elements);
        });
        if (!captured) return captured.error();
    }
    const Outcome copied = capture([&](unsigned i) {
        const CUdeviceptr from = (*copies)[i % *sets];
        const CUresult enqueued = device.driver()->cuMemcpyDtoDAsync(from + second_half, from, half, device.stream());
        return device.outcome(enqueued, "copying");
    });
    if (!copied) return copied.error();
    for (std::size_t c = 0; c < kernels.size(); ++c) {
        const Outcome captured = capture([&](unsigned i) {
            const unsigned set = i % *sets;
            nq_tensors tensors = NQ_TENSORS_INIT;
            tensors.rows = query.rows;
            tensors.x = reinterpret_cast<const void*>((*x)[set]);
            tensors.weight = weight->pointer();
            tensors.fp4 = reinterpret_cast<void*>((*fp4)[set]);
            tensors.scales = reinterpret_cast<void*>((*scales)[set]);
            if (adds(problem)) tensors.residual = reinterpret_cast<void*>((*residual)[set]);
            if (writes_y(problem)) tensors.y_out = reinterpret_cast<void*>((*y)[set]);
            if (result.candidates[c].layout == NQ_LAYOUT_BOTH) tensors.scales_linear = reinterpret_cast<void*>((*scales_linear)[set]);
            if (result.candidates[c].overlap) tensors.flags |= NQ_TENSORS_CONSTANT_WEIGHT;
            return check(nq_launch(kernels[c], &tensors, device.stream()));
        });
        if (!captured) return captured.error();
        const auto node = graphs.back().kernel_node();
        if (!node) return node.error();
        result.candidates[c].launch = *node;
        result.candidates[c].launch.arguments = nullptr;  // the graph's, which ends here
    }
    auto before = TimedGraph::capture(device, kMostLaunches,
                                      [&](unsigned) { return floor.launch(FloorKernel::empty, {}, 0); });
    if (!before) return before.error();

    const auto times = take_turns(graphs, *before, query.replays);
    if (!times) return times.error();
    result.best_floor = (*times)[0].median <= (*times)[1].median ? FloorKernel::vector : FloorKernel::granule;
    result.floor = (*times)[result.best_floor == FloorKernel::vector ? 0 : 1];
    result.empty = (*times)[2];
    result.copy = (*times)[3];
    for (std::size_t c = 0; c < kernels.size(); ++c) result.candidates[c].microseconds = (*times)[4 + c];
    return result;
}

}  // namespace nq::cli
