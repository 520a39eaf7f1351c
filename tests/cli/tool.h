// Runs the built normquant program as a user would.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace nq::test {

struct ToolResult {
    int exit_code = -1;  // 128 + the signal if one ended it
    std::string out;
    std::string err;

    // stdout must be one JSON document and nothing else.
    nlohmann::json json() const { return nlohmann::json::parse(out); }
};

// environment: NAME=VALUE pairs over the test's own, which is without NORMQUANT_*; NAME unsets. stdin is empty.
// NORMQUANT_LIBCUDA names a file that does not exist unless given,
// so that results do not depend on a GPU; the cache is off unless NORMQUANT_CACHE_DIR is given.
// Permissions bind the tool even where root runs the tests.
// typed: stdin is a terminal, on which somebody has typed this.
ToolResult run_tool(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {},
                    const std::optional<std::string>& typed = std::nullopt);

}  // namespace nq::test
