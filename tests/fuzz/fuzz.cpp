#include "fuzz/fuzz.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace nq::fuzz {

void must(bool kept, const char* promise) {
    if (kept) return;
    std::fprintf(stderr, "broken promise: %s\n", promise);
    std::abort();
}

ExactCopy::ExactCopy(Bytes bytes) : block_(new unsigned char[bytes.size()]), size_(bytes.size()) {
    std::ranges::copy(bytes, block_.get());
}

}  // namespace nq::fuzz
