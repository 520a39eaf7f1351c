// The kernels that `normquant bench` compares with. The floor kernels read the rows and write as many bytes as the
// operator does, with no arithmetic between: what memory alone would allow.
#pragma once

#include "cuda/nvrtc.h"
#include "device.h"

namespace nq::cli {

enum class FloorKernel { vector, granule, empty };  // 8 or 16 elements a thread; one thread that does nothing

class FloorKernels {
public:
    static Result<FloorKernels> load(Device& device, const Nvrtc& nvrtc, std::uint32_t block_size);
    FloorKernels(FloorKernels&& other) noexcept;
    FloorKernels& operator=(FloorKernels&&) = delete;
    ~FloorKernels();

    // elements: of x, a multiple of 32 or of block_size.
    Outcome launch(FloorKernel which, CUdeviceptr x, CUdeviceptr fp4, CUdeviceptr scales, std::int64_t elements) const;

private:
    explicit FloorKernels(Device& device) : device_(&device) {}

    Device* device_;
    CUlibrary library_ = nullptr;
    CUkernel kernels_[3] = {};
};

}  // namespace nq::cli
