// libcuda, loaded at run time and never unloaded. One X-macro list names every function used, with the driver API
// version it is asked for; entries resolve through cuGetProcAddress.
#pragma once

#include "problem/arch.h"
#include "support/fork_mark.h"
#include "support/result.h"

#include <memory>
#include <string>

#include <cuda.h>

// X(name, version): version as cuGetProcAddress takes it.
#define NQ_DRIVER_FUNCTIONS(X)                  \
    X(cuInit, 2000)                             \
    X(cuDriverGetVersion, 2020)                 \
    X(cuDeviceGetCount, 2000)                   \
    X(cuDeviceGet, 2000)                        \
    X(cuDeviceGetName, 2000)                    \
    X(cuDeviceGetAttribute, 2000)               \
    X(cuCtxGetCurrent, 4000)                    \
    X(cuCtxPushCurrent, 4000)                   \
    X(cuCtxPopCurrent, 4000)                    \
    X(cuCtxGetDevice, 2000)                     \
    X(cuCtxGetId, 12000)                        \
    X(cuStreamGetCtx, 9020)                     \
    X(cuStreamIsCapturing, 10000)               \
    X(cuThreadExchangeStreamCaptureMode, 10010) \
    X(cuLibraryLoadData, 12000)                 \
    X(cuLibraryUnload, 12000)                   \
    X(cuLibraryGetKernel, 12000)                \
    X(cuKernelGetFunction, 12000)               \
    X(cuKernelSetAttribute, 12000)              \
    X(cuLaunchKernelEx, 11060)                  \
    X(cuOccupancyMaxActiveClusters, 11080)      \
    X(cuDeviceTotalMem, 3020)                   \
    X(cuDevicePrimaryCtxRetain, 7000)           \
    X(cuDevicePrimaryCtxRelease, 11000)         \
    X(cuMemAlloc, 3020)                         \
    X(cuMemFree, 3020)                          \
    X(cuMemcpyHtoD, 3020)                       \
    X(cuMemcpyDtoH, 3020)                       \
    X(cuStreamCreate, 2000)                     \
    X(cuStreamDestroy, 4000)                    \
    X(cuStreamSynchronize, 2000)                \
    X(cuEventCreate, 2000)                      \
    X(cuEventDestroy, 4000)                     \
    X(cuEventRecord, 2000)                      \
    X(cuEventSynchronize, 2000)                 \
    X(cuEventElapsedTime, 2000)                 \
    X(cuMemcpyDtoDAsync, 3020)                  \
    X(cuStreamBeginCapture, 10010)              \
    X(cuStreamEndCapture, 10000)                \
    X(cuGraphInstantiateWithFlags, 11040)       \
    X(cuGraphLaunch, 10000)                     \
    X(cuGraphExecDestroy, 10000)                \
    X(cuGraphDestroy, 10000)                    \
    X(cuGraphGetNodes, 10000)                   \
    X(cuGraphKernelNodeGetParams, 12000)        \
    X(cuGraphKernelNodeGetAttribute, 11000)     \
    X(cuGetErrorName, 6000)                     \
    X(cuGetErrorString, 6000)

namespace nq {

struct Driver {
#define NQ_DECLARE(name, version) decltype(&::name) name = nullptr;
    NQ_DRIVER_FUNCTIONS(NQ_DECLARE)
#undef NQ_DECLARE

    ForkMark loaded_by;  // its forked children cannot use the driver
    std::string path;
    int version = 0;  // cuDriverGetVersion: 13000

    // "CUDA_ERROR_INVALID_VALUE: invalid argument", with what was being done in front, and whether that was the cause.
    Error error(CUresult result, const std::string& doing) const;
};

// An error that broke the context: any call in it returns it from then on, whatever the call does.
bool is_of_earlier_work(CUresult result);

// explicit_path: the only place tried when not empty. Calls cuInit: the process has initialized CUDA from then on.
Result<std::shared_ptr<const Driver>> load_driver(const std::string& explicit_path);

}  // namespace nq
