// A GPU for tests: the primary context of device 0, buffers with canaries, streams and graphs. exists() is false without a device.
#pragma once

#include "cuda/driver.h"
#include "runtime/choose.h"
#include "support/numerics.h"

#include <cuda.h>

#include <memory>
#include <stdexcept>
#include <string>

// What the library itself does not call.
#define NQ_TEST_DRIVER_FUNCTIONS(X)            \
    X(cuCtxSetCurrent, 4000)                   \
    X(cuCtxSynchronize, 2000)                  \
    X(cuCtxDestroy, 4000)                      \
    X(cuDevicePrimaryCtxReset, 11000)          \
    X(cuDevicePrimaryCtxGetState, 7000)        \
    X(cuMemGetInfo, 3020)                      \
    X(cuMemsetD8, 3020)                        \
    X(cuStreamBeginCapture, 10010)             \
    X(cuStreamEndCapture, 10000)               \
    X(cuStreamIsCapturing, 10000)              \
    X(cuGraphInstantiateWithFlags, 11040)      \
    X(cuGraphLaunch, 10000)                    \
    X(cuGraphExecDestroy, 10000)               \
    X(cuGraphDestroy, 10000)                   \
    X(cuGraphGetNodes, 10000)                  \
    X(cuGraphExecUpdate, 12000)                \
    X(cuGraphKernelNodeGetParams, 12000)       \
    X(cuGraphExecKernelNodeSetParams, 12000)

namespace nq::test {

class Gpu {
public:
    // nullptr when there is no driver or no device; `why` says which.
    static std::unique_ptr<Gpu> open(std::string& why);
    // Without a device the program ends as skipped, and says so.
    static std::unique_ptr<Gpu> open_or_skip();
    ~Gpu();
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;

    const Driver& driver() const { return *driver_; }
    CUdevice device() const { return device_; }
    CUcontext primary() const { return context_; }
    CUcontext create_context() const;  // and makes it current
    int attribute(CUdevice_attribute attribute) const;
    ComputeCapability capability() const;
    void check(CUresult result, const char* doing) const;

#define NQ_DECLARE(name, version) decltype(&::name) name = nullptr;
    NQ_TEST_DRIVER_FUNCTIONS(NQ_DECLARE)
#undef NQ_DECLARE

private:
    Gpu() = default;
    std::shared_ptr<const Driver> driver_;
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
    CUresult (*create_)(CUcontext*, unsigned, CUdevice) = nullptr;  // cuCtxCreate_v2: later ones take more
};

// How many rows the variants of a problem take there.
RowLimits row_limits_of(const Gpu& gpu, const Problem& problem);

// Device memory between two canaries of 4 KiB.
class DeviceBuffer {
public:
    DeviceBuffer(const Gpu& gpu, std::size_t bytes, std::size_t offset = 0);
    DeviceBuffer(const Gpu& gpu, const Bytes& bytes);
    ~DeviceBuffer();
    DeviceBuffer(const DeviceBuffer&) = delete;
    DeviceBuffer& operator=(const DeviceBuffer&) = delete;

    CUdeviceptr address() const { return base_ + kCanary + offset_; }
    void* data() const { return reinterpret_cast<void*>(address()); }
    void upload(const Bytes& bytes, std::size_t at = 0) const;
    void fill(unsigned char value) const;
    Bytes download() const { return download(0, bytes_); }
    Bytes download(std::size_t at, std::size_t bytes) const;
    bool canaries_intact() const;

private:
    static constexpr std::size_t kCanary = 4096;
    const Gpu& gpu_;
    CUdeviceptr base_ = 0;
    std::size_t bytes_, offset_;
};

}  // namespace nq::test
