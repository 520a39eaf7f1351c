#include "gpu/test_kernel.h"

#include "compile/find_nvrtc.h"
#include "jit/compile.h"

#include <stdexcept>

namespace nq::test {

TestKernel::TestKernel(const Gpu& gpu, const std::string& source) : gpu_(gpu) {
    const auto nvrtc = load_nvrtc(nvrtc_search());
    if (!nvrtc) throw std::runtime_error(nvrtc.error().message);
    const auto arch = target_for(gpu.capability(), (*nvrtc)->version, (*nvrtc)->archs);
    if (!arch) throw std::runtime_error(arch.error().message);
    const auto compiled = compile(**nvrtc, source, *arch);
    if (!compiled) throw std::runtime_error(compiled.error().message + compiled.error().detail);
    const Driver& driver = gpu.driver();
    gpu.check(driver.cuLibraryLoadData(&library_, compiled->cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "load");
    gpu.check(driver.cuLibraryGetKernel(&kernel_, library_, "test"), "cuLibraryGetKernel");
}

TestKernel::~TestKernel() { gpu_.driver().cuLibraryUnload(library_); }

void TestKernel::launch(unsigned blocks, unsigned threads, void** arguments) const {
    enqueue(blocks, threads, arguments, nullptr);
    gpu_.check(gpu_.cuCtxSynchronize(), "the kernel");
}

void TestKernel::enqueue(unsigned blocks, unsigned threads, void** arguments, CUstream stream) const {
    CUlaunchConfig config{};
    config.hStream = stream;
    config.gridDimX = blocks;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = threads;
    config.blockDimY = config.blockDimZ = 1;
    gpu_.check(gpu_.driver().cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernel_), arguments, nullptr), "launch");
}

}  // namespace nq::test
