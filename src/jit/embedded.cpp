#include "jit/embedded.h"

#include "support/hex.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <cstring>
#include <string>

namespace nq {
namespace {

using Digest = std::array<char, 33>;

Digest digest_headers() {
    std::string all;
    for (const EmbeddedHeader& header : embedded_headers()) {
        // Lengths in front, so that moving text from one header to the next changes the digest.
        all += fmt::format("{} {} {} {}", std::strlen(header.name), header.name, std::strlen(header.text), header.text);
    }
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(all.data(), all.size()));
    Digest text{};
    hex(digest.digest).copy(text.data(), text.size() - 1);
    return text;
}

}  // namespace

const char* embedded_digest() {
    // Nothing that exit() destroys: threads may still compile then, and destructors of the program come later.
    static const Digest digest = digest_headers();
    return digest.data();
}

}  // namespace nq
