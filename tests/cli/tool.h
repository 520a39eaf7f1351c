// Runs the built normquant program as a user would.
#pragma once

#include <sys/types.h>

#include <functional>
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

// As run_tool, with what only some tests want.
struct Invocation {
    std::vector<std::string> arguments;
    std::vector<std::string> environment = {};
    std::optional<std::string> typed = std::nullopt;
    std::optional<uid_t> user = std::nullopt;  // of the process, which root alone can say
};
ToolResult run_tool(const Invocation& invocation);

// stdin, stdout and stderr are one terminal of 80 columns: what it showed is in `out`.
ToolResult run_tool_on_terminal(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

// stderr is a pipe of one page. Once the program has said `text`, or for "" once it waits for its reader, as it has more to say than that,
// `then` is called with its process id; then the rest is read.
ToolResult meet_tool(const std::vector<std::string>& arguments, const std::vector<std::string>& environment, const std::string& text,
                     const std::function<void(pid_t)>& then);

}  // namespace nq::test
