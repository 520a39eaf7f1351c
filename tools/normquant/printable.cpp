#include "printable.h"

#include <fmt/core.h>

#include <cstdio>

namespace nq::cli {
namespace {

// Of the UTF-8 character that `text` begins with; 0 if it begins with none.
std::size_t character_bytes(std::string_view text) {
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = at(0);
    std::size_t size = 1;
    if (first >= 0x80) size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || size > text.size()) return 0;
    for (std::size_t i = 1; i < size; ++i) {
        if ((at(i) & 0xc0) != 0x80) return 0;
    }
    // Overlong forms, surrogates, and what lies behind U+10FFFF.
    if ((first == 0xe0 && at(1) < 0xa0) || (first == 0xed && at(1) >= 0xa0)) return 0;
    if ((first == 0xf0 && at(1) < 0x90) || (first == 0xf4 && at(1) >= 0x90)) return 0;
    return size;
}

bool is_control(std::string_view character) {
    const auto first = static_cast<unsigned char>(character[0]);
    if (character.size() == 1) return first < 0x20 || first == 0x7f;
    // C1: some terminals take U+009B as ESC [.
    return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

}  // namespace

std::string printable(std::string_view text, std::string_view kept) {
    std::string out;
    while (!text.empty()) {
        const std::size_t size = character_bytes(text);
        const std::string_view character = text.substr(0, size == 0 ? 1 : size);
        text.remove_prefix(character.size());
        if (size != 0 && (!is_control(character) || kept.find(character) != kept.npos)) {
            out += character;
        } else if (character == "\n") {
            out += "\\n";
        } else if (character == "\t") {
            out += "\\t";
        } else {
            for (const char byte : character) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
        }
    }
    return out;
}

void note(std::string_view text) { fmt::print(stderr, "normquant: {}\n", printable(text)); }

}  // namespace nq::cli
