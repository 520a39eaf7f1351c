#include "cache/entry.h"

#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "support/catch.h"
#include "unit/cache_fixture.h"
#include "unit/entry_samples.h"

namespace {

using nq::decode_entry;
using nq::encode_entry;
using nq::Entry;
using nq::Result;
using nq::test::same;
using nq::test::sample_cubin;
using nq::test::sample_entry;

using Bytes = std::vector<unsigned char>;

// Where the format puts things, written down a second time.
constexpr std::size_t kFormat = 8, kHeaderBytes = 12, kTotal = 16, kMetadataOffset = 24, kMetadataLength = 32,
                      kCubinOffset = 40, kCubinLength = 48, kKey = 56, kCompiler = 72, kChecksum = 88, kHeaderEnd = 104;

// From a block of exactly that size, so that a sanitizer sees a read beyond it.
Result<Entry> decode(const Bytes& bytes) {
    const auto exact = std::make_unique<unsigned char[]>(bytes.size());
    if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
    return decode_entry(exact.get(), bytes.size());
}

template <class T>
void put(Bytes& bytes, std::size_t offset, T value) {
    REQUIRE(offset + sizeof value <= bytes.size());
    std::memcpy(bytes.data() + offset, &value, sizeof value);
}

template <class T>
T get(const Bytes& bytes, std::size_t offset) {
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

// Makes the checksum right again, so that the other checks are reached.
void seal(Bytes& bytes) {
    const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const auto digest = nq::digest128({all.substr(0, kChecksum), all.substr(kHeaderEnd)});
    std::memcpy(bytes.data() + kChecksum, digest.data(), digest.size());
}

std::string fault(const Result<Entry>& result) { return result ? "none" : result.error().message; }

}  // namespace

TEST_CASE("an entry comes back as it was") {
    for (const std::size_t metadata : {0, 1, 7, 8, 9, 15, 16, 17, 4096}) {
        Entry entry = sample_entry();
        entry.metadata.assign(metadata, 'm');
        const Bytes bytes = encode_entry(entry);
        const Result<Entry> back = decode(bytes);
        REQUIRE(back.ok());
        CHECK(same(*back, entry));
        CHECK(encode_entry(*back) == bytes);
    }
}

TEST_CASE("the layout of the format") {
    const Entry entry = sample_entry();
    const Bytes bytes = encode_entry(entry);
    CHECK(std::memcmp(bytes.data(), "NQCUBIN\0", 8) == 0);
    CHECK(get<std::uint32_t>(bytes, kFormat) == 1);
    CHECK(get<std::uint32_t>(bytes, kHeaderBytes) == kHeaderEnd);
    CHECK(get<std::uint64_t>(bytes, kTotal) == bytes.size());
    CHECK(get<std::uint64_t>(bytes, kMetadataOffset) == kHeaderEnd);
    CHECK(get<std::uint64_t>(bytes, kMetadataLength) == entry.metadata.size());
    CHECK(get<std::uint64_t>(bytes, kCubinOffset) == 144);  // 104 + 25, rounded up to 16
    CHECK(get<std::uint64_t>(bytes, kCubinLength) == entry.cubin.size());
    CHECK(std::memcmp(bytes.data() + kKey, entry.key.data(), 16) == 0);
    CHECK(std::memcmp(bytes.data() + kCompiler, entry.compiler.data(), 16) == 0);
    CHECK(bytes.size() == 144 + entry.cubin.size());
}

TEST_CASE("a flipped bit anywhere is found") {
    const Bytes good = encode_entry(sample_entry());
    for (std::size_t i = 0; i < good.size(); ++i) {
        for (int bit = 0; bit < 8; ++bit) {
            Bytes bytes = good;
            bytes[i] = static_cast<unsigned char>(bytes[i] ^ (1 << bit));
            INFO("byte " << i << ", bit " << bit);
            REQUIRE_FALSE(decode(bytes).ok());
        }
    }
}

TEST_CASE("every truncation and every extension is found") {
    const Bytes good = encode_entry(sample_entry());
    for (std::size_t size = 0; size < good.size(); ++size) {
        INFO("size " << size);
        REQUIRE_FALSE(decode(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size))).ok());
        if (size < kHeaderEnd) continue;
        Bytes honest(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
        put<std::uint64_t>(honest, kTotal, size);
        seal(honest);
        REQUIRE_FALSE(decode(honest).ok());
    }
    for (const std::size_t extra : {1, 16, 4096}) {
        Bytes longer = good;
        longer.resize(good.size() + extra);
        CHECK_FALSE(decode(longer).ok());
    }
    CHECK_FALSE(decode_entry(nullptr, 0).ok());
}

namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kSizesAndOffsets[] = {kTotal, kMetadataOffset, kMetadataLength, kCubinOffset, kCubinLength};

std::vector<std::uint64_t> lies_about(const Bytes& good, std::size_t field) {
    const auto right = get<std::uint64_t>(good, field);
    std::vector<std::uint64_t> lies = {0, 1, 15, 16, 96, 103, good.size() - 1, good.size(), good.size() + 1};
    for (int shift = 8; shift < 64; ++shift) lies.push_back(std::uint64_t{1} << shift);
    for (std::uint64_t k = 0; k <= 256; ++k) lies.push_back(kMax - k);
    for (const std::uint64_t k : {1, 8, 16}) lies.insert(lies.end(), {right + k, right - k});
    std::erase(lies, right);
    return lies;
}

Bytes with_lie(const Bytes& good, std::size_t field, std::uint64_t lie) {
    Bytes bytes = good;
    put(bytes, field, lie);
    seal(bytes);
    return bytes;
}

}  // namespace

TEST_CASE("sizes and offsets that lie are found, under a right checksum too") {
    const Bytes good = encode_entry(sample_entry());
    for (const std::size_t field : kSizesAndOffsets) {
        for (const std::uint64_t lie : lies_about(good, field)) {
            const Result<Entry> result = decode(with_lie(good, field, lie));
            INFO("field at " << field << " = " << lie << ": " << fault(result));
            // Metadata has no inner structure: a shorter piece of it is well-formed.
            if (result.ok()) {
                REQUIRE((field == kMetadataLength || field == kMetadataOffset));
                REQUIRE(result->metadata.size() <= good.size() - kHeaderEnd);
            }
        }
    }
    // Two lies that cancel in wrapping arithmetic.
    Bytes wrapping = good;
    put<std::uint64_t>(wrapping, kCubinOffset, kMax - 15);
    put<std::uint64_t>(wrapping, kCubinLength, 16 + good.size());
    seal(wrapping);
    CHECK_FALSE(decode(wrapping).ok());
}

TEST_CASE("sizes that lie cost no memory") {
    const Bytes good = encode_entry(sample_entry());
    CHECK(nq::test::within_memory(4 << 20, [&] {
        for (const std::size_t field : kSizesAndOffsets)
            for (const std::uint64_t lie : lies_about(good, field)) (void)decode(with_lie(good, field, lie));
        return decode(good).ok();
    }));
    // The bound itself: what takes more does not pass.
    CHECK(nq::test::within_memory(4 << 20, [] { return Bytes(1 << 20).size() == 1 << 20; }));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    CHECK_FALSE(nq::test::within_memory(4 << 20, [] { return Bytes(8 << 20).size() == 8 << 20; }));
#endif
}

TEST_CASE("what is wrong is named") {
    const Bytes good = encode_entry(sample_entry());
    const auto changed = [&](std::size_t offset, auto value) {
        Bytes bytes = good;
        put(bytes, offset, value);
        seal(bytes);
        return fault(decode(bytes));
    };
    CHECK(changed(0, 'X').find("magic") != std::string::npos);
    CHECK(changed(kFormat, std::uint32_t{2}).find("format 2") != std::string::npos);
    CHECK(changed(kHeaderBytes, std::uint32_t{112}).find("112") != std::string::npos);
    CHECK(changed(kTotal, std::uint64_t{77}).find("77") != std::string::npos);
    CHECK(changed(kMetadataOffset, std::uint64_t{88}).find("metadata") != std::string::npos);
    CHECK(changed(kMetadataLength, std::uint64_t{60}).find("overlap") != std::string::npos);
    CHECK(changed(kCubinOffset, std::uint64_t{96}).find("cubin at 96") != std::string::npos);
    CHECK(changed(kCubinLength, std::uint64_t{1} << 40).find("cubin at 144") != std::string::npos);
    CHECK(changed(kCubinOffset, std::uint64_t{136}).find("16") != std::string::npos);

    Bytes unsealed = good;
    unsealed.back() ^= 1;
    CHECK(fault(decode(unsealed)).find("checksum") != std::string::npos);
    const Bytes huge(nq::kMaxEntryBytes + 1);
    CHECK(fault(decode(huge)).find("limit of 67108864") != std::string::npos);
}

TEST_CASE("a cubin whose tables point outside is refused") {
    const auto verdict = [](const Bytes& cubin) {
        Entry entry = sample_entry();
        entry.cubin = cubin;
        return fault(decode(encode_entry(entry)));
    };
    const Bytes good = sample_cubin();
    REQUIRE(verdict(good) == "none");
    const auto with = [&](std::size_t offset, auto value) {
        Bytes cubin = good;
        put(cubin, offset, value);
        return verdict(cubin);
    };
    CHECK(verdict({}) != "none");
    CHECK(verdict(Bytes(good.begin(), good.begin() + 63)) != "none");
    for (std::size_t size = 64; size < good.size(); ++size)
        REQUIRE(verdict(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size))) != "none");

    CHECK(with(0, '\x7e').find("magic") != std::string::npos);
    CHECK(with(EI_CLASS, char{ELFCLASS32}).find("ELF64") != std::string::npos);
    CHECK(with(EI_DATA, char{ELFDATA2MSB}).find("little-endian") != std::string::npos);
    const auto header = get<Elf64_Ehdr>(good, 0);
    for (const std::uint64_t far : {std::uint64_t{good.size()}, std::uint64_t{good.size() - 1}, ~std::uint64_t{0},
                                    ~std::uint64_t{0} - 63, std::uint64_t{1} << 63}) {
        INFO("offset " << far);
        CHECK(with(offsetof(Elf64_Ehdr, e_shoff), far) != "none");
        CHECK(with(offsetof(Elf64_Ehdr, e_phoff), far) != "none");
        CHECK(with(header.e_shoff + sizeof(Elf64_Shdr) + offsetof(Elf64_Shdr, sh_offset), far) != "none");
        CHECK(with(header.e_shoff + sizeof(Elf64_Shdr) + offsetof(Elf64_Shdr, sh_size), far) != "none");
        CHECK(with(header.e_phoff + offsetof(Elf64_Phdr, p_offset), far) != "none");
        CHECK(with(header.e_phoff + offsetof(Elf64_Phdr, p_filesz), far) != "none");
    }
    CHECK(with(offsetof(Elf64_Ehdr, e_shnum), std::uint16_t{0xffff}) != "none");
    CHECK(with(offsetof(Elf64_Ehdr, e_shnum), std::uint16_t{0}) != "none");
    CHECK(with(offsetof(Elf64_Ehdr, e_phnum), std::uint16_t{0xffff}) != "none");
    CHECK(with(offsetof(Elf64_Ehdr, e_shentsize), std::uint16_t{0}) != "none");
    CHECK(with(offsetof(Elf64_Ehdr, e_phentsize), std::uint16_t{8}) != "none");
    CHECK(with(offsetof(Elf64_Ehdr, e_shstrndx), std::uint16_t{3}) != "none");

    // A section without bytes in the file may be larger than the file: shared memory is one.
    Bytes no_bits = good;
    put<std::uint32_t>(no_bits, header.e_shoff + sizeof(Elf64_Shdr) + offsetof(Elf64_Shdr, sh_type), SHT_NOBITS);
    put<std::uint64_t>(no_bits, header.e_shoff + sizeof(Elf64_Shdr) + offsetof(Elf64_Shdr, sh_size), 1 << 20);
    CHECK(verdict(no_bits) == "none");
}

// Mutations with a right checksum reach the parser behind it. Whatever comes of them, it stays inside the entry (under
// the address sanitizer) and what is accepted encodes to an entry again.
TEST_CASE("sealed mutations are refused or well-formed") {
    const Bytes good = encode_entry(sample_entry());
    std::uint64_t state = 0x9e3779b97f4a7c15;
    const auto next = [&state] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    };
    std::size_t accepted = 0, refused = 0;
    for (int round = 0; round < 20000; ++round) {
        Bytes bytes = good;
        for (std::uint64_t edits = 1 + next() % 3; edits > 0; --edits) {
            const std::size_t at = next() % bytes.size();
            static constexpr unsigned char kValues[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
            bytes[at] = next() % 2 ? static_cast<unsigned char>(next()) : kValues[next() % 5];
        }
        if (next() % 8 == 0) bytes.resize(next() % (bytes.size() + 1));
        if (bytes.size() >= kHeaderEnd) seal(bytes);
        const Result<Entry> result = decode(bytes);
        result ? ++accepted : ++refused;
        if (result) REQUIRE(decode(encode_entry(*result)).ok());
    }
    CHECK(accepted > 0);
    CHECK(refused > 0);
}
