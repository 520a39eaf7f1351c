// Sizes, ages and times, as people write and read them.
#pragma once

#include "support/result.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace nq::cli {

std::int64_t seconds_now();  // since the epoch

Result<std::int64_t> parse_age(std::string_view option, const std::string& text);     // 90s, 30m, 12h, 7d: seconds
Result<std::uint64_t> parse_bytes(std::string_view option, const std::string& text);  // 1048576, 512M, 2G

std::string age_text(std::int64_t seconds);  // "12m", "3d": one unit, rounded down
std::string size_text(std::uint64_t bytes);  // "812 B", "1.5 MiB"
std::string utc_text(std::int64_t seconds);  // "2026-01-31T12:00:00Z"

}  // namespace nq::cli
