#include "bench_floor.h"

#include "jit/compile.h"
#include "problem/arch.h"

#include <fmt/core.h>

#include <utility>

namespace nq::cli {
namespace {

// Behind the constants kVectorsPerScale, kAdds and kYOut: loads of 16 bytes hold 8 elements.
constexpr const char* kSource = R"(
struct Tensors { void *x, *residual, *y, *fp4, *scales; };
template <u32 kVectors>
NQ_DEVICE void move(const Tensors& t, i64 vectors) {
    const i64 i = kVectors * (static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x);
    if (i >= vectors) return;
    u32 v[4 * kVectors], r[4 * kVectors], codes[kVectors];
    for (u32 n = 0; n < kVectors; ++n) load_128(v + 4 * n, byte_offset(t.x, 16 * (i + n)));
    for (u32 n = 0; kAdds && n < kVectors; ++n) load_written_128(r + 4 * n, byte_offset(t.residual, 16 * (i + n)));
    for (u32 n = 0; n < kVectors; ++n) {
        const u32* w = v + 4 * n;
        codes[n] = w[0] ^ w[1] ^ w[2] ^ w[3];
        if (kAdds) codes[n] ^= r[4 * n] ^ r[4 * n + 1] ^ r[4 * n + 2] ^ r[4 * n + 3];  // what is not used is not loaded
        if (kAdds) store_128(byte_offset(t.residual, 16 * (i + n)), w[0], w[1], w[2], w[3]);
        if (kYOut) store_128(byte_offset(t.y, 16 * (i + n)), w[0], w[1], w[2], w[3]);
    }
    if (kVectors == 1) store_32(byte_offset(t.fp4, 4 * i), codes[0]);
    else store_64(byte_offset(t.fp4, 4 * i), codes[0], codes[kVectors - 1]);
    if (i % kVectorsPerScale == 0) store_8(byte_offset(t.scales, i / kVectorsPerScale), v[0]);
}
extern "C" __global__ void floor_vector(const __grid_constant__ Tensors t, i64 vectors) { move<1>(t, vectors); }
extern "C" __global__ void floor_granule(const __grid_constant__ Tensors t, i64 vectors) { move<2>(t, vectors); }
extern "C" __global__ void empty() {}
)";

constexpr const char* kNames[] = {"floor_vector", "floor_granule", "empty"};
constexpr unsigned kBlockThreads = 256;

}  // namespace

Result<FloorKernels> FloorKernels::load(Device& device, const Nvrtc& nvrtc, const nq_problem& problem) {
    const auto arch = target_for(device.facts().capability, nvrtc.version, nvrtc.archs);
    if (!arch) return arch.error();
    const auto compiled = compile(nvrtc,
                                  fmt::format("#include <normquant/memory.cuh>\nusing namespace normquant;\n"
                                              "constexpr i64 kVectorsPerScale = {};\n"
                                              "constexpr bool kAdds = {}, kYOut = {};\n{}",
                                              problem.block_size / 8, problem.op == NQ_OP_ADD_RMSNORM,
                                              (problem.flags & NQ_PROBLEM_Y_OUT) != 0, kSource),
                                  *arch);
    if (!compiled) return compiled.error();
    const Driver& driver = *device.driver();
    FloorKernels floor(device);
    const CUresult loaded =
        driver.cuLibraryLoadData(&floor.library_, compiled->cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (const Outcome done = device.outcome(loaded, "loading the floor kernels"); !done) return done.error();
    for (std::size_t i = 0; i < std::size(kNames); ++i) {
        const CUresult found = driver.cuLibraryGetKernel(&floor.kernels_[i], floor.library_, kNames[i]);
        if (const Outcome done = device.outcome(found, fmt::format("loading {}", kNames[i])); !done)
            return done.error();
        CUfunction function = nullptr;  // makes the driver load the code before a capture
        const CUresult forced = driver.cuKernelGetFunction(&function, floor.kernels_[i]);
        if (const Outcome done = device.outcome(forced, fmt::format("loading {}", kNames[i])); !done)
            return done.error();
    }
    return floor;
}

FloorKernels::FloorKernels(FloorKernels&& other) noexcept
    : device_(other.device_), library_(std::exchange(other.library_, nullptr)) {
    std::copy(std::begin(other.kernels_), std::end(other.kernels_), kernels_);
}

FloorKernels::~FloorKernels() {
    if (library_ != nullptr) device_->driver()->cuLibraryUnload(library_);
}

Outcome FloorKernels::launch(FloorKernel which, FloorTensors tensors, std::int64_t elements) const {
    const auto index = static_cast<std::size_t>(which);
    std::int64_t vectors = elements / 8;
    const std::int64_t threads = which == FloorKernel::vector    ? vectors
                                 : which == FloorKernel::granule ? vectors / 2
                                                                 : 1;
    void* arguments[] = {&tensors, &vectors};
    CUlaunchConfig config = {};
    config.gridDimX = static_cast<unsigned>((threads + kBlockThreads - 1) / kBlockThreads);
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = which == FloorKernel::empty ? 1 : kBlockThreads;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = device_->stream();
    const CUresult launched =
        device_->driver()->cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernels_[index]),
                                            which == FloorKernel::empty ? nullptr : arguments, nullptr);
    return device_->outcome(launched, fmt::format("launching {}", kNames[index]));
}

}  // namespace nq::cli
