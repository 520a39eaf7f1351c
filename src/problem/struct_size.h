// struct_size of the C API's structs: newer callers are accepted as long as they use nothing new. Shorter structs are refused, so that a
// struct may grow only with the SONAME.
#pragma once

#include "support/result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace nq {

// Far above any struct to come; keeps a garbage struct_size from being read as a length.
inline constexpr std::uint32_t kMaxStructSize = 4096;

// `object` starts with its struct_size; `known` is the size that this library was built with.
inline Outcome check_struct_size(const char* type, const void* object, std::uint32_t known) {
    const auto* bytes = static_cast<const unsigned char*>(object);
    const std::uint32_t size = *static_cast<const std::uint32_t*>(object);
    if (size < known || size > kMaxStructSize) {
        return Error{NQ_ERR_STRUCT_SIZE, fmt::format("{}.struct_size is {}; accepted: {} (sizeof({})) to {}", type,
                                                     size, known, type, kMaxStructSize)};
    }
    const auto* tail = std::find_if(bytes + known, bytes + size, [](unsigned char byte) { return byte != 0; });
    if (tail != bytes + size) {
        return Error{NQ_ERR_STRUCT_SIZE,
                     fmt::format("{}.struct_size is {} and byte {} is {:#04x}; accepted: only zeros from byte {} on, "
                                 "which this library does not know",
                                 type, size, tail - bytes, *tail, known)};
    }
    return Unit{};
}

}  // namespace nq
