#include "safetensors.h"

#include "errors.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <optional>

namespace nq::cli {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;  // as the format has it
constexpr std::size_t kNamesListed = 20;

// Bits an element; what the format defines. Sub-byte types exist and never reach a boundary inside a byte.
struct DtypeBits {
    const char* name;
    unsigned bits;
};
constexpr DtypeBits kDtypes[] = {{"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8},
                                 {"F8_E8M0", 8}, {"I16", 16}, {"U16", 16}, {"F16", 16},    {"BF16", 16},
                                 {"I32", 32},    {"U32", 32}, {"F32", 32}, {"I64", 64},    {"U64", 64},
                                 {"F64", 64},    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}};

std::optional<unsigned> bits_of(const std::string& dtype) {
    for (const DtypeBits& known : kDtypes) {
        if (dtype == known.name) return known.bits;
    }
    return std::nullopt;
}

std::optional<std::vector<std::uint64_t>> whole_numbers(const nlohmann::json& value) {
    if (!value.is_array()) return std::nullopt;
    std::vector<std::uint64_t> numbers;
    for (const auto& item : value) {
        if (!item.is_number_unsigned()) return std::nullopt;
        numbers.push_back(item.get<std::uint64_t>());
    }
    return numbers;
}

Result<SafetensorsEntry> parse_entry(const std::string& name, const nlohmann::json& value, std::uint64_t data_begin,
                                     std::uint64_t data_bytes) {
    const auto bad = [&](const std::string& what) { return usage_error(fmt::format("tensor '{}': {}", name, what)); };
    if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets") ||
        !value["dtype"].is_string()) {
        return bad("its entry is not an object with dtype, shape and data_offsets");
    }
    SafetensorsEntry entry{name, value["dtype"].get<std::string>(), {}, 0, 0};
    auto shape = whole_numbers(value["shape"]);
    if (!shape) return bad("its shape is not a list of whole numbers");
    entry.shape = std::move(*shape);
    const auto offsets = whole_numbers(value["data_offsets"]);
    if (!offsets || offsets->size() != 2) return bad("its data_offsets are not two whole numbers");
    const std::uint64_t begin = (*offsets)[0];
    const std::uint64_t end = (*offsets)[1];
    if (begin > end || end > data_bytes) {
        return bad(
            fmt::format("its data_offsets [{}, {}] are not within the {} bytes of data", begin, end, data_bytes));
    }
    if (const auto bits = bits_of(entry.dtype)) {
        std::uint64_t total_bits = 0;
        if (!checked_bytes(entry.shape, *bits, total_bits) || total_bits % 8 != 0 || total_bits / 8 != end - begin) {
            return bad(fmt::format("its data_offsets [{}, {}] hold {} bytes, which is not the size of {} {}", begin,
                                   end, end - begin, entry.dtype, shape_text(entry.shape)));
        }
    }
    entry.begin = data_begin + begin;
    entry.end = data_begin + end;
    return entry;
}

std::optional<Element> element_of(const std::string& dtype) {
    if (dtype == "F16") return Element::fp16;
    if (dtype == "BF16") return Element::bf16;
    if (dtype == "F32") return Element::fp32;
    return std::nullopt;
}

std::string names_of(const std::vector<SafetensorsEntry>& entries) {
    std::string names;
    for (std::size_t i = 0; i < entries.size() && i < kNamesListed; ++i) {
        names += fmt::format("{}{} {}{}", i == 0 ? "" : ", ", entries[i].name, entries[i].dtype,
                             shape_text(entries[i].shape));
    }
    if (entries.size() > kNamesListed) names += fmt::format(" and {} more", entries.size() - kNamesListed);
    return names.empty() ? "none" : names;
}

}  // namespace

Result<std::vector<SafetensorsEntry>> parse_safetensors(Bytes file) {
    if (file.size() < 8) return usage_error(fmt::format("{} bytes are too few for a header length", file.size()));
    std::uint64_t length = 0;
    for (unsigned i = 0; i < 8; ++i) length |= static_cast<std::uint64_t>(file[i]) << (8 * i);
    if (length > kMaxHeader || length > file.size() - 8) {
        return usage_error(
            fmt::format("the header claims {} bytes; the file holds {} behind it, and at most {} are accepted", length,
                        file.size() - 8, kMaxHeader));
    }
    const Bytes header = file.subspan(8, length);
    const auto document = nlohmann::json::parse(header.begin(), header.end(), nullptr, /*allow_exceptions=*/false);
    if (!document.is_object()) return usage_error("the header is not a JSON object");
    std::vector<SafetensorsEntry> entries;
    for (const auto& item : document.items()) {
        if (item.key() == "__metadata__") continue;
        auto entry = parse_entry(item.key(), item.value(), 8 + length, file.size() - 8 - length);
        if (!entry) return entry.error();
        entries.push_back(std::move(*entry));
    }
    return entries;
}

Result<Tensor> read_safetensor(const std::vector<SafetensorsEntry>& entries, Bytes file, std::string& name) {
    const SafetensorsEntry* found = nullptr;
    if (name.empty()) {
        if (entries.size() != 1) {
            return usage_error(
                fmt::format("it holds {} tensors; add ':NAME' with one of: {}", entries.size(), names_of(entries)));
        }
        found = &entries.front();
        name = found->name;
    } else {
        for (const SafetensorsEntry& entry : entries) {
            if (entry.name == name) found = &entry;
        }
        if (found == nullptr) {
            return usage_error(fmt::format("it holds no tensor '{}'; available: {}", name, names_of(entries)));
        }
    }
    const auto element = element_of(found->dtype);
    if (!element) {
        return usage_error(fmt::format("tensor '{}' is {}: F16, BF16 and F32 are accepted", name, found->dtype));
    }
    const Bytes data = file.subspan(found->begin, found->end - found->begin);
    return Tensor{*element, found->dtype, found->shape, {data.begin(), data.end()}};
}

}  // namespace nq::cli
