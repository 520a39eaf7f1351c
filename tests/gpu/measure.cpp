// measure HxM ... : time of the fused kernel as a ratio to a floor kernel (reads x, writes the output bytes, no arithmetic) of the
// same run, bf16 NVFP4. The first line of a shape is what nq_launch chooses, the others are thread counts forced by the plan override.
// Times are medians over graph replays. Inputs of a large shape rotate through more memory than L2 holds; a small one stays in L2.
#include "gpu/gpu.h"

#include "jit/compile.h"
#include "support/random_inputs.h"

#include <normquant/geometry.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

using namespace nq;
using namespace nq::test;

namespace {

constexpr const char* kFloorSource = R"(#include <normquant/memory.cuh>
using namespace normquant;
// One 128-bit load a thread; pairs of threads share a scale byte.
extern "C" __global__ void floor_vector(const void* __restrict__ x, void* __restrict__ fp4, void* __restrict__ scales, i64 vectors) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= vectors) return;
    u32 v[4];
    load_128(v, byte_offset(x, 16 * i));
    store_32(byte_offset(fp4, 4 * i), v[0] ^ v[1] ^ v[2] ^ v[3]);
    if (i % 2 == 0) store_8(byte_offset(scales, i / 2), v[0]);
}
// A granule a thread.
extern "C" __global__ void floor_granule(const void* __restrict__ x, void* __restrict__ fp4, void* __restrict__ scales, i64 vectors) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= vectors / 2) return;
    u32 v[8];
    load_128(v, byte_offset(x, 32 * i));
    load_128(v + 4, byte_offset(x, 32 * i + 16));
    store_64(byte_offset(fp4, 8 * i), v[0] ^ v[1] ^ v[2] ^ v[3], v[4] ^ v[5] ^ v[6] ^ v[7]);
    store_8(byte_offset(scales, i), v[0]);
}
extern "C" __global__ void empty() {}
)";

// Median microseconds of one of `count` launches in a graph.
double time_graph(const Gpu& gpu, int count, const std::function<void(int, CUstream)>& launch) {
    const Driver& driver = gpu.driver();
    CUstream stream;
    gpu.check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    gpu.check(gpu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    for (int i = 0; i < count; ++i) launch(i, stream);
    CUgraph graph;
    CUgraphExec exec;
    gpu.check(gpu.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    gpu.check(gpu.cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiate");
    CUevent start, stop;
    gpu.check(driver.cuEventCreate(&start, 0), "cuEventCreate");
    gpu.check(driver.cuEventCreate(&stop, 0), "cuEventCreate");
    std::vector<double> times;
    for (int replay = 0; replay < 13; ++replay) {
        gpu.check(driver.cuEventRecord(start, stream), "cuEventRecord");
        gpu.check(gpu.cuGraphLaunch(exec, stream), "cuGraphLaunch");
        gpu.check(driver.cuEventRecord(stop, stream), "cuEventRecord");
        gpu.check(driver.cuEventSynchronize(stop), "cuEventSynchronize");
        float ms = 0;
        gpu.check(driver.cuEventElapsedTime(&ms, start, stop), "cuEventElapsedTime");
        if (replay >= 3) times.push_back(1000.0 * static_cast<double>(ms) / count);
    }
    driver.cuEventDestroy(start);
    driver.cuEventDestroy(stop);
    gpu.cuGraphExecDestroy(exec);
    gpu.cuGraphDestroy(graph);
    driver.cuStreamDestroy(stream);
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
}

void require(nq_status status) {
    if (status != NQ_OK) throw std::runtime_error(std::string(nq_last_error()) + nq_last_error_detail());
}

struct Floor {
    CUkernel vector, granule, empty;
};

Floor load_floor(const Gpu& gpu) {
    const auto nvrtc = load_nvrtc({});
    if (!nvrtc) throw std::runtime_error(nvrtc.error().message);
    const auto compiled = compile(**nvrtc, kFloorSource, *target_for(gpu.capability(), (*nvrtc)->version, (*nvrtc)->archs));
    if (!compiled) throw std::runtime_error(compiled.error().message + compiled.error().detail);
    CUlibrary library;
    gpu.check(gpu.driver().cuLibraryLoadData(&library, compiled->cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "load");
    Floor floor{};
    gpu.check(gpu.driver().cuLibraryGetKernel(&floor.vector, library, "floor_vector"), "floor_vector");
    gpu.check(gpu.driver().cuLibraryGetKernel(&floor.granule, library, "floor_granule"), "floor_granule");
    gpu.check(gpu.driver().cuLibraryGetKernel(&floor.empty, library, "empty"), "empty");
    return floor;
}

void launch_raw(const Gpu& gpu, CUkernel kernel, std::int64_t threads, void** arguments, CUstream stream) {
    CUlaunchConfig config{};
    config.gridDimX = static_cast<unsigned>((threads + 255) / 256);
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 256;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream;
    gpu.check(gpu.driver().cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernel), arguments, nullptr), "launch");
}

void measure(const Gpu& gpu, const Floor& floor, nq_context* context, std::uint32_t hidden, std::int64_t rows, ScaleLayout layout) {
    Problem problem;
    problem.hidden = hidden;
    problem.scale_layout = layout;
    const std::size_t x_bytes = static_cast<std::size_t>(rows) * hidden * 2;
    const bool large = x_bytes > (std::size_t{16} << 20);
    const int sets = large ? static_cast<int>(std::max<std::size_t>(2, (std::size_t{256} << 20) / x_bytes + 1)) : 1;
    const int count = large ? 2 * sets : 200;

    // One set of rows of real shape, repeated: the values do not matter for speed, but they must not be zeros.
    const Inputs inputs = random_inputs(problem, std::min<std::int64_t>(rows, 64), Distribution::normal, 1);
    std::vector<std::unique_ptr<DeviceBuffer>> x, fp4, scales;
    for (int s = 0; s < sets; ++s) {
        x.push_back(std::make_unique<DeviceBuffer>(gpu, x_bytes));
        for (std::size_t at = 0; at < x_bytes; at += inputs.x.size()) {
            Bytes part(inputs.x.begin(), inputs.x.begin() + static_cast<std::ptrdiff_t>(std::min(inputs.x.size(), x_bytes - at)));
            if (at == 0 || part.size() < inputs.x.size()) x.back()->upload(part, at);
            else gpu.check(gpu.cuMemcpyDtoD(x.back()->address() + at, x.back()->address(), part.size()), "cuMemcpyDtoD");
        }
        fp4.push_back(std::make_unique<DeviceBuffer>(gpu, fp4_bytes(problem, rows)));
        scales.push_back(std::make_unique<DeviceBuffer>(gpu, scale_bytes(problem, rows)));
    }
    const DeviceBuffer weight(gpu, inputs.weight);
    gpu.check(gpu.cuCtxSynchronize(), "setup");

    const auto time_floor = [&](CUkernel kernel, std::int64_t threads) {
        return time_graph(gpu, count, [&](int i, CUstream stream) {
            const auto s = static_cast<std::size_t>(i % sets);
            CUdeviceptr in = x[s]->address(), out = fp4[s]->address(), sf = scales[s]->address();
            std::int64_t vectors = rows * hidden / 8;
            void* arguments[] = {&in, &out, &sf, &vectors};
            launch_raw(gpu, kernel, threads, arguments, stream);
        });
    };
    const double best = std::min(time_floor(floor.vector, rows * hidden / 8), time_floor(floor.granule, rows * hidden / 16));
    const double bytes = static_cast<double>(x_bytes) + static_cast<double>(fp4_bytes(problem, rows) + scale_bytes(problem, rows));
    std::printf("H %u M %lld %s: floor %.2f us, %.2f TB/s%s\n", hidden, static_cast<long long>(rows), name(layout), best,
                bytes / best * 1e-6, large ? "" : " (in L2)");

    const auto time_kernel = [&](std::uint32_t threads) {
        nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
        options.threads_per_row = threads;
        nq_kernel* kernel = nullptr;
        const nq_problem c = problem_to_c(problem);
        require(nq_prepare(context, &c, &options, &kernel));
        const double us = time_graph(gpu, count, [&](int i, CUstream stream) {
            const auto s = static_cast<std::size_t>(i % sets);
            nq_tensors tensors = NQ_TENSORS_INIT;
            tensors.rows = rows;
            tensors.x = x[s]->data();
            tensors.weight = weight.data();
            tensors.fp4 = fp4[s]->data();
            tensors.scales = scales[s]->data();
            require(nq_launch(kernel, &tensors, stream));
        });
        std::printf("  %s%4u threads a row: %8.2f us, %.2f of the floor\n", threads ? "      " : "chosen", threads, us, best / us);
    };
    time_kernel(0);
    for (std::uint32_t n = 1; n <= 1024; n *= 2) {
        if (normquant::threads_per_row_valid(hidden, n)) time_kernel(n);
    }
}

}  // namespace

int main(int argc, char** argv) {
    std::string why;
    const auto gpu = Gpu::open(why);
    if (!gpu) {
        std::printf("skipped: no GPU here (%s)\n", why.c_str());
        return 77;
    }
    nq_context_options options = NQ_CONTEXT_OPTIONS_INIT;
    options.cache_dir = "";
    nq_context* context = nullptr;
    require(nq_context_create(&options, &context));
    const Floor floor = load_floor(*gpu);
    std::printf("empty kernel in a graph: %.2f us\n",
                time_graph(*gpu, 200, [&](int, CUstream stream) { launch_raw(*gpu, floor.empty, 1, nullptr, stream); }));
    for (int i = 1; i < argc; ++i) {
        unsigned hidden = 0;
        long long rows = 0;
        char swizzled = 0;
        if (std::sscanf(argv[i], "%ux%lld%c", &hidden, &rows, &swizzled) < 2 || (swizzled && swizzled != 's')) {
            std::printf("'%s' is not a shape; give HxM, or HxMs for swizzled scales\n", argv[i]);
            return 2;
        }
        measure(*gpu, floor, context, hidden, rows, swizzled ? ScaleLayout::swizzled : ScaleLayout::linear);
    }
    nq_context_destroy(context);
    return 0;
}
