#include "metadata.h"

namespace nq::cli {
namespace {

// Printing recurses, so a few hundred thousand brackets would end on the stack's guard page.
constexpr int kMaxDepth = 64;

}  // namespace

Json parse_metadata(std::string_view text) {
    bool too_deep = false;
    const auto watch = [&too_deep](int depth, Json::parse_event_t, Json&) {
        too_deep |= depth > kMaxDepth;
        return !too_deep;  // what is refused is not kept
    };
    Json metadata = Json::parse(text, watch, /*allow_exceptions=*/false);
    return metadata.is_discarded() || too_deep ? Json(std::string(text)) : metadata;
}

std::string request_field(const Json& metadata, const std::string& label) {
    if (!metadata.is_object()) return "";
    const auto request = metadata.find("request");
    if (request == metadata.end() || !request->is_object()) return "";
    const auto field = request->find(label);
    return field != request->end() && field->is_string() ? field->get<std::string>() : "";
}

}  // namespace nq::cli
