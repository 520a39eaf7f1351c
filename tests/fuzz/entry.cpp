// A cache entry. The checksum and the total size are made right, so that the checks behind them are reached.
#include "cache/entry.h"

#include "fuzz/fuzz.h"
#include "unit/entry_samples.h"

#include <elf.h>

#include <cstring>

namespace nq::fuzz {
namespace {

// Where the format puts things, written down a second time.
constexpr std::size_t kTotal = 16, kChecksum = 88, kHeaderEnd = 104;

void seal(std::string& file) {
    if (file.size() < kHeaderEnd) return;
    const std::uint64_t total = file.size();
    std::memcpy(file.data() + kTotal, &total, sizeof total);
    const std::string_view all = file;
    const Digest128 digest = digest128({all.substr(0, kChecksum), all.substr(kHeaderEnd)});
    std::memcpy(file.data() + kChecksum, digest.data(), digest.size());
}

// What the driver, which is given no length, would read of tables and what they point at.
template <class Item>
bool tables_inside(const std::vector<unsigned char>& elf, std::uint64_t offset, std::size_t count, auto&& extent) {
    const auto inside = [&](std::uint64_t begin, std::uint64_t bytes) {
        return begin <= elf.size() && bytes <= elf.size() - begin;
    };
    if (!inside(offset, count * sizeof(Item))) return false;
    for (std::size_t i = 0; i < count; ++i) {
        Item item;
        std::memcpy(&item, elf.data() + offset + i * sizeof item, sizeof item);
        const auto [begin, bytes] = extent(item);
        if (!inside(begin, bytes)) return false;
    }
    return true;
}

bool cubin_inside(const std::vector<unsigned char>& elf) {
    using Extent = std::pair<std::uint64_t, std::uint64_t>;
    Elf64_Ehdr header;
    if (elf.size() < sizeof header) return false;
    std::memcpy(&header, elf.data(), sizeof header);
    const auto section = [](const Elf64_Shdr& s) {
        return s.sh_type == SHT_NOBITS ? Extent{0, 0} : Extent{s.sh_offset, s.sh_size};
    };
    const auto segment = [](const Elf64_Phdr& s) { return Extent{s.p_offset, s.p_filesz}; };
    return (header.e_shnum == 0 || tables_inside<Elf64_Shdr>(elf, header.e_shoff, header.e_shnum, section)) &&
           (header.e_phnum == 0 || tables_inside<Elf64_Phdr>(elf, header.e_phoff, header.e_phnum, segment));
}

bool decodes(Bytes file) {
    const auto entry = decode_entry(file.data(), file.size());
    if (!entry) {
        must(!entry.error().message.empty(), "a refusal says why");
        return false;
    }
    must(entry->metadata.size() + entry->cubin.size() <= file.size() - kHeaderEnd, "metadata and cubin do not overlap");
    must(cubin_inside(entry->cubin), "the cubin's tables lie inside it");
    const std::vector<unsigned char> again = encode_entry(*entry);
    const auto back = decode_entry(again.data(), again.size());
    must(back && test::same(*back, *entry), "what was decoded encodes to the same entry");
    return true;
}

}  // namespace

bool accepts(Bytes input) {
    decodes(input);
    std::string sealed(text_of(input));
    seal(sealed);
    return decodes(ExactCopy(bytes_of(sealed)).bytes());
}

std::vector<std::string> seeds() {
    std::vector<std::string> files;
    const auto add = [&files](const Entry& entry) { files.emplace_back(text_of(encode_entry(entry))); };
    add(test::sample_entry());
    Entry no_metadata = test::sample_entry();
    no_metadata.metadata.clear();
    add(no_metadata);
    Entry header_only = test::sample_entry();
    header_only.cubin.resize(sizeof(Elf64_Ehdr));
    Elf64_Ehdr header;
    std::memcpy(&header, header_only.cubin.data(), sizeof header);
    header.e_shnum = header.e_shstrndx = header.e_phnum = 0;
    header.e_shoff = header.e_phoff = 0;
    std::memcpy(header_only.cubin.data(), &header, sizeof header);
    add(header_only);
    return files;
}

}  // namespace nq::fuzz
