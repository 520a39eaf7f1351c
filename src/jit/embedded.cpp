#include "jit/embedded.h"

#include "support/hex.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>

namespace nq {
namespace {

std::string digest_headers() {
    std::string all;
    for (const EmbeddedHeader& header : embedded_headers()) {
        // Lengths in front, so that moving text from one header to the next changes the digest.
        all += fmt::format("{} {} {} {}", std::strlen(header.name), header.name, std::strlen(header.text), header.text);
    }
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(all.data(), all.size()));
    return hex(digest.digest);
}

}  // namespace

const std::string& embedded_digest() {
    static const std::string digest = digest_headers();
    return digest;
}

}  // namespace nq
