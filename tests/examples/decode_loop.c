/* Decode in a CUDA graph: residual add, RMSNorm and NVFP4 with swizzled scales, captured once for the largest batch. Every replay reads in
 * device memory how many rows there are. Each step's bytes are compared with the CPU reference.
 */
#include "gpu.h"

#include <string.h>

enum { kMostRows = 64, kHidden = 4096 };
enum { kX, kWeight, kGlobalScale, kRowCount, kResidual, kFp4, kScales, kArrays };
static const char* const kNames[kArrays] = {"x", "weight", "global_scale", "device_rows", "residual", "fp4", "scales"};

/* The same call for the kernel and the reference: of arrays on the device, or on the host. */
static nq_tensors tensors_at(void* const arrays[kArrays]) {
    nq_tensors tensors = NQ_TENSORS_INIT;
    tensors.rows = kMostRows;
    tensors.x = arrays[kX];
    tensors.weight = arrays[kWeight];
    tensors.global_scale = (const float*)arrays[kGlobalScale];
    tensors.device_rows = (const int32_t*)arrays[kRowCount];
    tensors.residual = arrays[kResidual]; /* updated in place */
    tensors.fp4 = arrays[kFp4];
    tensors.scales = arrays[kScales];
    return tensors;
}

#define CUDA(call)                                                         \
    do {                                                                   \
        const CUresult cuda_result = (call);                               \
        if (cuda_result != CUDA_SUCCESS) {                                 \
            fprintf(stderr, "%s: CUDA error %d\n", #call, (int)cuda_result); \
            return 1;                                                      \
        }                                                                  \
    } while (0)
#define NQ(call)                                     \
    do {                                             \
        const nq_status nq_result = (call);          \
        if (nq_result != NQ_OK) {                    \
            fprintf(stderr, "%s\n", nq_last_error()); \
            return exit_code(nq_result);             \
        }                                            \
    } while (0)

int main(void) {
    Gpu gpu;
    const char* why = gpu_open(&gpu);
    if (why != NULL) {
        printf("skipped: no GPU here (%s)\n", why);
        return kSkipped;
    }
    CUstream stream;
    CUDA(gpu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

    /* At start-up: the kernel, before anything is captured. */
    nq_problem problem = NQ_PROBLEM_INIT;
    problem.op = NQ_OP_ADD_RMSNORM;
    problem.hidden = kHidden;
    problem.scale_layout = NQ_LAYOUT_SWIZZLED;
    problem.flags = NQ_PROBLEM_DEVICE_ROWS;
    nq_context* context;
    nq_kernel* kernel;
    NQ(nq_context_create(NULL, &context));
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.stream = stream; /* or NULL: for the device of the current context */
    NQ(nq_prepare(context, &problem, &options, &kernel));

    size_t bytes[kArrays] = {kMostRows * kHidden * 2, kHidden * 2, sizeof(float), sizeof(int32_t), kMostRows * kHidden * 2, 0, 0};
    NQ(nq_fp4_bytes(&problem, kMostRows, &bytes[kFp4]));
    NQ(nq_scale_bytes(&problem, kMostRows, &bytes[kScales]));
    void *host[kArrays], *device[kArrays], *found[kArrays];
    for (int i = 0; i < kArrays; ++i) {
        host[i] = calloc(1, bytes[i]);
        found[i] = calloc(1, bytes[i]);
        if (host[i] == NULL || found[i] == NULL) return 1;
    }
    fill((uint16_t*)host[kWeight], kHidden, 1);
    fill((uint16_t*)host[kResidual], kMostRows * kHidden, 2);
    *(float*)host[kGlobalScale] = 448.0f * 6.0f / 8.0f; /* for |y| up to 8 */
    for (int i = 0; i < kArrays; ++i) {
        CUdeviceptr address;
        CUDA(gpu.cuMemAlloc(&address, bytes[i]));
        device[i] = (void*)(uintptr_t)address;
        CUDA(gpu.cuMemcpyHtoDAsync(address, host[i], bytes[i], stream));
    }

    /* Captured once. A real graph has the rest of the layer too. */
    const nq_tensors on_device = tensors_at(device), on_host = tensors_at(host);
    CUgraph graph;
    CUgraphExec step;
    CUDA(gpu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    NQ(nq_launch(kernel, &on_device, stream));
    CUDA(gpu.cuStreamEndCapture(stream, &graph));
    CUDA(gpu.cuGraphInstantiateWithFlags(&step, graph, 0));

    /* Sequences come and go. */
    const int32_t rows[] = {64, 1, 17, 32, 0, 63, 8};
    int wrong = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !wrong; ++i) {
        *(int32_t*)host[kRowCount] = rows[i];
        fill((uint16_t*)host[kX], kMostRows * kHidden, (uint32_t)(3 + i));
        CUDA(gpu.cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)device[kRowCount], host[kRowCount], bytes[kRowCount], stream));
        CUDA(gpu.cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)device[kX], host[kX], bytes[kX], stream));
        CUDA(gpu.cuGraphLaunch(step, stream));
        for (int j = kResidual; j < kArrays; ++j) {
            CUDA(gpu.cuMemcpyDtoHAsync(found[j], (CUdeviceptr)(uintptr_t)device[j], bytes[j], stream));
        }
        CUDA(gpu.cuStreamSynchronize(stream));

        NQ(nq_reference(&problem, &on_host, 0));
        for (int j = kResidual; j < kArrays; ++j) wrong += !same_bytes(kNames[j], found[j], host[j], bytes[j]);
        printf("step %d: %d of %d rows, %s\n", (int)i, (int)rows[i], kMostRows, wrong ? "WRONG" : "the bytes of the reference");
    }

    CUDA(gpu.cuGraphExecDestroy(step));
    CUDA(gpu.cuGraphDestroy(graph));
    nq_context_destroy(context); /* nothing is in flight any more */
    for (int i = 0; i < kArrays; ++i) {
        CUDA(gpu.cuMemFree((CUdeviceptr)(uintptr_t)device[i]));
        free(host[i]);
        free(found[i]);
    }
    CUDA(gpu.cuStreamDestroy(stream));
    gpu_close(&gpu);
    return wrong ? 1 : 0;
}
