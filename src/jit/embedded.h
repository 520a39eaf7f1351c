// The kernel headers, compiled into the library.
#pragma once

#include <span>

namespace nq {

struct EmbeddedHeader {
    const char* name;  // as it is included: "normquant/types.cuh"
    const char* text;
};

std::span<const EmbeddedHeader> embedded_headers();

// XXH3-128 of all names and texts, as 32 hex digits.
const char* embedded_digest();

}  // namespace nq
