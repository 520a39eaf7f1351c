// The problems that a command's lists of options name: every combination of them.
#pragma once

#include "problem/arch.h"
#include "problem/problem.h"

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace nq::cli {

struct ProblemLists {
    std::vector<std::string> hidden;
    std::vector<std::string> archs;
    std::vector<std::string> dtypes;
    std::vector<std::string> formats;
    std::vector<std::string> layouts;
    std::vector<std::string> weights;
};

// The lists' present values are the defaults.
void add_problem_options(CLI::App& app, ProblemLists& lists);

// Without repetitions.
Result<std::vector<Problem>> problems_of(const ProblemLists& lists);
Result<std::vector<Arch>> archs_of(const ProblemLists& lists);

}  // namespace nq::cli
