// Identity of a cached kernel. The request key says what was asked for and needs no NVRTC; the compiler id says what
// made it. Fields are labelled and length-prefixed, so that no two field lists hash the same bytes.
#pragma once

#include "support/hex.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nq {

struct KeyFields {
    std::vector<std::pair<std::string, std::string>> fields;
    void add(std::string label, std::string value) { fields.emplace_back(std::move(label), std::move(value)); }
};

using Digest128 = std::array<unsigned char, 16>;
using RequestKey = Digest128;
using CompilerId = Digest128;

// Order and repetition of fields matter.
RequestKey request_key(const KeyFields& fields);
CompilerId compiler_id(const KeyFields& fields);

// XXH3-128 of the bytes, or of the parts one after the other, in canonical (big-endian) byte order.
Digest128 digest128(std::string_view bytes);
Digest128 digest128(std::initializer_list<std::string_view> parts);

}  // namespace nq
