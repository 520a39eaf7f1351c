// A libcuda with one "GPU" whose memory is the host's and whose kernels do nothing: what the tool does around a launch
// can be tested without a device, and --verify must notice. A launch in a graph takes a time of its kernel's own,
// anything else 1 ms. At exit it says on stderr what was not given back.
//
// With FAKE_GPU_COMPUTES normquant's kernel does what the CPU reference does, for contiguous bf16 rows of NVFP4, or of MXFP4 where
// there is no global scale.
#include <cuda.h>

#ifdef FAKE_GPU_COMPUTES
#include <normquant/normquant.h>
#include <normquant/params.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace {

struct Balance {
    int buffers = 0, streams = 0, events = 0, contexts = 0, graphs = 0;

    ~Balance() {
        if (buffers != 0 || streams != 0 || events != 0 || contexts != 0 || graphs != 0) {
            std::fprintf(stderr, "leaked: %d buffers, %d streams, %d events, %d contexts, %d graphs\n", buffers,
                         streams, events, contexts, graphs);
        }
    }
};
Balance live;
bool initialized = false;
unsigned long long primary_id = 1;  // of the primary context: it ends when nobody retains it, and the next is another one
thread_local std::vector<CUcontext> current;  // a stack
int handle;  // its address stands for every other object

// FAKE_GPU_L2_MIB, else 1 MiB.
int l2_bytes() {
    const char* mib = std::getenv("FAKE_GPU_L2_MIB");
    return (mib != nullptr ? std::atoi(mib) : 1) << 20;
}

struct Kernel {
    const char* name;
    float microseconds;
};
Kernel kernels[] = {{"normquant_kernel", 8}, {"floor_vector", 5}, {"floor_granule", 4}, {"empty", 1}};
constexpr float kCopyMicroseconds = 10;

#ifdef FAKE_GPU_COMPUTES
using Launched = normquant::Params;

CUresult compute(const Launched& params) {
    nq_problem problem = NQ_PROBLEM_INIT;
    problem.hidden = static_cast<std::uint32_t>(params.x_stride);
    if (params.residual != nullptr) problem.op = NQ_OP_ADD_RMSNORM;
    if (params.scale_swizzled != nullptr) problem.scale_layout = params.scale_linear != nullptr ? NQ_LAYOUT_BOTH : NQ_LAYOUT_SWIZZLED;
    if (params.device_rows != nullptr) problem.flags |= NQ_PROBLEM_DEVICE_ROWS;
    if (params.global_scale == nullptr) {
        problem.scale_format = NQ_SCALE_UE8M0;
        problem.block_size = 32;
    }
    nq_tensors tensors = NQ_TENSORS_INIT;
    tensors.rows = params.rows;
    tensors.eps = params.eps;
    tensors.flags = params.scale_swizzled != nullptr && params.zero_padding == 0 ? NQ_TENSORS_KEEP_PADDING : 0;
    tensors.x = params.x;
    tensors.weight = params.weight;
    tensors.global_scale = params.global_scale;
    tensors.device_rows = params.device_rows;
    tensors.fp4 = params.fp4;
    tensors.scales = params.scale_swizzled != nullptr ? params.scale_swizzled : params.scale_linear;
    if (problem.scale_layout == NQ_LAYOUT_BOTH) tensors.scales_linear = params.scale_linear;
    tensors.residual = const_cast<void*>(params.residual);
    tensors.residual_out = params.residual_out;
    return nq_reference(&problem, &tensors, 1) == NQ_OK ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}
#else
struct Launched {};

CUresult compute(const Launched&) { return CUDA_SUCCESS; }
#endif

struct Graph {
    float microseconds = 0;
    CUlaunchConfig launch = {};  // the last
    Kernel* kernel = nullptr;
    std::vector<Launched> launched;
};
Graph* capturing = nullptr;

struct Event {
    float microseconds = 1000;  // what the last graph before it took
};
float last_microseconds = 1000;

template <class T>
CUresult make(T* object, int& count) {
    *object = reinterpret_cast<T>(&handle);
    ++count;
    return CUDA_SUCCESS;
}

CUresult success() { return CUDA_SUCCESS; }

std::map<CUdeviceptr, size_t> buffers;  // and their sizes

bool allocated(CUdeviceptr address, size_t bytes) {
    const auto after = buffers.upper_bound(address);
    if (after == buffers.begin()) return false;
    const auto& [base, size] = *std::prev(after);
    return bytes <= size && address - base <= size - bytes;
}

}  // namespace

extern "C" {

CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
    std::snprintf(name, static_cast<std::size_t>(bytes), "Fake GPU");
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
    *bytes = size_t{8} << 30;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    *value = attribute == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE              ? l2_bytes()
             : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
             : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 0
                                                                         : 132;
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned) {
    initialized = true;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
    return device == 0 ? make(context, live.contexts) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) {
    if (--live.contexts == 0) ++primary_id;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = current.empty() ? nullptr : current.back();
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
    if (live.contexts == 0) return CUDA_ERROR_INVALID_CONTEXT;
    current.push_back(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
    if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = current.back();
    current.pop_back();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
    if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
    *device = 0;
    return current.empty() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext, unsigned long long* id) {
    *id = primary_id;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned) { return make(stream, live.streams); }

CUresult cuStreamDestroy(CUstream) {
    --live.streams;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream, CUcontext* context) {
    *context = reinterpret_cast<CUcontext>(&handle);
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;  // as the real one
    void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = reinterpret_cast<CUdeviceptr>(memory);
    buffers[*address] = bytes;
    ++live.buffers;
    return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) {
    buffers.erase(address);
    std::free(reinterpret_cast<void*>(address));
    --live.buffers;
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
    if (!allocated(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
    if (!allocated(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(to, reinterpret_cast<void*>(from), bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream) { return cuMemcpyHtoD(to, from, bytes); }

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream) { return cuMemcpyDtoH(to, from, bytes); }

CUresult cuEventCreate(CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(new Event);
    ++live.events;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
    delete reinterpret_cast<Event*>(event);
    --live.events;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream) {
    reinterpret_cast<Event*>(event)->microseconds = last_microseconds;
    last_microseconds = 1000;
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent, CUevent end) {
    *milliseconds = reinterpret_cast<Event*>(end)->microseconds / 1000;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream, CUstreamCaptureMode) {
    if (capturing != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    capturing = new Graph;
    ++live.graphs;
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream, CUgraph* graph) {
    *graph = reinterpret_cast<CUgraph>(std::exchange(capturing, nullptr));
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
    delete reinterpret_cast<Graph*>(graph);
    --live.graphs;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
    *exec = reinterpret_cast<CUgraphExec>(new Graph(*reinterpret_cast<Graph*>(graph)));
    ++live.graphs;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) { return cuGraphDestroy(reinterpret_cast<CUgraph>(exec)); }

CUresult cuGraphLaunch(CUgraphExec exec, CUstream) {
    const Graph& graph = *reinterpret_cast<Graph*>(exec);
    last_microseconds = graph.microseconds;
    for (const Launched& launched : graph.launched) {
        if (const CUresult result = compute(launched); result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    *nodes = reinterpret_cast<CUgraphNode>(graph);
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
    const Graph& graph = *reinterpret_cast<Graph*>(node);
    if (graph.kernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *params = {};
    params->kern = reinterpret_cast<CUkernel>(graph.kernel);
    params->gridDimX = graph.launch.gridDimX;
    params->gridDimY = graph.launch.gridDimY;
    params->gridDimZ = graph.launch.gridDimZ;
    params->blockDimX = graph.launch.blockDimX;
    params->blockDimY = params->blockDimZ = 1;
    params->sharedMemBytes = graph.launch.sharedMemBytes;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
    *clusters = 1;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void**) {
    auto* kernel = reinterpret_cast<Kernel*>(function);
    Launched launched;
    if (kernel == kernels) std::memcpy(&launched, arguments[0], sizeof launched);
    if (capturing == nullptr) return kernel == kernels ? compute(launched) : CUDA_SUCCESS;
    if (kernel == kernels) capturing->launched.push_back(launched);
    capturing->microseconds += kernel->microseconds;
    capturing->launch = *config;
    capturing->kernel = kernel;
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
    if (!allocated(to, bytes) || !allocated(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (capturing != nullptr) {
        capturing->microseconds += kCopyMicroseconds;
    } else {
        std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    }
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                           unsigned) {
    *library = reinterpret_cast<CUlibrary>(&handle);
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary, const char* name) {
    for (Kernel& known : kernels) {
        if (std::strcmp(known.name, name) != 0) continue;
        *kernel = reinterpret_cast<CUkernel>(&known);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    *function = reinterpret_cast<CUfunction>(kernel);
    return CUDA_SUCCESS;
}

// cuda.h renames what it has newer versions of; the names asked for are the plain ones. The rest succeeds and does
// nothing.
CUresult cuGetProcAddress(const char* name, void** address, int, cuuint64_t, CUdriverProcAddressQueryResult* found) {
    const struct {
        const char* name;
        void* address;
    } functions[] = {
        {"cuDriverGetVersion", reinterpret_cast<void*>(&cuDriverGetVersion)},
        {"cuDeviceGetCount", reinterpret_cast<void*>(&cuDeviceGetCount)},
        {"cuDeviceGet", reinterpret_cast<void*>(&cuDeviceGet)},
        {"cuDeviceGetName", reinterpret_cast<void*>(&cuDeviceGetName)},
        {"cuDeviceTotalMem", reinterpret_cast<void*>(&cuDeviceTotalMem)},
        {"cuDeviceGetAttribute", reinterpret_cast<void*>(&cuDeviceGetAttribute)},
        {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(&cuDevicePrimaryCtxRetain)},
        {"cuDevicePrimaryCtxRelease", reinterpret_cast<void*>(&cuDevicePrimaryCtxRelease)},
        {"cuCtxGetCurrent", reinterpret_cast<void*>(&cuCtxGetCurrent)},
        {"cuCtxPushCurrent", reinterpret_cast<void*>(&cuCtxPushCurrent)},
        {"cuCtxPopCurrent", reinterpret_cast<void*>(&cuCtxPopCurrent)},
        {"cuCtxGetDevice", reinterpret_cast<void*>(&cuCtxGetDevice)},
        {"cuCtxGetId", reinterpret_cast<void*>(&cuCtxGetId)},
        {"cuStreamCreate", reinterpret_cast<void*>(&cuStreamCreate)},
        {"cuStreamDestroy", reinterpret_cast<void*>(&cuStreamDestroy)},
        {"cuStreamGetCtx", reinterpret_cast<void*>(&cuStreamGetCtx)},
        {"cuStreamIsCapturing", reinterpret_cast<void*>(&cuStreamIsCapturing)},
        {"cuMemAlloc", reinterpret_cast<void*>(&cuMemAlloc)},
        {"cuMemFree", reinterpret_cast<void*>(&cuMemFree)},
        {"cuMemcpyHtoD", reinterpret_cast<void*>(&cuMemcpyHtoD)},
        {"cuInit", reinterpret_cast<void*>(&cuInit)},
        {"cuMemcpyDtoH", reinterpret_cast<void*>(&cuMemcpyDtoH)},
        {"cuMemcpyHtoDAsync", reinterpret_cast<void*>(&cuMemcpyHtoDAsync)},
        {"cuMemcpyDtoHAsync", reinterpret_cast<void*>(&cuMemcpyDtoHAsync)},
        {"cuEventCreate", reinterpret_cast<void*>(&cuEventCreate)},
        {"cuEventDestroy", reinterpret_cast<void*>(&cuEventDestroy)},
        {"cuEventRecord", reinterpret_cast<void*>(&cuEventRecord)},
        {"cuEventElapsedTime", reinterpret_cast<void*>(&cuEventElapsedTime)},
        {"cuMemcpyDtoDAsync", reinterpret_cast<void*>(&cuMemcpyDtoDAsync)},
        {"cuStreamBeginCapture", reinterpret_cast<void*>(&cuStreamBeginCapture)},
        {"cuStreamEndCapture", reinterpret_cast<void*>(&cuStreamEndCapture)},
        {"cuGraphDestroy", reinterpret_cast<void*>(&cuGraphDestroy)},
        {"cuGraphInstantiateWithFlags", reinterpret_cast<void*>(&cuGraphInstantiateWithFlags)},
        {"cuGraphExecDestroy", reinterpret_cast<void*>(&cuGraphExecDestroy)},
        {"cuGraphLaunch", reinterpret_cast<void*>(&cuGraphLaunch)},
        {"cuGraphGetNodes", reinterpret_cast<void*>(&cuGraphGetNodes)},
        {"cuGraphKernelNodeGetParams", reinterpret_cast<void*>(&cuGraphKernelNodeGetParams)},
        {"cuLaunchKernelEx", reinterpret_cast<void*>(&cuLaunchKernelEx)},
        {"cuOccupancyMaxActiveClusters", reinterpret_cast<void*>(&cuOccupancyMaxActiveClusters)},
        {"cuLibraryLoadData", reinterpret_cast<void*>(&cuLibraryLoadData)},
        {"cuLibraryGetKernel", reinterpret_cast<void*>(&cuLibraryGetKernel)},
        {"cuKernelGetFunction", reinterpret_cast<void*>(&cuKernelGetFunction)},
    };
    *address = reinterpret_cast<void*>(&success);
    for (const auto& function : functions) {
        if (std::strcmp(function.name, name) == 0) *address = function.address;
    }
    *found = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
}

}  // extern "C"
