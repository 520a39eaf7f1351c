#include "units.h"

#include "errors.h"
#include "support/environment.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <chrono>
#include <ctime>

namespace nq::cli {
namespace {

struct AgeUnit {
    char letter;
    std::int64_t seconds;
};
constexpr AgeUnit kUnits[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};

}  // namespace

std::int64_t seconds_now() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

Result<std::int64_t> parse_age(std::string_view option, const std::string& text) {
    constexpr std::uint32_t kMost = 1'000'000;  // of any unit: the product fits
    const char* const end = text.data() + text.size();
    std::uint32_t count = 0;
    const auto [stop, status] = std::from_chars(text.data(), end, count);
    if (status == std::errc{} && count <= kMost && end - stop == 1) {
        for (const AgeUnit& unit : kUnits) {
            if (*stop == unit.letter) return count * unit.seconds;
        }
    }
    return usage_error(fmt::format("{} '{}' is not an age, such as 90s, 30m, 12h or 7d", option, text));
}

Result<std::uint64_t> parse_bytes(std::string_view option, const std::string& text) {
    if (const auto bytes = parse_size(text)) return *bytes;
    return usage_error(fmt::format("{} '{}' is not a number of bytes, such as 1048576, 512M or 2G", option, text));
}

std::string age_text(std::int64_t seconds) {
    for (const AgeUnit& unit : kUnits) {
        if (seconds >= unit.seconds) return fmt::format("{}{}", seconds / unit.seconds, unit.letter);
    }
    return "0s";  // or a clock that was set back
}

std::string size_text(std::uint64_t bytes) {
    if (bytes < 1024) return fmt::format("{} B", bytes);
    double value = static_cast<double>(bytes) / 1024;
    const char* unit = "KiB";
    for (const char* larger : {"MiB", "GiB", "TiB"}) {
        if (value < 1024) break;
        value /= 1024;
        unit = larger;
    }
    return fmt::format("{:.1f} {}", value, unit);
}

std::string utc_text(std::int64_t seconds) {
    const auto time = static_cast<std::time_t>(seconds);
    std::tm parts{};
    std::array<char, 32> text{};
    if (gmtime_r(&time, &parts) == nullptr) return "";
    std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text.data();
}

}  // namespace nq::cli
