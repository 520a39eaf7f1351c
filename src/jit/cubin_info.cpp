#include "jit/cubin_info.h"

#include "jit/source.h"

#include <elf.h>

#include <cstring>
#include <optional>
#include <string_view>

namespace nq {
namespace {

// .nv.info is a list of attributes: u8 format, u8 attribute, u16 value, or the size of the value that follows.
constexpr unsigned char kSizedValue = 0x04;
constexpr unsigned char kRegisterCount = 0x2f;  // u32 symbol, u32 registers

class Elf {
public:
    explicit Elf(ByteSpan file) : file_(file), header_(read_at<Elf64_Ehdr>(file, 0)) {
        if (header_ && (std::memcmp(header_->e_ident, ELFMAG, SELFMAG) != 0 ||
                        header_->e_ident[EI_CLASS] != ELFCLASS64 || header_->e_shentsize != sizeof(Elf64_Shdr))) {
            header_.reset();
        }
    }

    std::optional<Elf64_Shdr> section(std::uint64_t index) const {
        if (!header_ || index >= header_->e_shnum || header_->e_shoff > file_.size()) return std::nullopt;
        return read_at<Elf64_Shdr>(file_, header_->e_shoff + index * sizeof(Elf64_Shdr));
    }
    std::optional<Elf64_Shdr> section(std::string_view name) const {
        if (!header_) return std::nullopt;
        const ByteSpan names = bytes(section(header_->e_shstrndx));
        for (std::uint64_t i = 0; i < header_->e_shnum; ++i) {
            const auto candidate = section(i);
            if (candidate && text_at(names, candidate->sh_name) == name) return candidate;
        }
        return std::nullopt;
    }
    ByteSpan bytes(const std::optional<Elf64_Shdr>& section) const {
        if (!section || section->sh_type == SHT_NOBITS) return {};
        return slice(file_, section->sh_offset, section->sh_size).value_or(ByteSpan{});
    }

private:
    ByteSpan file_;
    std::optional<Elf64_Ehdr> header_;
};

unsigned registers_of(const Elf& elf, std::string_view kernel) {
    const auto info = elf.section(".nv.info");
    if (!info) return 0;
    const auto symbols = elf.section(info->sh_link);
    if (!symbols) return 0;
    const ByteSpan names = elf.bytes(elf.section(symbols->sh_link));

    const ByteSpan attributes = elf.bytes(info);
    for (std::uint64_t at = 0; at + 4 <= attributes.size();) {
        const unsigned char format = attributes[at], attribute = attributes[at + 1];
        const std::uint64_t size = format == kSizedValue ? *read_at<std::uint16_t>(attributes, at + 2) : 0;
        const auto value = slice(attributes, at + 4, size);
        if (!value) break;
        if (format == kSizedValue && attribute == kRegisterCount && size >= 8) {
            const auto symbol = read_at<Elf64_Sym>(
                elf.bytes(symbols), std::uint64_t{*read_at<std::uint32_t>(*value, 0)} * sizeof(Elf64_Sym));
            if (symbol && text_at(names, symbol->st_name) == kernel) return *read_at<std::uint32_t>(*value, 4);
        }
        at += 4 + size;
    }
    return 0;
}

// "Cuda compilation tools, release 13.0, V13.0.88" -> "V13.0.88".
std::string toolkit_of(std::string_view note) {
    constexpr std::string_view kBefore = ", V", kOfVersion = "0123456789.";
    const std::size_t found = note.find(kBefore);
    if (found == std::string_view::npos) return "";
    const std::string_view from = note.substr(found + kBefore.size());
    const std::string_view version = from.substr(0, from.find_first_not_of(kOfVersion));
    return version.empty() || version.size() > 32 ? "" : "V" + std::string(version);
}

}  // namespace

CubinInfo cubin_info(ByteSpan cubin) {
    const Elf elf(cubin);
    return {registers_of(elf, kKernelEntry), toolkit_of(as_text(elf.bytes(elf.section(".note.nv.tkinfo"))))};
}

}  // namespace nq
