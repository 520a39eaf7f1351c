#include "manifest.h"

#include "errors.h"
#include "metadata.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

namespace nq::cli {
namespace {

std::string key_of(const ProblemOption& option) {
    std::string key = std::string(option.option).substr(2);
    std::ranges::replace(key, '-', '_');
    return key;
}

// As the option would have it.
std::optional<std::string> value_text(const Json& value) {
    if (value.is_string()) return value.get<std::string>();
    if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
    if (value.is_number_integer()) return value.dump();
    return std::nullopt;
}

Outcome read_values(const std::string& key, const Json& value, std::vector<std::string>& values) {
    values.clear();
    for (const Json& item : value.is_array() ? value : Json::array({value})) {
        const auto text = value_text(item);
        if (!text) return usage_error(fmt::format("{} is {}: a value or a list of values is accepted", key, value.dump()));
        values.push_back(*text);
    }
    return values.empty() ? usage_error(fmt::format("{} is an empty list", key)) : Outcome(Unit{});
}

std::string accepted_keys() {
    std::string keys;
    for (const ProblemOption& option : problem_options()) keys += fmt::format("{}{}", keys.empty() ? "" : ", ", key_of(option));
    return keys;
}

Outcome read_option(const std::string& key, const Json& value, ProblemLists& lists, const char* besides = "") {
    const auto option = std::ranges::find(problem_options(), key, key_of);
    if (option == problem_options().end()) return usage_error(fmt::format("'{}' is none of {}{}", key, besides, accepted_keys()));
    return read_values(key, value, lists.*option->values);
}

Result<ProblemLists> read_problem(const Json& problem, ProblemLists lists) {
    if (!problem.is_object()) return usage_error("it is not an object");
    for (const auto& [key, value] : problem.items()) {
        if (const Outcome read = read_option(key, value, lists); !read) return read.error();
    }
    if (lists.hidden.empty()) return usage_error("it has no hidden");
    return lists;
}

// What warmup --dry-run --json printed: its problems say everything, the other keys are for people.
bool is_dry_run(const Json& document) {
    const auto command = document.find("command");
    return command != document.end() && *command == "warmup" && document.contains("dry_run");
}

Outcome read_defaults(const Json& document, ProblemLists& lists) {
    if (is_dry_run(document)) return Unit{};
    for (const auto& [key, value] : document.items()) {
        if (key == "problems") continue;
        if (Outcome read = read_option(key, value, lists, "problems, "); !read) return read;
    }
    return Unit{};
}

// The beginning of a record, and not its end: whoever wrote it was killed, or the disk was full.
bool is_torn(std::string_view line) {
    constexpr std::string_view kBegin = R"({"hidden":)";
    return line.substr(0, kBegin.size()) == kBegin.substr(0, line.size()) && !line.ends_with('}');
}

// One value a line that is not empty.
Result<Json> parse_lines(std::string_view text, std::vector<std::string>& notes) {
    Json values = Json::array();
    std::size_t number = 0;
    while (!text.empty()) {
        const std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        Json value = parse_metadata(line);
        if (!value.is_object() && is_torn(line)) {
            notes.push_back(fmt::format("line {} is the beginning of a problem, and left out", number));
            continue;
        }
        if (!value.is_object()) return usage_error(fmt::format("line {} is not a JSON object, nor is the file JSON as a whole", number));
        values.push_back(std::move(value));
    }
    return values;
}

}  // namespace

Result<std::vector<ProblemLists>> parse_manifest(std::string_view text, const ProblemLists& otherwise, std::vector<std::string>& notes) {
    ProblemLists base = otherwise;
    base.hidden.clear();
    Json problems = parse_metadata(text);
    if (problems.is_string()) {  // not one document
        auto lines = parse_lines(text, notes);
        if (!lines) return lines.error();
        problems = *std::move(lines);
    } else if (problems.is_object() && problems.contains("problems")) {
        if (const Outcome read = read_defaults(problems, base); !read) return read.error();
        problems = Json(problems["problems"]);
    } else if (problems.is_object()) {
        problems = Json::array({problems});
    }
    if (!problems.is_array() || problems.empty()) return usage_error("it has no problems");
    std::vector<ProblemLists> lists;
    for (std::size_t i = 0; i < problems.size(); ++i) {
        auto read = read_problem(problems[i], base);
        if (!read) return usage_error(fmt::format("problem {}: {}", i + 1, read.error().message));
        lists.push_back(*std::move(read));
    }
    return lists;
}

}  // namespace nq::cli
