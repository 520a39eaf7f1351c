#include "npy.h"

#include "errors.h"

#include <fmt/core.h>

#include <cstring>
#include <optional>
#include <string_view>

namespace nq::cli {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr std::size_t kMaxHeader = 1u << 20;

// Reads the one kind of text that NumPy writes: a dictionary of strings, booleans and tuples of whole numbers.
class LiteralParser {
public:
    explicit LiteralParser(std::string_view text) : text_(text) {}

    bool take(char expected) {
        skip_blanks();
        if (text_.empty() || text_.front() != expected) return false;
        text_.remove_prefix(1);
        return true;
    }

    bool at_end() {
        skip_blanks();
        return text_.empty();
    }

    std::optional<std::string> string() {
        skip_blanks();
        if (text_.empty() || (text_.front() != '\'' && text_.front() != '"')) return std::nullopt;
        const std::size_t end = text_.find(text_.front(), 1);
        if (end == std::string_view::npos) return std::nullopt;
        std::string value(text_.substr(1, end - 1));
        if (value.find('\\') != std::string::npos) return std::nullopt;
        text_.remove_prefix(end + 1);
        return value;
    }

    std::optional<bool> boolean() {
        skip_blanks();
        for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}}) {
            if (text_.starts_with(word)) {
                text_.remove_prefix(word.size());
                return value;
            }
        }
        return std::nullopt;
    }

    std::optional<std::vector<std::uint64_t>> tuple() {
        if (!take('(')) return std::nullopt;
        comma_ = false;
        std::vector<std::uint64_t> values;
        while (!take(')')) {
            if (!values.empty() && !comma_) return std::nullopt;
            const auto value = number();
            if (!value) return std::nullopt;
            values.push_back(*value);
            comma_ = take(',');
        }
        if (values.size() == 1 && !comma_) return std::nullopt;  // "(3)" is a number, not a tuple
        return values;
    }

private:
    void skip_blanks() {
        const std::size_t first = text_.find_first_not_of(" \t\n");
        text_.remove_prefix(first == std::string_view::npos ? text_.size() : first);
    }

    std::optional<std::uint64_t> number() {
        skip_blanks();
        std::uint64_t value = 0;
        std::size_t digits = 0;
        for (; digits < text_.size() && text_[digits] >= '0' && text_[digits] <= '9'; ++digits) {
            if (__builtin_mul_overflow(value, 10u, &value) ||
                __builtin_add_overflow(value, static_cast<unsigned>(text_[digits] - '0'), &value)) {
                return std::nullopt;
            }
        }
        if (digits == 0) return std::nullopt;
        text_.remove_prefix(digits);
        return value;
    }

    std::string_view text_;
    bool comma_ = false;
};

struct Header {
    std::optional<std::string> descr;
    std::optional<bool> fortran_order;
    std::optional<std::vector<std::uint64_t>> shape;
};

Result<Header> parse_header(std::string_view text) {
    const Error malformed = usage_error(
        "the .npy header is not the dictionary {'descr': TYPE, 'fortran_order': BOOL, 'shape': TUPLE} of a plain "
        "array");
    LiteralParser parser(text);
    Header header;
    if (!parser.take('{')) return malformed;
    bool more = true;
    while (!parser.take('}')) {
        const auto key = more ? parser.string() : std::nullopt;
        if (!key || !parser.take(':')) return malformed;
        // A key may come once.
        bool understood = false;
        if (*key == "descr" && !header.descr) {
            understood = (header.descr = parser.string()).has_value();
        } else if (*key == "fortran_order" && !header.fortran_order) {
            understood = (header.fortran_order = parser.boolean()).has_value();
        } else if (*key == "shape" && !header.shape) {
            understood = (header.shape = parser.tuple()).has_value();
        }
        if (!understood) return malformed;
        more = parser.take(',');
    }
    if (!parser.at_end() || !header.descr || !header.fortran_order || !header.shape) return malformed;
    return header;
}

std::optional<Element> element_of(const std::string& descr) {
    if (descr == "<f2") return Element::fp16;
    if (descr == "<f4") return Element::fp32;
    if (descr == "<u2" || descr == "|V2" || descr == "<V2") return Element::raw16;
    return std::nullopt;
}

}  // namespace

bool is_npy(Bytes file) {
    return file.size() >= kMagic.size() && std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0;
}

Result<Tensor> parse_npy(Bytes file) {
    const std::size_t version_end = kMagic.size() + 2;
    if (!is_npy(file)) return usage_error("it does not start with the magic bytes of .npy");
    if (file.size() < version_end) return usage_error("the .npy file ends inside its header");
    const unsigned major = file[6];
    const unsigned minor = file[7];
    if (major < 1 || major > 3 || minor != 0) {
        return usage_error(fmt::format(".npy version {}.{} is unknown: 1.0, 2.0 and 3.0 are accepted", major, minor));
    }
    const std::size_t length_bytes = major == 1 ? 2 : 4;
    const std::size_t header_begin = version_end + length_bytes;
    if (file.size() < header_begin) return usage_error("the .npy file ends inside its header");
    std::size_t length = 0;
    for (std::size_t i = 0; i < length_bytes; ++i) length |= static_cast<std::size_t>(file[version_end + i]) << (8 * i);
    if (length > kMaxHeader) {
        return usage_error(fmt::format("the .npy header claims {} bytes; at most {} are accepted", length, kMaxHeader));
    }
    if (file.size() - header_begin < length) return usage_error("the .npy file ends inside its header");

    auto header = parse_header({reinterpret_cast<const char*>(file.data()) + header_begin, length});
    if (!header) return header.error();
    const auto element = element_of(*header->descr);
    if (!element) {
        return usage_error(
            fmt::format("the array's type '{}' is not accepted: '<f2' (float16), '<f4' (float32), or "
                        "bfloat16 stored as '<u2' or 'V2', little-endian",
                        *header->descr));
    }
    if (*header->fortran_order) {
        return usage_error("the array is column-major (fortran_order True): save numpy.ascontiguousarray of it");
    }
    std::uint64_t expected = 0;
    if (!checked_bytes(*header->shape, *element == Element::fp32 ? 4 : 2, expected)) {
        return usage_error(fmt::format("the shape {} overflows 64 bits", shape_text(*header->shape)));
    }
    const Bytes data = file.subspan(header_begin + length);
    if (data.size() != expected) {
        return usage_error(fmt::format("the shape {} of '{}' needs {} bytes of data, the file holds {}",
                                       shape_text(*header->shape), *header->descr, expected, data.size()));
    }
    return Tensor{*element, *header->descr, std::move(*header->shape), {data.begin(), data.end()}};
}

std::string npy_uint8_header(const std::vector<std::uint64_t>& shape) {
    std::string extents;
    for (const std::uint64_t extent : shape) extents += fmt::format("{}, ", extent);
    if (shape.size() > 1) extents.resize(extents.size() - 2);
    if (shape.size() == 1) extents.resize(extents.size() - 1);
    std::string dictionary = fmt::format("{{'descr': '|u1', 'fortran_order': False, 'shape': ({}), }}", extents);
    // The data starts at a multiple of 64: magic, version and length take 10 bytes, the newline one.
    dictionary.append((64 - (10 + dictionary.size() + 1) % 64) % 64, ' ');
    dictionary += '\n';
    std::string header(kMagic);
    header += {'\1', '\0', static_cast<char>(dictionary.size() & 0xff), static_cast<char>(dictionary.size() >> 8)};
    return header + dictionary;
}

}  // namespace nq::cli
