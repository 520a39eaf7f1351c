// What a cache entry says about itself: JSON that this or another version wrote, or anybody who can write to the cache.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace nq::cli {

using Json = nlohmann::ordered_json;

// Text that is no JSON, or is nested deeper than any metadata of ours, comes back as one JSON string.
Json parse_metadata(std::string_view text);

// One of the labelled fields that the request key is made of; "" where the metadata has none.
std::string request_field(const Json& metadata, const std::string& label);

}  // namespace nq::cli
