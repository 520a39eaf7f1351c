// NumPy's .npy, versions 1 to 3: a dictionary literal that is parsed here, never evaluated, and the raw data behind it.
#pragma once

#include "files.h"
#include "tensor.h"

namespace nq::cli {

bool is_npy(Bytes file);
// Accepts '<f2', '<f4' and, as bits whose meaning the caller knows, '<u2' and 'V2'; row-major; the data must fit
// exactly.
Result<Tensor> parse_npy(Bytes file);

// The header of a uint8 array; the data follows it.
std::string npy_uint8_header(const std::vector<std::uint64_t>& shape);

}  // namespace nq::cli
