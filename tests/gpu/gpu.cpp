#include "gpu/gpu.h"

#include "support/row_limits.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace nq::test {

std::unique_ptr<Gpu> Gpu::open(std::string& why) {
    auto driver = load_driver("");
    if (!driver) {
        why = driver.error().message;
        return nullptr;
    }
    std::unique_ptr<Gpu> gpu(new Gpu);
    gpu->driver_ = *driver;
    int count = 0;
    if (gpu->driver_->cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0) {
        why = "the driver reports no device";
        return nullptr;
    }
    void* library = dlopen(gpu->driver_->path.empty() ? "libcuda.so.1" : gpu->driver_->path.c_str(), RTLD_NOW);
    const auto get = library ? reinterpret_cast<decltype(&::cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2")) : nullptr;
    if (!get) throw std::runtime_error("cuGetProcAddress_v2 not found");
#define NQ_LOAD(name, version)                                                                                      \
    gpu->check(get(#name, reinterpret_cast<void**>(&gpu->name), version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr), #name);
    NQ_TEST_DRIVER_FUNCTIONS(NQ_LOAD)
#undef NQ_LOAD
    gpu->check(get("cuCtxCreate", reinterpret_cast<void**>(&gpu->create_), 3020, CU_GET_PROC_ADDRESS_DEFAULT, nullptr), "cuCtxCreate");
    gpu->check(gpu->driver_->cuDeviceGet(&gpu->device_, 0), "cuDeviceGet");
    gpu->check(gpu->driver_->cuDevicePrimaryCtxRetain(&gpu->context_, gpu->device_), "cuDevicePrimaryCtxRetain");
    gpu->check(gpu->cuCtxSetCurrent(gpu->context_), "cuCtxSetCurrent");
    return gpu;
}

std::unique_ptr<Gpu> Gpu::open_or_skip() {
    std::string why;
    auto opened = open(why);
    if (opened) return opened;
    std::printf("skipped: no GPU here (%s)\n", why.c_str());
    std::exit(77);
}

CUcontext Gpu::create_context() const {
    CUcontext context = nullptr;
    check(create_(&context, 0, device_), "cuCtxCreate");
    return context;
}

Gpu::~Gpu() {
    if (context_) driver_->cuDevicePrimaryCtxRelease(device_);
}

void Gpu::check(CUresult result, const char* doing) const {
    if (result != CUDA_SUCCESS) throw std::runtime_error(driver_->error(result, doing).message);
}

int Gpu::attribute(CUdevice_attribute attribute) const {
    int value = 0;
    check(driver_->cuDeviceGetAttribute(&value, attribute, device_), "cuDeviceGetAttribute");
    return value;
}

ComputeCapability Gpu::capability() const {
    return {attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)};
}

RowLimits row_limits_of(const Gpu& gpu, const Problem& problem) {
    const Arch arch = *target_for(gpu.capability(), std::nullopt, {});
    return row_limits_of(problem, arch, gpu.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
}

DeviceBuffer::DeviceBuffer(const Gpu& gpu, std::size_t bytes, std::size_t offset) : gpu_(gpu), bytes_(bytes), offset_(offset) {
    gpu.check(gpu.driver().cuMemAlloc(&base_, 2 * kCanary + offset + bytes), "cuMemAlloc");
    gpu.check(gpu.cuMemsetD8(base_, 0x5a, kCanary + offset), "cuMemsetD8");
    gpu.check(gpu.cuMemsetD8(base_ + kCanary + offset + bytes, 0x5a, kCanary), "cuMemsetD8");
}

DeviceBuffer::DeviceBuffer(const Gpu& gpu, const Bytes& bytes) : DeviceBuffer(gpu, bytes.size()) { upload(bytes); }

DeviceBuffer::~DeviceBuffer() { gpu_.driver().cuMemFree(base_); }

void DeviceBuffer::upload(const Bytes& bytes, std::size_t at) const {
    if (!bytes.empty()) gpu_.check(gpu_.driver().cuMemcpyHtoD(address() + at, bytes.data(), bytes.size()), "cuMemcpyHtoD");
}

void DeviceBuffer::fill(unsigned char value) const {
    if (bytes_ != 0) gpu_.check(gpu_.cuMemsetD8(address(), value, bytes_), "cuMemsetD8");
}

Bytes DeviceBuffer::download(std::size_t at, std::size_t bytes) const {
    Bytes out(bytes);
    if (bytes != 0) gpu_.check(gpu_.driver().cuMemcpyDtoH(out.data(), address() + at, bytes), "cuMemcpyDtoH");
    return out;
}

bool DeviceBuffer::canaries_intact() const {
    Bytes canary(kCanary);
    const auto intact = [&](CUdeviceptr at) {
        gpu_.check(gpu_.driver().cuMemcpyDtoH(canary.data(), at, kCanary), "cuMemcpyDtoH");
        return std::all_of(canary.begin(), canary.end(), [](unsigned char c) { return c == 0x5a; });
    };
    return intact(base_) && intact(address() + bytes_);
}

}  // namespace nq::test
