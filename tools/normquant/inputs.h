// From two tensors of a file to the operands of the operator: types settled, shapes checked, rounding said aloud.
#pragma once

#include "tensor.h"

#include <normquant/normquant.h>

#include <optional>

namespace nq::cli {

struct Inputs {
    std::uint32_t dtype = NQ_BF16;
    std::uint32_t weight_dtype = NQ_BF16;
    std::uint32_t hidden = 0;
    std::int64_t rows = 0;
    std::vector<unsigned char> x;
    std::vector<unsigned char> weight;
    std::vector<std::string> notes;  // conversions that were made
};

// dtype: what --dtype says, if it was given.
Result<Inputs> make_inputs(TensorSource input, TensorSource weight, std::optional<std::uint32_t> dtype);

// Element `index` of a buffer of this type.
float element_at(const std::vector<unsigned char>& buffer, std::uint32_t dtype, std::size_t index);

}  // namespace nq::cli
