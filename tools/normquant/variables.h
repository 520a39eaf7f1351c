// The environment variables of normquant: what --help says, what doctor knows, and what README.md has as a table.
#pragma once

#include <span>
#include <string>

namespace nq::cli {

struct Variable {
    const char* name;
    const char* meaning;
    const char* otherwise;  // what holds where it is not set
};
std::span<const Variable> variables();

// A paragraph each, for --help.
std::string variables_text();

}  // namespace nq::cli
