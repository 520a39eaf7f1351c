// The bytes of one cache entry; the format is final. Little-endian:
//   magic "NQCUBIN\0", u32 format, u32 header bytes, u64 total bytes, u64 metadata offset, u64 metadata length,
//   u64 cubin offset, u64 cubin length (offset 16-aligned), request key 16, compiler id 16, XXH3-128 over all other
//   bytes.
#pragma once

#include "cache/key.h"
#include "support/result.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nq {

struct Entry {
    RequestKey key{};
    CompilerId compiler{};
    std::string metadata;              // JSON; never parsed on a hit
    std::vector<unsigned char> cubin;  // an ELF file
};

inline constexpr std::uint32_t kEntryFormat = 1;
inline constexpr std::uint64_t kMaxEntryBytes = 64u << 20;

std::vector<unsigned char> encode_entry(const Entry& entry);
// Verifies lengths, magic, format, checksum and the cubin's ELF bounds. The message says which check failed.
Result<Entry> decode_entry(const unsigned char* bytes, std::size_t size);

}  // namespace nq
