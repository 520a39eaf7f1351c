// .safetensors: u64 header length, a JSON object that gives each tensor's type, shape and place, then the data.
#pragma once

#include "files.h"
#include "tensor.h"

namespace nq::cli {

struct SafetensorsEntry {
    std::string name;
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::uint64_t begin = 0;  // offsets from the start of the file
    std::uint64_t end = 0;
};

// Every entry is checked: offsets within the file, size equal to shape times type.
Result<std::vector<SafetensorsEntry>> parse_safetensors(Bytes file);

// The named tensor; with an empty name the only one, whose name is filled in. Accepts F16, BF16 and F32.
Result<Tensor> read_safetensor(const std::vector<SafetensorsEntry>& entries, Bytes file, std::string& name);

}  // namespace nq::cli
