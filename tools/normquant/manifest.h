// --manifest: problems in a JSON file, as an engine records them or a person writes them.
#pragma once

#include "command.h"
#include "problems.h"

#include <string>
#include <string_view>
#include <vector>

namespace nq::cli {

// A JSON document {"problems": [PROBLEM, ...], DEFAULTS}, a list of PROBLEMs, or PROBLEMs one a line, as NORMQUANT_RECORD writes them; or
// what a dry run prints. A PROBLEM is an object of problem_options(), each a value or a list of values: {"hidden": [4096, 7168], "op":
// "add_rmsnorm"}; DEFAULTS are such, too. What neither says, `otherwise` does. notes: takes what was passed over. Errors leave out the
// path: the caller names it.
Result<std::vector<ProblemLists>> parse_manifest(std::string_view text, const ProblemLists& otherwise, std::vector<std::string>& notes);

}  // namespace nq::cli
