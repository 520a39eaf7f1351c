#include "cache/key.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

namespace nq {
namespace {

static_assert(std::endian::native == std::endian::little, "keys are defined over little-endian lengths");

// A change of the encoding or of what the fields mean takes a new schema. Request keys and compiler ids never coincide.
constexpr std::string_view kRequestSchema = "normquant request 1";
constexpr std::string_view kCompilerSchema = "normquant compiler 1";

template <class T>
void append_integer(std::string& out, T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out.append(bytes, sizeof value);
}

void append_label(std::string& out, std::string_view text) {
    append_integer(out, static_cast<std::uint32_t>(text.size()));
    out.append(text);
}

// u32 length, schema, u64 number of fields; then for each u32 length, label, u64 length, value.
Digest128 digest_fields(std::string_view schema, const KeyFields& fields) {
    std::string text;
    append_label(text, schema);
    append_integer(text, static_cast<std::uint64_t>(fields.fields.size()));
    for (const auto& [label, value] : fields.fields) {
        append_label(text, label);
        append_integer(text, static_cast<std::uint64_t>(value.size()));
        text.append(value);
    }
    return digest128(text);
}

Digest128 canonical(XXH128_hash_t hash) {
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, hash);
    return std::bit_cast<Digest128>(bytes.digest);
}

}  // namespace

RequestKey request_key(const KeyFields& fields) { return digest_fields(kRequestSchema, fields); }
CompilerId compiler_id(const KeyFields& fields) { return digest_fields(kCompilerSchema, fields); }

Digest128 digest128(std::string_view bytes) { return canonical(XXH3_128bits(bytes.data(), bytes.size())); }

Digest128 digest128(std::initializer_list<std::string_view> parts) {
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_128bits_reset(&state);
    for (const std::string_view part : parts) XXH3_128bits_update(&state, part.data(), part.size());
    return canonical(XXH3_128bits_digest(&state));
}

}  // namespace nq
