// Entries for the tests of the entry format and of the store: a small ELF file in the place of a cubin.
#pragma once

#include <elf.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cache/entry.h"

namespace nq::test {

// Header, 64 bytes of "code", the section name table, three section headers (null, code, names) and one program header.
inline std::vector<unsigned char> sample_cubin(unsigned char fill = 0x5a) {
    constexpr std::size_t kCode = 64, kNames = 16;
    struct {
        Elf64_Ehdr header;
        unsigned char code[kCode];
        char names[kNames];
        Elf64_Shdr sections[3];
        Elf64_Phdr segment;
    } file{};
    using File = decltype(file);
    std::memcpy(file.header.e_ident, ELFMAG, SELFMAG);
    file.header.e_ident[EI_CLASS] = ELFCLASS64;
    file.header.e_ident[EI_DATA] = ELFDATA2LSB;
    file.header.e_ident[EI_VERSION] = EV_CURRENT;
    file.header.e_type = ET_EXEC;
    file.header.e_machine = EM_CUDA;
    file.header.e_ehsize = sizeof(Elf64_Ehdr);
    file.header.e_shoff = offsetof(File, sections);
    file.header.e_shentsize = sizeof(Elf64_Shdr);
    file.header.e_shnum = 3;
    file.header.e_shstrndx = 2;
    file.header.e_phoff = offsetof(File, segment);
    file.header.e_phentsize = sizeof(Elf64_Phdr);
    file.header.e_phnum = 1;
    std::memset(file.code, fill, kCode);
    std::memcpy(file.names, "\0.text\0.names", 14);
    file.sections[1].sh_type = SHT_PROGBITS;
    file.sections[1].sh_offset = offsetof(File, code);
    file.sections[1].sh_size = kCode;
    file.sections[2].sh_type = SHT_STRTAB;
    file.sections[2].sh_offset = offsetof(File, names);
    file.sections[2].sh_size = kNames;
    file.segment.p_type = PT_LOAD;
    file.segment.p_offset = offsetof(File, code);
    file.segment.p_filesz = kCode;
    file.segment.p_memsz = kCode;
    const auto* bytes = reinterpret_cast<const unsigned char*>(&file);
    return {bytes, bytes + sizeof file};
}

inline Entry sample_entry(std::string_view name = "a", unsigned char fill = 0x5a) {
    KeyFields fields;
    fields.add("name", std::string(name));
    return Entry{request_key(fields), compiler_id(fields), R"({"problem":"hidden=4096"})", sample_cubin(fill)};
}

inline bool same(const Entry& a, const Entry& b) {
    return a.key == b.key && a.compiler == b.compiler && a.metadata == b.metadata && a.cubin == b.cubin;
}

}  // namespace nq::test
