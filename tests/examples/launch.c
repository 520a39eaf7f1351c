/* What an inference engine does on the GPU. A CUDA context is current; every pointer in `tensors` is a device pointer.
 */
#include <normquant/normquant.h>

/* At start-up, once a layer shape: reads the cache or compiles, and loads. */
nq_status prepare_norm(nq_context* context, uint32_t hidden, nq_kernel** kernel) {
    nq_problem problem = NQ_PROBLEM_INIT;
    problem.hidden = hidden;
    problem.scale_layout = NQ_LAYOUT_SWIZZLED;
    return nq_prepare(context, &problem, NULL, kernel);
}

/* In every step: one kernel launch, also while the stream is being captured into a graph. */
nq_status enqueue_norm(const nq_kernel* kernel, const nq_tensors* tensors, struct CUstream_st* stream) {
    return nq_launch(kernel, tensors, stream);
}
