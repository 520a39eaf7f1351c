// Many entries in one file that can be copied anywhere. Little-endian:
//   magic "NQBUNDL\0", u32 format, u32 header bytes, u64 total bytes, u64 number of entries, u64 index offset,
//   XXH3-128 over the header before it and the index
//   index: per entry, sorted by request key, then compiler id: request key 16, compiler id 16, arch 16 (NUL-padded),
//   u64 offset (16-aligned), u64 bytes
//   the entries, each as a file of the cache has it, checksum included
// Read by pread from a descriptor that stays open, and not through a mapping: a bundle that is truncated under a
// mapping kills its reader by SIGBUS, where here it is a miss. The index is read once; an entry is verified each time.
#pragma once

#include "cache/entry.h"
#include "support/file.h"
#include "support/result.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace nq {

inline constexpr std::uint32_t kBundleFormat = 1;
inline constexpr std::uint64_t kMaxBundleEntries = 1u << 20;

struct BundleItem {
    RequestKey key{};
    CompilerId compiler{};
    std::string arch;  // as a target is named: 1 to 15 letters, digits and underscores
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};

// Verifies the header and the index of a bundle of `total_bytes`, of which `head` is the beginning that they take.
// bundle_head_bytes: how much that is, from the first kBundleHeaderBytes of the file.
inline constexpr std::size_t kBundleHeaderBytes = 56;
Result<std::uint64_t> bundle_head_bytes(const unsigned char* header, std::size_t size, std::uint64_t total_bytes);
Result<std::vector<BundleItem>> decode_bundle_head(const unsigned char* head, std::size_t size,
                                                   std::uint64_t total_bytes);

class Bundle {
public:
    // CACHE_IO where it cannot be read, CACHE_UNTRUSTED, INVALID_ARGUMENT for what is no sound bundle.
    static Result<Bundle> open(const FileOps& files, const std::string& path, bool shared);

    const std::string& path() const { return path_; }
    const std::vector<BundleItem>& items() const { return items_; }
    // The items of a request key, of whatever compiler.
    std::vector<const BundleItem*> find(const RequestKey& key) const;
    // Verified in full; the error says what is wrong. Thread-safe.
    Result<Entry> read(const BundleItem& item) const;

private:
    Bundle(const FileOps& files, std::string path, Descriptor fd, std::vector<BundleItem> items)
        : files_(&files), path_(std::move(path)), fd_(std::move(fd)), items_(std::move(items)) {}

    const FileOps* files_;
    std::string path_;
    Descriptor fd_;
    std::vector<BundleItem> items_;
};

// Writes a bundle of these items (whose offset and bytes need not be set), asking for each entry twice: an entry at a
// time is in memory. Appears under `path` whole or not at all; replaces what is there. Two items of one key and compiler
// are an error.
Outcome write_bundle(const FileOps& files, const std::string& path, std::vector<BundleItem> items,
                     const std::function<Result<Entry>(const BundleItem&)>& read);

}  // namespace nq
