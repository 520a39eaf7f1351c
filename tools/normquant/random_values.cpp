#include "random_values.h"

#include "reference/numerics.h"

#include <normquant/normquant.h>

#include <cstring>

namespace nq::cli {

std::vector<unsigned char> encode(const std::vector<float>& values, std::uint32_t dtype) {
    const std::size_t width = dtype == NQ_FP32 ? 4 : 2;
    std::vector<unsigned char> bytes(values.size() * width);
    for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint16_t half = dtype == NQ_FP16 ? numerics::to_fp16(values[i]) : numerics::to_bf16(values[i]);
        std::memcpy(bytes.data() + i * width, width == 4 ? static_cast<const void*>(&values[i]) : &half, width);
    }
    return bytes;
}

}  // namespace nq::cli
