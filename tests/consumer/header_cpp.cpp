// As C++11, the oldest that an engine may still build with, and beside cuda.h.
#include <normquant/normquant.h>

#include <cuda.h>

nq_status header_cpp(const nq_kernel* kernel, CUstream stream);
nq_status header_cpp(const nq_kernel* kernel, CUstream stream) {
    nq_tensors tensors = NQ_TENSORS_INIT;
    return nq_launch(kernel, &tensors, stream);
}
