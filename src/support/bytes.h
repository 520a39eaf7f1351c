// Reads of files that may hold anything. Offsets and sizes come from the file: none leads out of it.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

namespace nq {

using ByteSpan = std::span<const unsigned char>;

inline std::optional<ByteSpan> slice(ByteSpan bytes, std::uint64_t offset, std::uint64_t size) {
    if (offset > bytes.size() || size > bytes.size() - offset) return std::nullopt;
    return bytes.subspan(offset, size);
}

template <class T>
std::optional<T> read_at(ByteSpan bytes, std::uint64_t offset) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto part = slice(bytes, offset, sizeof(T));
    if (!part) return std::nullopt;
    T value;
    std::memcpy(&value, part->data(), sizeof value);
    return value;
}

inline std::string_view as_text(ByteSpan bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// The string that ends with a NUL inside `bytes`.
inline std::optional<std::string_view> text_at(ByteSpan bytes, std::uint64_t offset) {
    if (offset > bytes.size()) return std::nullopt;
    const std::string_view rest = as_text(bytes.subspan(offset));
    const std::size_t end = rest.find('\0');
    if (end == std::string_view::npos) return std::nullopt;
    return rest.substr(0, end);
}

}  // namespace nq
