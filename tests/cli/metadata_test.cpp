#include "metadata.h"

#include <string>

#include "support/catch.h"

using nq::cli::Json;
using nq::cli::parse_metadata;
using nq::cli::request_field;

TEST_CASE("metadata is JSON, or shown as the text that it is") {
    CHECK(parse_metadata(R"({"a":[1,2]})") == Json{{"a", {1, 2}}});
    for (const char* text : {"", "{", "{} x", "\xff", "NaN"}) CHECK(parse_metadata(text) == Json(text));
}

TEST_CASE("metadata is not nested without end") {
    const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
    CHECK(parse_metadata(nested(60)).is_array());
    for (const std::size_t depth : {std::size_t{70}, std::size_t{1'000'000}}) {
        CHECK(parse_metadata(nested(depth)).is_string());
        CHECK(parse_metadata(std::string(depth, '[')).is_string());
    }
}

TEST_CASE("fields of the request") {
    const Json metadata = parse_metadata(R"({"request":{"problem":"hidden=64","number":7}})");
    CHECK(request_field(metadata, "problem") == "hidden=64");
    for (const char* label : {"number", "absent", "", "/problem", "~"}) CHECK(request_field(metadata, label).empty());
    for (const char* text : {"7", "[]", R"({"request":[]})", R"({"request":"problem"})", "no JSON"})
        CHECK(request_field(parse_metadata(text), "problem").empty());
}
