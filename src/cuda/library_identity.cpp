#include "cuda/nvrtc.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <span>

namespace nq {
namespace {

using Bytes = std::span<const unsigned char>;

// A file mapped for reading.
class MappedFile {
public:
    explicit MappedFile(const std::string& path) {
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            error_ = errno;
            return;
        }
        struct stat info = {};
        if (::fstat(fd, &info) != 0) {
            error_ = errno;
        } else if (info.st_size > 0) {
            void* mapped = ::mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
            if (mapped == MAP_FAILED) {
                error_ = errno;
            } else {
                bytes_ = {static_cast<const unsigned char*>(mapped), static_cast<std::size_t>(info.st_size)};
            }
        }
        ::close(fd);
    }
    ~MappedFile() {
        if (!bytes_.empty()) ::munmap(const_cast<unsigned char*>(bytes_.data()), bytes_.size());
    }
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    int error() const { return error_; }
    Bytes bytes() const { return bytes_; }

private:
    Bytes bytes_;
    int error_ = 0;
};

std::optional<Bytes> slice(Bytes bytes, std::uint64_t offset, std::uint64_t size) {
    if (offset > bytes.size() || size > bytes.size() - offset) return std::nullopt;
    return bytes.subspan(offset, size);
}

template <class T>
std::optional<T> read(Bytes bytes, std::uint64_t offset) {
    const auto part = slice(bytes, offset, sizeof(T));
    if (!part) return std::nullopt;
    T value;
    std::memcpy(&value, part->data(), sizeof value);
    return value;
}

std::string hex(Bytes bytes) {
    std::string text;
    for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
    return text;
}

std::optional<Bytes> build_id_of_notes(Bytes notes) {
    const auto padded = [](std::uint64_t size) { return (size + 3) / 4 * 4; };
    std::uint64_t at = 0;
    while (const auto note = read<Elf64_Nhdr>(notes, at)) {
        const std::uint64_t name_at = at + sizeof(Elf64_Nhdr);
        const std::uint64_t id_at = name_at + padded(note->n_namesz);
        const auto name = slice(notes, name_at, note->n_namesz);
        const auto id = slice(notes, id_at, note->n_descsz);
        if (!name || !id) break;
        if (note->n_type == NT_GNU_BUILD_ID && name->size() == 4 && std::memcmp(name->data(), "GNU", 4) == 0 &&
            !id->empty()) {
            return id;
        }
        at = id_at + padded(note->n_descsz);
    }
    return std::nullopt;
}

std::optional<Bytes> build_id(Bytes file) {
    const auto header = read<Elf64_Ehdr>(file, 0);
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
        header->e_phentsize != sizeof(Elf64_Phdr)) {
        return std::nullopt;
    }
    for (std::uint64_t i = 0; i < header->e_phnum; ++i) {
        const auto segment = read<Elf64_Phdr>(file, header->e_phoff + i * sizeof(Elf64_Phdr));
        if (!segment) break;
        if (segment->p_type != PT_NOTE) continue;
        const auto notes = slice(file, segment->p_offset, segment->p_filesz);
        if (!notes) continue;
        if (const auto id = build_id_of_notes(*notes)) return id;
    }
    return std::nullopt;
}

}  // namespace

Result<std::string> library_identity(const std::string& path) {
    const MappedFile file(path);
    if (file.error() != 0) {
        return Error{NQ_ERR_NVRTC_MISSING, fmt::format("cannot read {}: {}", path, std::strerror(file.error())), {}};
    }
    if (const auto id = build_id(file.bytes())) return "build-id:" + hex(*id);
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(file.bytes().data(), file.bytes().size()));
    return "xxh3:" + hex(digest.digest);
}

}  // namespace nq
