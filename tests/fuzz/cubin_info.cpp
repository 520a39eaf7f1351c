// What a cubin says about itself. An entry's check sees to the section table; the rest is read here.
#include "jit/cubin_info.h"

#include "fuzz/fuzz.h"
#include "jit/source.h"

#include <elf.h>

#include <algorithm>
#include <cctype>
#include <cstring>

namespace nq::fuzz {
namespace {

struct Section {
    std::string_view name;
    std::string bytes;
    std::uint32_t link = 0;
};

template <class T>
void append(std::string& file, const T& value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    file.append(bytes, sizeof value);
}

// Header, contents, section table; section 0 is null and the last one holds the names.
std::string elf_of(std::vector<Section> sections) {
    sections.insert(sections.begin(), Section{});
    sections.push_back({".shstrtab", {}});
    std::string names;
    std::vector<Elf64_Shdr> table;
    for (const Section& section : sections) {
        Elf64_Shdr row{};
        row.sh_name = static_cast<Elf64_Word>(names.size());
        row.sh_type = SHT_PROGBITS;
        row.sh_link = section.link;
        names.append(section.name).push_back('\0');
        table.push_back(row);
    }
    sections.back().bytes = names;
    std::string contents;
    for (std::size_t i = 0; i < sections.size(); ++i) {
        table[i].sh_offset = sizeof(Elf64_Ehdr) + contents.size();
        table[i].sh_size = sections[i].bytes.size();
        contents += sections[i].bytes;
    }
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_shoff = sizeof header + contents.size();
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = static_cast<Elf64_Half>(table.size());
    header.e_shstrndx = static_cast<Elf64_Half>(table.size() - 1);
    std::string file;
    append(file, header);
    file += contents;
    for (const Elf64_Shdr& row : table) append(file, row);
    return file;
}

std::string attribute(unsigned char format, unsigned char name, const std::string& value) {
    std::string bytes = {static_cast<char>(format), static_cast<char>(name)};
    append(bytes, static_cast<std::uint16_t>(value.size()));
    return bytes + value;
}

std::string registers_of(std::uint32_t symbol, std::uint32_t registers) {
    std::string value;
    append(value, symbol);
    append(value, registers);
    return attribute(0x04, 0x2f, value);
}

}  // namespace

bool accepts(Bytes input) {
    const CubinInfo info = cubin_info(input);
    must(info.toolkit.size() <= 33, "a version is short");
    must(std::ranges::all_of(info.toolkit, [](char c) { return c == 'V' || c == '.' || (c >= '0' && c <= '9'); }),
         "and holds nothing else");
    must(info.toolkit.empty() || text_of(input).find(info.toolkit.substr(1)) != std::string_view::npos,
         "it is the file's own");
    return info.registers != 0 || !info.toolkit.empty();
}

std::vector<std::string> seeds() {
    const std::string symbol_names = '\0' + std::string(kKernelEntry) + '\0';
    std::string symbols;
    append(symbols, Elf64_Sym{});
    Elf64_Sym kernel{};
    kernel.st_name = 1;
    append(symbols, kernel);
    const std::string note = "Cuda compilation tools, release 13.0, V13.0.88";
    return {
        // Sections: null, names of the symbols, symbols, .nv.info, note.
        elf_of({{".strtab", symbol_names},
                {".symtab", symbols, 1},
                {".nv.info", attribute(0x03, 0x50, {}) + registers_of(0, 255) + registers_of(1, 40), 2},
                {".note.nv.tkinfo", note}}),
        elf_of({{".note.nv.tkinfo", note}}),
        elf_of({{".strtab", symbol_names}, {".symtab", symbols, 1}, {".nv.info", registers_of(1, 40), 2}}),
    };
}

}  // namespace nq::fuzz
