/* Beside cuda.h, whose CUstream must go in without a cast. */
#include <cuda.h>
#include <normquant/normquant.h>

nq_status header_with_cuda(const nq_kernel *kernel, const nq_tensors *tensors, CUstream stream);
nq_status header_with_cuda(const nq_kernel *kernel, const nq_tensors *tensors, CUstream stream) {
    return nq_launch(kernel, tensors, stream);
}
