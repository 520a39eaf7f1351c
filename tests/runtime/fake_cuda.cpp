#include "fake_cuda.h"

#include <elf.h>

#include <cstring>
#include <memory>
#include <new>

using namespace nq::test;

namespace {

// Never destroyed: the library under test may call at process exit.
FakeCuda& fake() {
    static FakeCuda* const state = new FakeCuda;
    return *state;
}

// Logs a call; what it fails with, or success. The mutex is held, until the call returns.
CUresult enter(const char* name) {
    fake().calls.emplace_back(name);
    const auto failure = fake().failures.find(name);
    return failure == fake().failures.end() ? CUDA_SUCCESS : failure->second;
}

CUresult unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace

#define ENTER(name)                              \
    const std::lock_guard entered(fake().mutex); \
    if (const CUresult failure = enter(name); failure != CUDA_SUCCESS) return failure

extern "C" {

FakeCuda* nq_fake_cuda() { return &fake(); }

void nq_fake_cuda_reset() {
    fake().~FakeCuda();
    new (&fake()) FakeCuda;
}

CUresult cuInit(unsigned) {
    ENTER("cuInit");
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
    *version = fake().version;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) {
    ENTER("cuDeviceGetAttribute");
    const FakeDevice& device = fake().devices.at(static_cast<std::size_t>(ordinal));
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
            *value = device.major;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
            *value = device.minor;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
            *value = device.multiprocessors;
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuCtxGetCurrent(CUcontext* context) {
    ENTER("cuCtxGetCurrent");
    *context = fake().current.empty() ? nullptr : fake().current.back();
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
    ENTER("cuCtxPushCurrent");
    fake().current.push_back(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
    ENTER("cuCtxPopCurrent");
    if (fake().current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = fake().current.back();
    fake().current.pop_back();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
    ENTER("cuCtxGetDevice");
    if (fake().current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *device = reinterpret_cast<FakeContext*>(fake().current.back())->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
    ENTER("cuCtxGetId");
    *id = reinterpret_cast<FakeContext*>(context)->id;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
    ENTER("cuStreamGetCtx");
    *context = reinterpret_cast<FakeStream*>(stream)->context;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    ENTER("cuStreamIsCapturing");
    const bool capturing = stream != nullptr && reinterpret_cast<FakeStream*>(stream)->capturing;
    *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    ENTER("cuThreadExchangeStreamCaptureMode");
    std::swap(*mode, fake().mode);
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*,
                           void**, unsigned) {
    ENTER("cuLibraryLoadData");
    if (fake().refused_images > 0) {
        --fake().refused_images;
        return CUDA_ERROR_INVALID_IMAGE;
    }
    // As the real one, it gets no length. The fake NVRTC ends its cubins with a NUL.
    fake().libraries.push_back({static_cast<const char*>(code) + sizeof(Elf64_Ehdr), nullptr, fake().mode, false});
    *library = reinterpret_cast<CUlibrary>(&fake().libraries.back());
    return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library) {
    reinterpret_cast<FakeLibrary*>(library)->unloaded = true;
    reinterpret_cast<FakeLibrary*>(library)->mode = fake().mode;
    ENTER("cuLibraryUnload");
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    ENTER("cuLibraryGetKernel");
    if (std::strcmp(name, "normquant_kernel") != 0) return CUDA_ERROR_NOT_FOUND;
    *kernel = reinterpret_cast<CUkernel>(library);
    return CUDA_SUCCESS;
}

CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice) {
    ENTER("cuKernelSetAttribute");
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
    ENTER("cuOccupancyMaxActiveClusters");
    *clusters = fake().active_clusters;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    ENTER("cuKernelGetFunction");
    auto* library = reinterpret_cast<FakeLibrary*>(kernel);
    library->loaded_in = fake().current.empty() ? nullptr : fake().current.back();
    library->mode = fake().mode;
    *function = nullptr;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra) {
    if (const auto launch = fake().launch_instead; launch != nullptr) return launch(config, function, arguments, extra);
    ENTER("cuLaunchKernelEx");
    if (extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
    FakeLaunch launch{*config, 0, false, reinterpret_cast<FakeLibrary*>(function)->image, {}};
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) launch.cluster = config->attrs[i].value.clusterDim.y;
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            launch.overlap = config->attrs[i].value.programmaticStreamSerializationAllowed != 0;
    }
    launch.config.attrs = nullptr;
    std::memcpy(&launch.params, arguments[0], sizeof launch.params);
    fake().launches.push_back(launch);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult result, const char** name) {
    *name = result == CUDA_ERROR_NO_BINARY_FOR_GPU ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char** description) {
    *description = "as the test asked for";
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char* name, void** address, int, cuuint64_t, CUdriverProcAddressQueryResult* found) {
    struct Function {
        const char* name;
        void* address;
    };
#define FUNCTION(name) \
    { #name, reinterpret_cast < void*>(&name) }
    const Function functions[] = {
        {"cuCtxPushCurrent", reinterpret_cast<void*>(&cuCtxPushCurrent)},
        {"cuCtxPopCurrent", reinterpret_cast<void*>(&cuCtxPopCurrent)},
        FUNCTION(cuInit),
        FUNCTION(cuDriverGetVersion),
        FUNCTION(cuDeviceGetAttribute),
        FUNCTION(cuCtxGetCurrent),
        FUNCTION(cuCtxGetDevice),
        FUNCTION(cuCtxGetId),
        FUNCTION(cuStreamGetCtx),
        FUNCTION(cuStreamIsCapturing),
        FUNCTION(cuThreadExchangeStreamCaptureMode),
        FUNCTION(cuLibraryLoadData),
        FUNCTION(cuLibraryUnload),
        FUNCTION(cuLibraryGetKernel),
        FUNCTION(cuKernelGetFunction),
        FUNCTION(cuKernelSetAttribute),
        FUNCTION(cuLaunchKernelEx),
        FUNCTION(cuOccupancyMaxActiveClusters),
        FUNCTION(cuGetErrorName),
        FUNCTION(cuGetErrorString),
    };
    if (fake().absent.count(name) != 0) {
        *address = nullptr;
        *found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        return CUDA_SUCCESS;
    }
    *address = reinterpret_cast<void*>(&unsupported);
    for (const Function& function : functions) {
        if (std::strcmp(function.name, name) == 0) *address = function.address;
    }
    *found = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
}

}  // extern "C"
