/* What the examples need besides normquant: the driver, inputs, a comparison. libcuda is loaded at run time, so that they build and start
 * where there is none; an engine links it, or has it from the CUDA runtime.
 */
#ifndef NORMQUANT_EXAMPLES_GPU_H
#define NORMQUANT_EXAMPLES_GPU_H

#include <normquant/normquant.h>

#include <cuda.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { kSkipped = 77 }; /* the exit code of what cannot run here */

/* X(function, since which version of CUDA in this form) */
#define GPU_FUNCTIONS(X)                   \
    X(cuInit, 2000)                        \
    X(cuDeviceGetCount, 2000)              \
    X(cuDevicePrimaryCtxRetain, 7000)      \
    X(cuDevicePrimaryCtxRelease, 11000)    \
    X(cuCtxSetCurrent, 4000)               \
    X(cuStreamCreate, 2000)                \
    X(cuStreamDestroy, 4000)               \
    X(cuStreamSynchronize, 2000)           \
    X(cuStreamBeginCapture, 10010)         \
    X(cuStreamEndCapture, 10000)           \
    X(cuGraphInstantiateWithFlags, 11040)  \
    X(cuGraphLaunch, 10000)                \
    X(cuGraphExecDestroy, 10000)           \
    X(cuGraphDestroy, 10000)               \
    X(cuMemAlloc, 3020)                    \
    X(cuMemFree, 3020)                     \
    X(cuMemcpyHtoDAsync, 3020)             \
    X(cuMemcpyDtoHAsync, 3020)

#define GPU_TYPE(name, since) typedef __typeof__(&name) Type_##name;
GPU_FUNCTIONS(GPU_TYPE)
#undef GPU_TYPE

typedef struct Gpu {
#define GPU_DECLARE(name, since) Type_##name name;
    GPU_FUNCTIONS(GPU_DECLARE)
#undef GPU_DECLARE
    CUcontext context;
} Gpu;

/* Device 0, its primary context current. NULL, or why there is none. */
static inline const char* gpu_open(Gpu* gpu) {
    const char* path = getenv("NORMQUANT_LIBCUDA");
    void* library = dlopen(path != NULL && *path != '\0' ? path : "libcuda.so.1", RTLD_NOW);
    if (library == NULL) return dlerror();
    CUresult (*get)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
    *(void**)(void*)&get = dlsym(library, "cuGetProcAddress_v2");
    if (get == NULL) return "the driver lacks cuGetProcAddress_v2";
    CUdriverProcAddressQueryResult found;
#define GPU_FIND(name, since)                                                                                                \
    if (get(#name, (void**)(void*)&gpu->name, since, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found) != CUDA_SUCCESS || !gpu->name) \
        return "the driver lacks " #name;
    GPU_FUNCTIONS(GPU_FIND)
#undef GPU_FIND
    int count = 0;
    if (gpu->cuInit(0) != CUDA_SUCCESS || gpu->cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0) return "the driver has no device";
    if (gpu->cuDevicePrimaryCtxRetain(&gpu->context, 0) != CUDA_SUCCESS) return "the device has no context to give";
    if (gpu->cuCtxSetCurrent(gpu->context) != CUDA_SUCCESS) return "the device's context is broken";
    return NULL;
}

static inline void gpu_close(Gpu* gpu) { gpu->cuDevicePrimaryCtxRelease(0); }

/* After a failed nq_prepare: a GPU that is too old and a missing NVRTC are no fault of the program. */
static inline int exit_code(nq_status status) {
    return status == NQ_ERR_UNSUPPORTED_DEVICE || status == NQ_ERR_NVRTC_MISSING ? kSkipped : 1;
}

/* bf16 from -2 to 2. */
static inline void fill(uint16_t* values, size_t count, uint32_t seed) {
    for (size_t i = 0; i < count; ++i) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (uint16_t)((seed >> 16 & 0x80FFu) | 0x3F00u);
    }
}

/* Says where they differ. */
static inline int same_bytes(const char* what, const void* found, const void* expected, size_t bytes) {
    const unsigned char *a = (const unsigned char*)found, *b = (const unsigned char*)expected;
    for (size_t i = 0; i < bytes; ++i) {
        if (a[i] == b[i]) continue;
        fprintf(stderr, "%s: byte %zu of %zu is %02x on the GPU and %02x in the reference\n", what, i, bytes, a[i], b[i]);
        return 0;
    }
    return 1;
}

#endif
