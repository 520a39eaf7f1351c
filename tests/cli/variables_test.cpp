// The environment variables: one table, and what is said elsewhere agrees with it.
#include "variables.h"

#include "support/catch.h"
#include "support/environment.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

using nq::cli::variables;

namespace {

using Rows = std::vector<std::vector<std::string>>;

// Of the tables whose first column names variables of ours, without the marks of code.
Rows readme_rows() {
    std::ifstream readme(NORMQUANT_SOURCE_ROOT "/README.md");
    REQUIRE(readme);
    Rows rows;
    for (std::string line; std::getline(readme, line);) {
        if (!line.starts_with("| NORMQUANT_")) continue;
        std::erase(line, '`');
        std::vector<std::string> cells;
        for (std::size_t at = 2; at < line.size();) {
            const std::size_t end = std::min(line.find(" |", at), line.size());
            cells.push_back(line.substr(at, end - at));
            at = end + 3;
        }
        rows.push_back(cells);
    }
    return rows;
}

}  // namespace

TEST_CASE("README.md has the variables as --help has them") {
    Rows rows;
    for (const auto& variable : variables()) rows.push_back({variable.name, variable.meaning, variable.otherwise});
    CHECK(readme_rows() == rows);
}

TEST_CASE("every variable that a context reads is in the table, and no other but that of the Python module") {
    std::set<std::string> asked{"NORMQUANT_LIBRARY"}, known;
    REQUIRE(nq::read_environment([&](const char* name) -> const char* {
        if (std::string_view(name).starts_with("NORMQUANT_")) asked.insert(name);
        return nullptr;
    }));
    for (const auto& variable : variables()) known.insert(variable.name);
    CHECK(known == asked);
}

TEST_CASE("variables for --help: each with its meaning and default, in lines that fit a terminal") {
    const std::string text = nq::cli::variables_text();
    CHECK(text.starts_with("  NORMQUANT_CACHE_DIR       root of the disk cache; empty: no disk cache ["));
    std::string words;  // as one line
    for (const char c : text) {
        if (c != '\n' && (c != ' ' || !words.ends_with(' '))) words += c;
        if (c == '\n' && !words.ends_with(' ')) words += ' ';
    }
    for (const auto& variable : variables())
        CHECK((words + " ").find(std::string(" ") + variable.name + " " + variable.meaning + " [" + variable.otherwise + "] ") != std::string::npos);
    std::size_t longest = 0, line = 0;
    for (const char c : text) longest = std::max(longest, line = c == '\n' ? 0 : line + 1);
    CHECK(longest <= 128);
}
