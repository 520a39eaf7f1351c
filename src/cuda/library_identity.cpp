#include "cuda/input_file.h"
#include "cuda/nvrtc_file.h"
#include "support/hex.h"

#include <elf.h>

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

namespace nq {
namespace {

constexpr std::uint64_t kMaxNoteBytes = 1 << 20;
constexpr std::uint64_t kReadBytes = 1 << 20;

template <class T>
std::optional<T> read_from(const InputFile& file, std::uint64_t offset) {
    unsigned char bytes[sizeof(T)];
    return file.read(offset, bytes) ? read_at<T>(bytes, 0) : std::nullopt;
}

std::optional<ByteSpan> build_id_of_notes(ByteSpan notes) {
    const auto padded = [](std::uint64_t size) { return (size + 3) / 4 * 4; };
    std::uint64_t at = 0;
    while (const auto note = read_at<Elf64_Nhdr>(notes, at)) {
        const std::uint64_t name_at = at + sizeof(Elf64_Nhdr);
        const std::uint64_t id_at = name_at + padded(note->n_namesz);
        const auto name = slice(notes, name_at, note->n_namesz);
        const auto id = slice(notes, id_at, note->n_descsz);
        if (!name || !id) break;
        if (note->n_type == NT_GNU_BUILD_ID && as_text(*name) == std::string_view("GNU", 4) && !id->empty()) return id;
        at = id_at + padded(note->n_descsz);
    }
    return std::nullopt;
}

struct Range {
    std::uint64_t offset, size;
};

// By segment, then by section: a tool that sets a RUNPATH, as those that repair wheels do, moves the section and leaves
// the segment pointing at nothing.
std::vector<Range> notes_of(const InputFile& file) {
    std::vector<Range> notes;
    const auto header = read_from<Elf64_Ehdr>(file, 0);
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64) {
        return notes;
    }
    for (std::uint64_t i = 0; i < header->e_phnum && header->e_phentsize == sizeof(Elf64_Phdr); ++i) {
        const auto segment = read_from<Elf64_Phdr>(file, header->e_phoff + i * sizeof(Elf64_Phdr));
        if (!segment) break;
        if (segment->p_type == PT_NOTE) notes.push_back({segment->p_offset, segment->p_filesz});
    }
    for (std::uint64_t i = 0; i < header->e_shnum && header->e_shentsize == sizeof(Elf64_Shdr); ++i) {
        const auto section = read_from<Elf64_Shdr>(file, header->e_shoff + i * sizeof(Elf64_Shdr));
        if (!section) break;
        if (section->sh_type == SHT_NOTE) notes.push_back({section->sh_offset, section->sh_size});
    }
    return notes;
}

// "" if it has none.
std::string build_id(const InputFile& file) {
    for (const Range& range : notes_of(file)) {
        const auto notes = file.read(range.offset, range.size, kMaxNoteBytes);
        if (!notes) continue;
        if (const auto id = build_id_of_notes(*notes)) return hex(*id);
    }
    return "";
}

// nullopt: the file is shorter than it was.
std::optional<std::string> digest(const InputFile& file) {
    const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
    if (!state) throw std::bad_alloc();
    XXH3_128bits_reset(state.get());
    std::vector<unsigned char> bytes;
    for (std::uint64_t at = 0; at < file.size(); at += bytes.size()) {
        bytes.resize(std::min(kReadBytes, file.size() - at));
        if (!file.read(at, bytes)) return std::nullopt;
        XXH3_128bits_update(state.get(), bytes.data(), bytes.size());
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state.get()));
    return hex(canonical.digest);
}

}  // namespace

Result<std::string> library_identity(const std::string& path) {
    const InputFile file(path);
    const auto unreadable = [&](const char* why) {
        return Error{NQ_ERR_NVRTC_MISSING, fmt::format("cannot read {}: {}", path, why), {}};
    };
    if (file.error() != 0) return unreadable(std::strerror(file.error()));
    if (const std::string id = build_id(file); !id.empty()) return "build-id:" + id;
    const std::optional<std::string> bytes = digest(file);
    if (!bytes) return unreadable("it changed while it was read");
    return "xxh3:" + *bytes;
}

}  // namespace nq
