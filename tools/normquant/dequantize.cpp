#include "dequantize.h"

#include "reference/numerics.h"

#include <cstddef>

namespace nq::cli {

void dequantize_row(const nq_problem& problem, std::int64_t row, const unsigned char* fp4_row,
                    const unsigned char* scales, double global_scale, std::span<double> out) {
    for (std::uint32_t block = 0; block < problem.hidden / problem.block_size; ++block) {
        std::size_t offset = 0;
        nq_scale_offset(&problem, row, block, &offset);
        const unsigned char byte = scales[offset];
        const float factor =
            problem.scale_format == NQ_SCALE_E4M3 ? numerics::from_e4m3(byte) : numerics::from_ue8m0(byte);
        const double scale = static_cast<double>(factor) / global_scale;
        for (std::uint32_t i = block * problem.block_size; i < (block + 1) * problem.block_size; ++i) {
            const unsigned pair = fp4_row[i / 2];
            const auto code = static_cast<std::uint8_t>(i % 2 == 0 ? pair & 0xf : pair >> 4);
            out[i] = static_cast<double>(numerics::from_e2m1(code)) * scale;
        }
    }
}

}  // namespace nq::cli
