// Launches that follow each other in a CUDA graph, timed as a whole: what the device takes, without the host's calls.
#pragma once

#include "device.h"

#include <array>
#include <functional>

namespace nq::cli {

// A kernel launch as the driver was asked for it.
struct KernelNode {
    CUfunction function = nullptr;
    CUkernel kernel = nullptr;  // nullptr when the driver tells of the function alone
    std::array<unsigned, 3> grid{}, cluster{1, 1, 1};
    unsigned block_threads = 0, shared_bytes = 0;
    void** arguments = nullptr;  // the graph's own copy
};

class TimedGraph {
public:
    // launch(i) puts the i-th of `launches` into the device's stream, as one node.
    static Result<TimedGraph> capture(Device& device, unsigned launches,
                                      const std::function<Outcome(unsigned)>& launch);
    TimedGraph(TimedGraph&& other) noexcept;
    TimedGraph& operator=(TimedGraph&&) = delete;
    ~TimedGraph();

    Outcome enqueue();              // one replay
    Result<double> microseconds();  // of one launch in the last replay, for which it waits
    // One of its launches, if they are kernels.
    Result<KernelNode> kernel_node() const;

private:
    TimedGraph(Device& device, Timer timer, unsigned launches)
        : device_(&device), timer_(std::move(timer)), launches_(launches) {}

    Device* device_;
    Timer timer_;
    unsigned launches_;
    CUgraph graph_ = nullptr;
    CUgraphExec exec_ = nullptr;
};

}  // namespace nq::cli
