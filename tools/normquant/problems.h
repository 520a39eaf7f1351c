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

// As typed. What is empty means nvfp4, linear, rmsnorm, bf16, same, 0, off; without hidden there is no problem.
struct ProblemLists {
    std::vector<std::string> hidden = {};
    std::vector<std::string> archs = {};
    std::vector<std::string> formats = {};
    std::vector<std::string> layouts = {};
    std::vector<std::string> ops = {};
    std::vector<std::string> dtypes = {};
    std::vector<std::string> weights = {};
    std::vector<std::string> weight_biases = {};
    std::vector<std::string> y_outs = {};
    std::vector<std::string> overlaps = {};
    std::vector<std::string> device_rows = {};
    std::vector<std::string> batches = {};
};

// One list: the option that fills it; as a key of a manifest, without the dashes and with _ for -.
struct ProblemOption {
    const char* option;
    std::vector<std::string> ProblemLists::*values;
    const char* help;
    std::vector<std::string> (*names)() = nullptr;  // where values are a few names
};
const std::vector<ProblemOption>& problem_options();

// The lists' present values are the defaults.
void add_problem_options(CLI::App& app, ProblemLists& lists);

// Without repetitions. left_out: takes the combinations for which there is no kernel, with the reason; without it, one is an error.
Result<std::vector<Problem>> problems_of(const ProblemLists& lists, std::vector<std::string>* left_out = nullptr);

template <class T>
void add_once(std::vector<T>& list, const T& value) {
    for (const T& present : list) {
        if (present == value) return;
    }
    list.push_back(value);
}

}  // namespace nq::cli
