// Tensors of a call on the device, arranged as a test wants them, and every byte of them checked.
#pragma once

#include "gpu/gpu.h"
#include "support/arrangement.h"

#include <normquant/normquant.h>

#include <cstdint>
#include <optional>
#include <string>

namespace nq::test {

// In the CUDA context that is current. Problem and inputs must outlive it; what is wrong is a std::runtime_error, on whichever thread.
class DeviceTensors {
public:
    // offset: of x, in bytes.
    DeviceTensors(const Gpu& gpu, const Problem& problem, const Inputs& inputs, const Arrangement& arrangement = {}, std::size_t offset = 0);

    // Inputs as they are to be, outputs full of kGarbage, and all of it done when this returns. Rows of x behind the device's count are
    // not written, so that compute-sanitizer sees who reads them.
    void write() const { write(inputs_.device_rows); }
    void write(std::optional<std::int32_t> device_rows) const;
    nq_tensors tensors() const;
    // After the device is done. Whatever is no output must be as it was.
    Outputs outputs() const;

    const DeviceBuffer& device_rows() const { return device_rows_.buffer; }
    const DeviceBuffer& global_scale() const { return global_scale_.buffer; }

    static constexpr unsigned char kGarbage = 0xab, kGap = 0xff;

private:
    struct Rows {
        RowImage image;
        DeviceBuffer buffer;
        void set(const Bytes& rows) const;  // the gaps with them
        Bytes get(unsigned char gap, const char* name) const;
    };

    Rows rows(const RowImage& image, std::size_t offset = 0) const;
    RowImage x_image(std::int64_t rows) const;

    const Gpu& gpu_;
    const Problem& problem_;
    const Inputs& inputs_;
    Arrangement arrangement_;
    mutable std::int64_t written_rows_ = 0;  // of x
    Rows x_, residual_, residual_out_, y_out_, fp4_, scales_linear_, scales_swizzled_, weight_, global_scale_, device_rows_;
};

// "" for equal bytes, else the first output that differs, and where.
std::string difference(const Outputs& got, const Outputs& expected);

}  // namespace nq::test
