#include "bench_floor.h"

#include "jit/compile.h"
#include "problem/arch.h"

#include <fmt/core.h>

#include <utility>

namespace nq::cli {
namespace {

// Behind `constexpr i64 kVectorsPerScale`: loads of 16 bytes hold 8 elements.
constexpr const char* kSource = R"(
extern "C" __global__ void floor_vector(const void* __restrict__ x, void* __restrict__ fp4, void* __restrict__ scales, i64 vectors) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= vectors) return;
    u32 v[4];
    load_128(v, byte_offset(x, 16 * i));
    store_32(byte_offset(fp4, 4 * i), v[0] ^ v[1] ^ v[2] ^ v[3]);
    if (i % kVectorsPerScale == 0) store_8(byte_offset(scales, i / kVectorsPerScale), v[0]);
}
extern "C" __global__ void floor_granule(const void* __restrict__ x, void* __restrict__ fp4, void* __restrict__ scales, i64 vectors) {
    const i64 i = 2 * (static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x);
    if (i >= vectors) return;
    u32 v[8];
    load_128(v, byte_offset(x, 16 * i));
    load_128(v + 4, byte_offset(x, 16 * i + 16));
    store_64(byte_offset(fp4, 4 * i), v[0] ^ v[1] ^ v[2] ^ v[3], v[4] ^ v[5] ^ v[6] ^ v[7]);
    if (i % kVectorsPerScale == 0) store_8(byte_offset(scales, i / kVectorsPerScale), v[0]);
}
extern "C" __global__ void empty() {}
)";

constexpr const char* kNames[] = {"floor_vector", "floor_granule", "empty"};
constexpr unsigned kBlockThreads = 256;

}  // namespace

Result<FloorKernels> FloorKernels::load(Device& device, const Nvrtc& nvrtc, std::uint32_t block_size) {
    const auto arch = target_for(device.facts().capability, nvrtc.version, nvrtc.archs);
    if (!arch) return arch.error();
    const auto compiled = compile(nvrtc,
                                  fmt::format("#include <normquant/memory.cuh>\nusing namespace normquant;\n"
                                              "constexpr i64 kVectorsPerScale = {};\n{}",
                                              block_size / 8, kSource),
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

Outcome FloorKernels::launch(FloorKernel which, CUdeviceptr x, CUdeviceptr fp4, CUdeviceptr scales,
                             std::int64_t elements) const {
    const auto index = static_cast<std::size_t>(which);
    std::int64_t vectors = elements / 8;
    const std::int64_t threads = which == FloorKernel::vector    ? vectors
                                 : which == FloorKernel::granule ? vectors / 2
                                                                 : 1;
    void* arguments[] = {&x, &fp4, &scales, &vectors};
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
