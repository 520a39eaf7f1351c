// Small .npy and .safetensors files, built byte by byte and not with the tool's own writers.
#pragma once

#include "tensor.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nq::test {

using Blob = std::vector<unsigned char>;

// version 1 (2-byte header length), 2 or 3 (4-byte)
Blob npy(const std::string& dictionary, const Blob& data, unsigned char version = 1);
std::string npy_dictionary(const std::string& descr, const std::string& shape);
Blob safetensors(const std::string& header, const Blob& data);

// `count` values of a type in [-4, 4), different for each seed; fp16 and bf16 bits or floats.
Blob values(cli::Element element, std::size_t count, unsigned seed);

void save(const std::string& path, const Blob& bytes);
Blob read(const std::string& path);

}  // namespace nq::test
