#include "support/numerics.h"

#include "reference/numerics.h"
#include "reference/reference.h"

#include <normquant/scale_layout.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace nq::test {

Outputs run_reference(const Problem& problem, const Inputs& inputs, unsigned threads, unsigned char garbage, bool keep_padding) {
    const auto rows = static_cast<std::size_t>(inputs.rows);
    Outputs out;
    out.fp4.assign(fp4_bytes(problem, inputs.rows), garbage);
    out.scales.assign(scale_bytes(problem, inputs.rows), garbage);
    if (problem.scale_layout == ScaleLayout::both) out.scales_linear.assign(rows * problem.blocks(), garbage);
    out.residual = inputs.residual;
    if (problem.y_out) out.y_out.assign(rows * problem.hidden * 2, garbage);
    std::vector<float> sum(rows);
    std::vector<float> rstd(rows);

    HostTensors tensors;
    tensors.rows = inputs.rows;
    tensors.eps = inputs.eps;
    tensors.keep_padding = keep_padding;
    tensors.x = inputs.x.data();
    tensors.x_stride = problem.hidden;
    tensors.weight = inputs.weight.data();
    tensors.global_scale = inputs.global_scale ? &*inputs.global_scale : nullptr;
    tensors.fp4 = out.fp4.data();
    tensors.fp4_stride = problem.hidden / 2;
    tensors.scales = out.scales.data();
    tensors.scales_linear = out.scales_linear.data();
    tensors.device_rows = inputs.device_rows ? &*inputs.device_rows : nullptr;
    tensors.residual = out.residual.data();
    tensors.residual_stride = problem.hidden;
    tensors.y_out = out.y_out.data();
    tensors.y_out_stride = problem.hidden;
    tensors.sum_of_squares = sum.data();
    tensors.rstd = rstd.data();
    if (Outcome outcome = reference(problem, tensors, threads); !outcome) {
        throw std::runtime_error(outcome.error().message);
    }
    for (std::size_t row = 0; row < rows; ++row) {
        out.sum_of_squares.push_back(std::bit_cast<std::uint32_t>(sum[row]));
        out.rstd.push_back(std::bit_cast<std::uint32_t>(rstd[row]));
    }
    return out;
}

bool same_floats(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) {
    const auto nan = [](std::uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [&](std::uint32_t x, std::uint32_t y) { return x == y || (nan(x) && nan(y)); });
}

Bytes encode(DType dtype, const std::vector<float>& values) {
    const std::size_t width = dtype == DType::fp32 ? 4 : 2;
    Bytes bytes(values.size() * width);
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (dtype == DType::fp32) {
            std::memcpy(&bytes[i * width], &values[i], width);
        } else {
            const std::uint16_t bits =
                dtype == DType::fp16 ? numerics::to_fp16(values[i]) : numerics::to_bf16(values[i]);
            std::memcpy(&bytes[i * width], &bits, width);
        }
    }
    return bytes;
}

std::vector<float> decode(DType dtype, const Bytes& bytes) {
    const std::size_t width = dtype == DType::fp32 ? 4 : 2;
    std::vector<float> values(bytes.size() / width);
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (dtype == DType::fp32) {
            std::memcpy(&values[i], &bytes[i * width], width);
        } else {
            std::uint16_t bits;
            std::memcpy(&bits, &bytes[i * width], width);
            values[i] = dtype == DType::fp16 ? numerics::from_fp16(bits) : numerics::from_bf16(bits);
        }
    }
    return values;
}

std::vector<double> dequantize(const Problem& problem, const Outputs& outputs, std::int64_t rows) {
    std::vector<double> values;
    values.reserve(static_cast<std::size_t>(rows) * problem.hidden);
    for (std::int64_t row = 0; row < rows; ++row) {
        for (std::uint32_t element = 0; element < problem.hidden; ++element) {
            const std::uint8_t scale = scale_of(problem, outputs.scales, row, element / problem.block_size);
            values.push_back(
                static_cast<double>(numerics::from_e2m1(code_of(problem, outputs.fp4, row, element))) *
                (problem.scale_format == ScaleFormat::e4m3 ? numerics::from_e4m3(scale) : numerics::from_ue8m0(scale)));
        }
    }
    return values;
}

std::uint8_t scale_of(const Problem& problem, const Bytes& scales, std::int64_t row, std::uint32_t block) {
    return scales.at(normquant::scale_offset(static_cast<std::uint64_t>(row), block, problem.blocks(),
                                             problem.swizzled()));
}

std::uint8_t code_of(const Problem& problem, const Bytes& fp4, std::int64_t row, std::uint32_t element) {
    const unsigned char byte = fp4.at(static_cast<std::size_t>(row) * (problem.hidden / 2) + element / 2);
    return element % 2 == 0 ? byte & 0xfu : byte >> 4;
}

}  // namespace nq::test
