// One tensor of an input file, as it is stored.
#pragma once

#include "support/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nq::cli {

enum class Element {
    fp16,
    bf16,
    fp32,
    raw16,  // 16 bits whose meaning the file does not say: how NumPy stores bf16
};

struct Tensor {
    Element element = Element::fp16;
    std::string stored_as;  // the file's own name of the type: "<f2", "BF16"
    std::vector<std::uint64_t> shape;
    std::vector<unsigned char> bytes;  // row-major, little-endian

    std::uint64_t elements() const { return bytes.size() / (element == Element::fp32 ? 4 : 2); }
};

std::string shape_text(const std::vector<std::uint64_t>& shape);  // "[300, 576]"

// Elements times bytes of one, or nothing if that does not fit 64 bits.
bool checked_bytes(const std::vector<std::uint64_t>& shape, std::uint64_t element_bytes, std::uint64_t& total);

struct TensorSource {
    std::string file;
    std::string name;  // "" for .npy
    Tensor tensor;
};

// "FILE" or "FILE:TENSOR"; FILE is .npy or .safetensors, told apart by content.
Result<TensorSource> load_tensor(const std::string& argument);

}  // namespace nq::cli
