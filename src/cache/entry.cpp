#include "cache/entry.h"

#include <elf.h>
#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>

namespace nq {
namespace {

static_assert(std::endian::native == std::endian::little, "entries and cubins are little-endian and read in place");

constexpr char kMagic[8] = {'N', 'Q', 'C', 'U', 'B', 'I', 'N', '\0'};

struct Header {
    char magic[8];
    std::uint32_t format;
    std::uint32_t header_bytes;
    std::uint64_t total_bytes;
    std::uint64_t metadata_offset;
    std::uint64_t metadata_bytes;
    std::uint64_t cubin_offset;
    std::uint64_t cubin_bytes;
    RequestKey key;
    CompilerId compiler;
    Digest128 checksum;
};
static_assert(sizeof(Header) == 104 && offsetof(Header, checksum) == 88 && std::is_trivially_copyable_v<Header>);

// [offset, offset + bytes) inside [0, size), without overflow.
bool inside(std::uint64_t offset, std::uint64_t bytes, std::uint64_t size) {
    return offset <= size && bytes <= size - offset;
}

Digest128 checksum_of(std::string_view file) {
    return digest128({file.substr(0, offsetof(Header, checksum)), file.substr(sizeof(Header))});
}

template <class T>
T read_at(std::string_view bytes, std::uint64_t offset) {
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

// The driver is given the cubin as a pointer without a length, so whatever its tables point at must lie inside.
std::optional<std::string> elf_fault(std::string_view elf) {
    if (elf.size() < sizeof(Elf64_Ehdr)) return fmt::format("cubin of {} bytes is no ELF file", elf.size());
    const auto header = read_at<Elf64_Ehdr>(elf, 0);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return "cubin does not start with the ELF magic";
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB)
        return "cubin is not a little-endian ELF64 file";
    if (header.e_shnum != 0) {
        if (header.e_shentsize != sizeof(Elf64_Shdr))
            return fmt::format("ELF section headers of {} bytes, not {}", header.e_shentsize, sizeof(Elf64_Shdr));
        if (!inside(header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr), elf.size()))
            return "ELF section headers reach beyond the cubin";
        if (header.e_shstrndx >= header.e_shnum) return "ELF section name table does not exist";
        for (unsigned i = 0; i < header.e_shnum; ++i) {
            const auto section = read_at<Elf64_Shdr>(elf, header.e_shoff + i * sizeof(Elf64_Shdr));
            if (section.sh_type != SHT_NOBITS && !inside(section.sh_offset, section.sh_size, elf.size()))
                return fmt::format("ELF section {} reaches beyond the cubin", i);
        }
    } else if (header.e_shoff != 0) {
        return "ELF section header table without entries";
    }
    if (header.e_phnum != 0) {
        if (header.e_phentsize != sizeof(Elf64_Phdr))
            return fmt::format("ELF program headers of {} bytes, not {}", header.e_phentsize, sizeof(Elf64_Phdr));
        if (!inside(header.e_phoff, header.e_phnum * sizeof(Elf64_Phdr), elf.size()))
            return "ELF program headers reach beyond the cubin";
        for (unsigned i = 0; i < header.e_phnum; ++i) {
            const auto segment = read_at<Elf64_Phdr>(elf, header.e_phoff + i * sizeof(Elf64_Phdr));
            if (!inside(segment.p_offset, segment.p_filesz, elf.size()))
                return fmt::format("ELF segment {} reaches beyond the cubin", i);
        }
    }
    return std::nullopt;
}

Error corrupt(std::string message) { return Error{NQ_ERR_INVALID_ARGUMENT, std::move(message), {}}; }

}  // namespace

std::vector<unsigned char> encode_entry(const Entry& entry) {
    Header header{};
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    header.format = kEntryFormat;
    header.header_bytes = sizeof(Header);
    header.metadata_offset = sizeof(Header);
    header.metadata_bytes = entry.metadata.size();
    header.cubin_offset = (header.metadata_offset + header.metadata_bytes + 15) / 16 * 16;
    header.cubin_bytes = entry.cubin.size();
    header.total_bytes = header.cubin_offset + header.cubin_bytes;
    header.key = entry.key;
    header.compiler = entry.compiler;

    std::vector<unsigned char> file(header.total_bytes);
    const auto put = [&file](std::uint64_t offset, const void* bytes, std::size_t size) {
        if (size != 0) std::memcpy(file.data() + offset, bytes, size);
    };
    put(0, &header, sizeof header);
    put(header.metadata_offset, entry.metadata.data(), entry.metadata.size());
    put(header.cubin_offset, entry.cubin.data(), entry.cubin.size());
    const Digest128 checksum = checksum_of({reinterpret_cast<const char*>(file.data()), file.size()});
    put(offsetof(Header, checksum), checksum.data(), checksum.size());
    return file;
}

Result<Entry> decode_entry(const unsigned char* bytes, std::size_t size) {
    const std::string_view file(reinterpret_cast<const char*>(bytes), size);
    if (size < sizeof(Header))
        return corrupt(fmt::format("{} bytes, shorter than the header of {}", size, sizeof(Header)));
    if (size > kMaxEntryBytes) return corrupt(fmt::format("{} bytes, more than the limit of {}", size, kMaxEntryBytes));
    const auto header = read_at<Header>(file, 0);
    if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return corrupt("no normquant entry: wrong magic");
    if (header.format != kEntryFormat)
        return corrupt(fmt::format("entry format {}; this version reads {}", header.format, kEntryFormat));
    if (header.header_bytes != sizeof(Header))
        return corrupt(fmt::format("header of {} bytes, not {}", header.header_bytes, sizeof(Header)));
    if (header.total_bytes != size)
        return corrupt(fmt::format("{} bytes, but the header says {}", size, header.total_bytes));
    if (header.metadata_offset < sizeof(Header) || !inside(header.metadata_offset, header.metadata_bytes, size))
        return corrupt(fmt::format("metadata at {}, {} bytes, is outside the entry's body", header.metadata_offset,
                                   header.metadata_bytes));
    if (header.cubin_offset < sizeof(Header) || !inside(header.cubin_offset, header.cubin_bytes, size))
        return corrupt(
            fmt::format("cubin at {}, {} bytes, is outside the entry's body", header.cubin_offset, header.cubin_bytes));
    if (header.cubin_offset % 16 != 0)
        return corrupt(fmt::format("cubin offset {} is not a multiple of 16", header.cubin_offset));
    if (header.metadata_offset < header.cubin_offset + header.cubin_bytes &&
        header.cubin_offset < header.metadata_offset + header.metadata_bytes)
        return corrupt("metadata and cubin overlap");
    if (const Digest128 actual = checksum_of(file); actual != header.checksum)
        return corrupt(fmt::format("checksum {}, but the header says {}", hex(actual), hex(header.checksum)));
    const std::string_view cubin = file.substr(header.cubin_offset, header.cubin_bytes);
    if (std::optional<std::string> fault = elf_fault(cubin)) return corrupt(std::move(*fault));

    Entry entry;
    entry.key = header.key;
    entry.compiler = header.compiler;
    entry.metadata = file.substr(header.metadata_offset, header.metadata_bytes);
    entry.cubin.assign(cubin.begin(), cubin.end());
    return entry;
}

}  // namespace nq
