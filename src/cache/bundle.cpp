#include "cache/bundle.h"

#include "cache/trust.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace nq {
namespace {

constexpr char kBundleMagic[8] = {'N', 'Q', 'B', 'U', 'N', 'D', 'L', '\0'};

struct BundleHeader {
    char magic[8];
    std::uint32_t format;
    std::uint32_t header_bytes;
    std::uint64_t total_bytes;
    std::uint64_t count;
    std::uint64_t index_offset;
    Digest128 checksum;
};
static_assert(sizeof(BundleHeader) == kBundleHeaderBytes && offsetof(BundleHeader, checksum) == 40);

struct IndexRow {
    RequestKey key;
    CompilerId compiler;
    char arch[16];
    std::uint64_t offset;
    std::uint64_t bytes;
};
static_assert(sizeof(IndexRow) == 64 && std::is_trivially_copyable_v<IndexRow>);

Error corrupt_bundle(std::string message) { return Error{NQ_ERR_INVALID_ARGUMENT, std::move(message), {}}; }

std::uint64_t aligned(std::uint64_t offset) { return (offset + 15) / 16 * 16; }

BundleHeader read_header(const unsigned char* bytes) {
    BundleHeader header;
    std::memcpy(&header, bytes, sizeof header);
    return header;
}

Digest128 bundle_checksum(std::string_view head) {
    return digest128({head.substr(0, offsetof(BundleHeader, checksum)), head.substr(sizeof(BundleHeader))});
}

// It becomes a directory's name on import.
bool names_an_arch(std::string_view text) {
    return !text.empty() && text.size() < sizeof(IndexRow::arch) && std::ranges::all_of(text, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    });
}

auto order_of(const BundleItem& item) { return std::tie(item.key, item.compiler); }

}  // namespace

Result<std::uint64_t> bundle_head_bytes(const unsigned char* bytes, std::size_t size, std::uint64_t total_bytes) {
    if (size < sizeof(BundleHeader))
        return corrupt_bundle(fmt::format("{} bytes, shorter than the header of {}", size, sizeof(BundleHeader)));
    const BundleHeader header = read_header(bytes);
    if (std::memcmp(header.magic, kBundleMagic, sizeof kBundleMagic) != 0) return corrupt_bundle("no normquant bundle: wrong magic");
    if (header.format != kBundleFormat)
        return corrupt_bundle(fmt::format("bundle format {}; this version reads {}", header.format, kBundleFormat));
    if (header.header_bytes != sizeof(BundleHeader) || header.index_offset != sizeof(BundleHeader))
        return corrupt_bundle(fmt::format("header of {} bytes and index at {}, not {}", header.header_bytes,
                                   header.index_offset, sizeof(BundleHeader)));
    if (header.total_bytes != total_bytes)
        return corrupt_bundle(fmt::format("{} bytes, but the header says {}", total_bytes, header.total_bytes));
    if (header.count > kMaxBundleEntries)
        return corrupt_bundle(fmt::format("{} entries, more than the limit of {}", header.count, kMaxBundleEntries));
    const std::uint64_t head = sizeof(BundleHeader) + header.count * sizeof(IndexRow);
    if (head > total_bytes) return corrupt_bundle(fmt::format("index of {} entries reaches beyond the file", header.count));
    return head;
}

Result<std::vector<BundleItem>> decode_bundle_head(const unsigned char* head, std::size_t size,
                                                   std::uint64_t total_bytes) {
    const Result<std::uint64_t> expected = bundle_head_bytes(head, size, total_bytes);
    if (!expected) return expected.error();
    if (*expected != size) return corrupt_bundle(fmt::format("{} bytes of header and index, not {}", size, *expected));
    const BundleHeader header = read_header(head);
    if (const Digest128 actual = bundle_checksum({reinterpret_cast<const char*>(head), size}); actual != header.checksum)
        return corrupt_bundle(fmt::format("checksum of the index {}, but the header says {}", hex(actual), hex(header.checksum)));

    std::vector<BundleItem> items;
    items.reserve(header.count);
    for (std::uint64_t i = 0; i < header.count; ++i) {
        IndexRow row;
        std::memcpy(&row, head + sizeof(BundleHeader) + i * sizeof row, sizeof row);
        BundleItem item{row.key, row.compiler, std::string(row.arch, strnlen(row.arch, sizeof row.arch)), row.offset,
                        row.bytes};
        if (!names_an_arch(item.arch)) return corrupt_bundle(fmt::format("entry {} of the index names no target", i));
        if (row.offset < size || row.offset % 16 != 0 || row.offset > total_bytes ||
            row.bytes > total_bytes - row.offset || row.bytes > kMaxEntryBytes)
            return corrupt_bundle(fmt::format("entry {} of the index, {} bytes at {}, is not within the file", i, row.bytes,
                                       row.offset));
        if (!items.empty() && !(order_of(items.back()) < order_of(item)))
            return corrupt_bundle(fmt::format("entry {} of the index is out of order", i));
        items.push_back(std::move(item));
    }
    return items;
}

Result<Bundle> Bundle::open(const FileOps& files, const std::string& path, bool shared) {
    OpenedFile file = open_regular(files, path);
    const auto named = [&](const Error& error) {
        return Error{error.status, fmt::format("bundle {}: {}", path, error.message), {}};
    };
    switch (file.status) {
        case OpenedFile::Status::absent:
            return Error{NQ_ERR_CACHE_IO, fmt::format("bundle {} does not exist", path), {}};
        case OpenedFile::Status::wrong_kind:
            return named(corrupt_bundle(file.fault));
        case OpenedFile::Status::failed:
            return Error{NQ_ERR_CACHE_IO, file.fault, {}};
        case OpenedFile::Status::opened:
            break;
    }
    if (Outcome trusted = trust_bundle(*file.info, path, shared); !trusted) return std::move(trusted).error();

    const auto total = static_cast<std::uint64_t>(file.info->st_size);
    auto head = read_up_to(files, file.fd.get(), std::min<std::uint64_t>(total, sizeof(BundleHeader)));
    if (!head) return io_error("read", path, errno);
    const Result<std::uint64_t> head_bytes = bundle_head_bytes(head->data(), head->size(), total);
    if (!head_bytes) return named(head_bytes.error());
    const auto index = read_up_to(files, file.fd.get(), *head_bytes - head->size());
    if (!index) return io_error("read", path, errno);
    head->insert(head->end(), index->begin(), index->end());
    Result<std::vector<BundleItem>> items = decode_bundle_head(head->data(), head->size(), total);
    if (!items) return named(items.error());
    return Bundle(files, path, std::move(file.fd), *std::move(items));
}

std::vector<const BundleItem*> Bundle::find(const RequestKey& key) const {
    std::vector<const BundleItem*> found;
    for (auto item = std::ranges::lower_bound(items_, key, {}, &BundleItem::key);
         item != items_.end() && item->key == key; ++item)
        found.push_back(&*item);
    return found;
}

Result<Entry> Bundle::read(const BundleItem& item) const {
    std::vector<unsigned char> bytes(item.bytes);
    std::size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t n = retry_interrupted([&] {
            return files_->pread(fd_.get(), bytes.data() + done, bytes.size() - done,
                                 static_cast<off_t>(item.offset + done));
        });
        if (n < 0) return io_error("read", path_, errno);
        if (n == 0) return corrupt_bundle(fmt::format("the file ends at {}", item.offset + done));
        done += static_cast<std::size_t>(n);
    }
    Result<Entry> entry = decode_entry(bytes.data(), bytes.size());
    if (entry && (entry->key != item.key || entry->compiler != item.compiler))
        return corrupt_bundle(fmt::format("it holds key {} of compiler {}", hex(entry->key), hex(entry->compiler)));
    return entry;
}

Outcome write_bundle(const FileOps& files, const std::string& path, std::vector<BundleItem> items,
                     const std::function<Result<Entry>(const BundleItem&)>& read) {
    std::ranges::sort(items, {}, order_of);
    if (items.size() > kMaxBundleEntries)
        return corrupt_bundle(fmt::format("{} entries; a bundle holds {} at most", items.size(), kMaxBundleEntries));
    const std::uint64_t head_bytes = sizeof(BundleHeader) + items.size() * sizeof(IndexRow);
    std::uint64_t end = aligned(head_bytes);
    const auto encoded = [&](const BundleItem& item) -> Result<std::vector<unsigned char>> {
        Result<Entry> entry = read(item);
        if (!entry) return std::move(entry).error();
        if (entry->key != item.key || entry->compiler != item.compiler)
            return corrupt_bundle(fmt::format("entry of key {} changed while the bundle was written", hex(item.key)));
        return encode_entry(*entry);
    };
    std::string head(head_bytes, '\0');
    for (std::size_t i = 0; i < items.size(); ++i) {
        BundleItem& item = items[i];
        if (i > 0 && !(order_of(items[i - 1]) < order_of(item)))
            return corrupt_bundle(fmt::format("two entries of key {} and one compiler", hex(item.key)));
        if (!names_an_arch(item.arch)) return corrupt_bundle(fmt::format("\"{}\" is not the name of a target", item.arch));
        const auto bytes = encoded(item);
        if (!bytes) return bytes.error();
        item.offset = end;
        item.bytes = bytes->size();
        end = aligned(item.offset + item.bytes);
        IndexRow row{item.key, item.compiler, {}, item.offset, item.bytes};
        item.arch.copy(row.arch, sizeof row.arch - 1);
        std::memcpy(head.data() + sizeof(BundleHeader) + i * sizeof row, &row, sizeof row);
    }
    BundleHeader header{{}, kBundleFormat, sizeof(BundleHeader), end, items.size(), sizeof(BundleHeader), {}};
    std::memcpy(header.magic, kBundleMagic, sizeof kBundleMagic);
    std::memcpy(head.data(), &header, sizeof header);
    header.checksum = bundle_checksum(head);
    std::memcpy(head.data(), &header, sizeof header);

    const std::string temp = fmt::format("{}.{}", path, unique_name());
    constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    Descriptor fd(files, retry_interrupted([&] { return files.open(temp.c_str(), kFlags, 0644); }));
    if (!fd.valid()) return io_error("create", temp, errno);
    const auto give_up = [&](Error error) {
        files.unlink(temp.c_str());
        return error;
    };
    std::uint64_t at = 0;
    const auto put = [&](std::string_view bytes) {
        const std::string padding(aligned(at + bytes.size()) - at - bytes.size(), '\0');
        at += bytes.size() + padding.size();
        return write_all(files, fd.get(), bytes) && write_all(files, fd.get(), padding);
    };
    if (!put(head)) return give_up(io_error("write", temp, errno));
    for (const BundleItem& item : items) {
        const auto bytes = encoded(item);
        if (!bytes) return give_up(bytes.error());
        if (bytes->size() != item.bytes)
            return give_up(corrupt_bundle(fmt::format("entry of key {} changed while the bundle was written", hex(item.key))));
        if (!put({reinterpret_cast<const char*>(bytes->data()), bytes->size()}))
            return give_up(io_error("write", temp, errno));
    }
    if (retry_interrupted([&] { return files.fsync(fd.get()); }) != 0) return give_up(io_error("fsync", temp, errno));
    if (fd.close() != 0 && errno != EINTR) return give_up(io_error("close", temp, errno));
    if (files.rename(temp.c_str(), path.c_str()) != 0) return give_up(io_error("rename to", path, errno));
    return Unit{};
}

}  // namespace nq
