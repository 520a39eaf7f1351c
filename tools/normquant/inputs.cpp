#include "inputs.h"

#include "errors.h"
#include "options.h"
#include "problem/problem.h"
#include "reference/numerics.h"

#include <fmt/core.h>

#include <cstring>

namespace nq::cli {
namespace {

template <class T>
T load(const std::vector<unsigned char>& buffer, std::size_t index) {
    T value;
    std::memcpy(&value, buffer.data() + index * sizeof(T), sizeof(T));
    return value;
}

// What the elements are, once --dtype has explained bits that the file leaves open.
Result<std::uint32_t> type_of(const Tensor& tensor, std::optional<std::uint32_t> dtype, const char* option) {
    switch (tensor.element) {
        case Element::fp16:
            return static_cast<std::uint32_t>(NQ_FP16);
        case Element::bf16:
            return static_cast<std::uint32_t>(NQ_BF16);
        case Element::fp32:
            return static_cast<std::uint32_t>(NQ_FP32);
        case Element::raw16:
            if (dtype == static_cast<std::uint32_t>(NQ_BF16)) return *dtype;
            return usage_error(fmt::format(
                "{}: the file stores '{}', 16 bits of unknown meaning: add --dtype bf16 if they are bfloat16", option,
                tensor.stored_as));
    }
    return failure("unknown element type");
}

std::vector<unsigned char> round_to(const std::vector<unsigned char>& fp32, std::uint32_t dtype) {
    std::vector<unsigned char> rounded(fp32.size() / 2);
    for (std::size_t i = 0; i < fp32.size() / 4; ++i) {
        const float value = load<float>(fp32, i);
        const std::uint16_t bits = dtype == NQ_FP16 ? numerics::to_fp16(value) : numerics::to_bf16(value);
        std::memcpy(rounded.data() + 2 * i, &bits, 2);
    }
    return rounded;
}

std::vector<unsigned char> widen(const std::vector<unsigned char>& halves, std::uint32_t dtype) {
    std::vector<unsigned char> wide(halves.size() * 2);
    for (std::size_t i = 0; i < halves.size() / 2; ++i) {
        const float value = element_at(halves, dtype, i);
        std::memcpy(wide.data() + 4 * i, &value, 4);
    }
    return wide;
}

}  // namespace

float element_at(const std::vector<unsigned char>& buffer, std::uint32_t dtype, std::size_t index) {
    switch (dtype) {
        case NQ_FP16:
            return numerics::from_fp16(load<std::uint16_t>(buffer, index));
        case NQ_BF16:
            return numerics::from_bf16(load<std::uint16_t>(buffer, index));
        default:
            return load<float>(buffer, index);
    }
}

Result<Inputs> make_inputs(TensorSource input, TensorSource weight, std::optional<std::uint32_t> dtype) {
    const auto& shape = input.tensor.shape;
    if (shape.empty() || shape.size() > 3) {
        return usage_error(
            fmt::format("--input has shape {}: [H], [M, H] or [batch, M, H] is accepted", shape_text(shape)));
    }
    Inputs inputs;
    const std::uint64_t hidden = shape.back();
    if (hidden < 16 || hidden > kMaxHidden) {
        return usage_error(fmt::format("--input has rows of {} elements: 16 to {} are accepted", hidden, kMaxHidden));
    }
    inputs.hidden = static_cast<std::uint32_t>(hidden);
    const std::uint64_t rows = input.tensor.elements() / hidden;
    if (rows > static_cast<std::uint64_t>(kMaxRows)) {
        return usage_error(fmt::format("--input has {} rows: at most {} are accepted", rows, kMaxRows));
    }
    inputs.rows = static_cast<std::int64_t>(rows);
    if (weight.tensor.shape != std::vector<std::uint64_t>{hidden}) {
        return usage_error(fmt::format("--weight has shape {}: [{}] is needed, the length of an input row",
                                       shape_text(weight.tensor.shape), hidden));
    }

    const auto stored = type_of(input.tensor, dtype, "--input");
    if (!stored) return stored.error();
    if (*stored == NQ_FP32) {
        inputs.dtype = dtype.value_or(NQ_BF16);
        inputs.x = round_to(input.tensor.bytes, inputs.dtype);
        inputs.notes.push_back(fmt::format("input rounded from float32 to {}{}", dtype_name(inputs.dtype),
                                           dtype ? "" : ", the default of --dtype"));
    } else if (dtype && *dtype != *stored) {
        return usage_error(fmt::format("--dtype {} does not fit --input, which is {} ({}): only float32 is converted",
                                       dtype_name(*dtype), dtype_name(*stored), input.tensor.stored_as));
    } else {
        inputs.dtype = *stored;
        inputs.x = std::move(input.tensor.bytes);
    }

    const auto weight_type = type_of(weight.tensor, dtype, "--weight");
    if (!weight_type) return weight_type.error();
    if (*weight_type == NQ_FP32 || *weight_type == inputs.dtype) {
        inputs.weight_dtype = *weight_type;
        inputs.weight = std::move(weight.tensor.bytes);
    } else {
        inputs.weight_dtype = NQ_FP32;
        inputs.weight = widen(weight.tensor.bytes, *weight_type);
        inputs.notes.push_back(fmt::format("weight widened from {} to float32, exactly, because the input is {}",
                                           dtype_name(*weight_type), dtype_name(inputs.dtype)));
    }
    return inputs;
}

}  // namespace nq::cli
