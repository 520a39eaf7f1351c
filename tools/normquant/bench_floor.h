// The kernels that `normquant bench` compares with. The floor kernels read the rows and write as many bytes as the
// operator does, with no arithmetic between: what memory alone would allow.
#pragma once

#include "cuda/nvrtc.h"
#include "device.h"

#include <normquant/normquant.h>

namespace nq::cli {

enum class FloorKernel { vector, granule, empty };  // 8 or 16 elements a thread; one thread that does nothing

// Of one set of tensors; residual and y where the operator has them, else 0.
struct FloorTensors {
    CUdeviceptr x = 0, residual = 0, y = 0, fp4 = 0, scales = 0;
};

class FloorKernels {
public:
    // They move what the problem does: also the residual in and out, and y. The scales once in any case.
    static Result<FloorKernels> load(Device& device, const Nvrtc& nvrtc, const nq_problem& problem);
    FloorKernels(FloorKernels&& other) noexcept;
    FloorKernels& operator=(FloorKernels&&) = delete;
    ~FloorKernels();

    // elements: of x, a multiple of 32 or of block_size.
    Outcome launch(FloorKernel which, FloorTensors tensors, std::int64_t elements) const;

private:
    explicit FloorKernels(Device& device) : device_(&device) {}

    Device* device_;
    CUlibrary library_ = nullptr;
    CUkernel kernels_[3] = {};
};

}  // namespace nq::cli
