#include "bench_graph.h"

#include "errors.h"

#include <utility>

namespace nq::cli {

Result<TimedGraph> TimedGraph::capture(Device& device, unsigned launches,
                                       const std::function<Outcome(unsigned)>& launch) {
    const Driver& driver = *device.driver();
    auto timer = device.timer();
    if (!timer) return timer.error();
    TimedGraph graph(device, std::move(*timer), launches);
    const CUresult begun = driver.cuStreamBeginCapture(device.stream(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    if (const Outcome done = device.outcome(begun, "capturing launches"); !done) return done.error();
    Outcome launched = Unit{};
    for (unsigned i = 0; i < launches && launched; ++i) launched = launch(i);
    const CUresult ended = driver.cuStreamEndCapture(device.stream(), &graph.graph_);
    if (!launched) return launched.error();
    if (const Outcome done = device.outcome(ended, "capturing launches"); !done) return done.error();
    const CUresult made = driver.cuGraphInstantiateWithFlags(&graph.exec_, graph.graph_, 0);
    if (const Outcome done = device.outcome(made, "making a graph of launches"); !done) return done.error();
    return graph;
}

TimedGraph::TimedGraph(TimedGraph&& other) noexcept
    : device_(other.device_),
      timer_(std::move(other.timer_)),
      launches_(other.launches_),
      graph_(std::exchange(other.graph_, nullptr)),
      exec_(std::exchange(other.exec_, nullptr)) {}

TimedGraph::~TimedGraph() {
    if (exec_ != nullptr) device_->driver()->cuGraphExecDestroy(exec_);
    if (graph_ != nullptr) device_->driver()->cuGraphDestroy(graph_);
}

Outcome TimedGraph::enqueue() {
    if (Outcome started = timer_.start(); !started) return started;
    const CUresult launched = device_->driver()->cuGraphLaunch(exec_, device_->stream());
    if (Outcome done = device_->outcome(launched, "launching a graph"); !done) return done;
    return timer_.finish();
}

Result<double> TimedGraph::microseconds() {
    const auto seconds = timer_.seconds();
    if (!seconds) return seconds.error();
    return *seconds * 1e6 / launches_;
}

Result<KernelNode> TimedGraph::kernel_node() const {
    const Driver& driver = *device_->driver();
    CUgraphNode node = nullptr;
    std::size_t count = 1;
    const Outcome listed = device_->outcome(driver.cuGraphGetNodes(graph_, &node, &count), "listing a graph");
    if (!listed) return listed.error();
    CUDA_KERNEL_NODE_PARAMS params = {};
    const Outcome read = device_->outcome(driver.cuGraphKernelNodeGetParams(node, &params), "reading a graph's launch");
    if (!read) return read.error();
    KernelNode kernel;
    kernel.function = params.func;
    kernel.kernel = params.kern;
    kernel.grid = {params.gridDimX, params.gridDimY, params.gridDimZ};
    kernel.block_threads = params.blockDimX;
    kernel.shared_bytes = params.sharedMemBytes;
    kernel.arguments = params.kernelParams;
    if (kernel.function == nullptr) {
        const Outcome found =
            device_->outcome(driver.cuKernelGetFunction(&kernel.function, params.kern), "reading a graph's launch");
        if (!found) return found.error();
    }
    // All zero, or refused, where the launch asked for none.
    CUlaunchAttributeValue value = {};
    const CUresult asked = driver.cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value);
    if (asked == CUDA_SUCCESS && value.clusterDim.x != 0)
        kernel.cluster = {value.clusterDim.x, value.clusterDim.y, value.clusterDim.z};
    return kernel;
}

}  // namespace nq::cli
