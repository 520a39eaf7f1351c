#include "fake_cuda.h"

#include <elf.h>
#include <unistd.h>

#include <cstdlib>
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

bool destroyed(CUcontext context) { return reinterpret_cast<FakeContext*>(context)->destroyed; }

// Where a launch goes: into the stream's context, or the current one.
CUcontext context_of(CUstream stream) {
    if (stream != nullptr) return reinterpret_cast<FakeStream*>(stream)->context;
    return fake().current.empty() ? nullptr : fake().current.back();
}

// The fake NVRTC names the target in its cubins.
bool runs_on(const std::string& image, const FakeDevice& device) {
    const std::size_t arch = image.rfind("sm_");
    return arch == std::string::npos || std::atoi(image.c_str() + arch + 3) / 10 == device.major;
}

unsigned cluster_of(const CUlaunchConfig& config) {
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        if (config.attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return config.attrs[i].value.clusterDim.y;
    }
    return 0;
}

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
    if (fake().initialized_by == 0) fake().initialized_by = ::getpid();
    return fake().initialized_by == ::getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
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
    if (destroyed(context)) return CUDA_ERROR_INVALID_CONTEXT;
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
    return destroyed(*context) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
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
    fake().libraries.push_back({static_cast<const char*>(code) + sizeof(Elf64_Ehdr), {}, fake().mode, false, {}});
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

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
    ENTER("cuKernelSetAttribute");
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
    if (value > fake().devices.at(static_cast<std::size_t>(device)).most_shared) return CUDA_ERROR_INVALID_VALUE;
    reinterpret_cast<FakeLibrary*>(kernel)->shared_bytes[device] = static_cast<unsigned>(value);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function, const CUlaunchConfig* config) {
    ENTER("cuOccupancyMaxActiveClusters");
    fake().occupancies.push_back({config->blockDimX, config->sharedMemBytes, cluster_of(*config), config->numAttrs,
                                  reinterpret_cast<FakeLibrary*>(function)->image});
    *clusters = fake().active_clusters;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    ENTER("cuKernelGetFunction");
    auto* library = reinterpret_cast<FakeLibrary*>(kernel);
    library->loaded_in.push_back(fake().current.empty() ? nullptr : fake().current.back());
    library->mode = fake().mode;
    *function = nullptr;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra) {
    if (const auto launch = fake().launch_instead; launch != nullptr) return launch(config, function, arguments, extra);
    ENTER("cuLaunchKernelEx");
    if (extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUcontext context = context_of(config->hStream);
    if (context == nullptr || destroyed(context)) return CUDA_ERROR_INVALID_CONTEXT;
    FakeLibrary& library = *reinterpret_cast<FakeLibrary*>(function);
    const CUdevice device = reinterpret_cast<FakeContext*>(context)->device;
    if (!runs_on(library.image, fake().devices.at(static_cast<std::size_t>(device)))) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (config->sharedMemBytes > 48 << 10 && config->sharedMemBytes > library.shared_bytes[device]) return CUDA_ERROR_INVALID_VALUE;
    FakeLaunch launch{*config, cluster_of(*config), false, library.image, {}};
    for (unsigned i = 0; i < config->numAttrs; ++i) {
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
