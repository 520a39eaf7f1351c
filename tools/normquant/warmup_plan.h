// What a warm-up is to make: the problems of flags, models and manifests, for the targets of each, without repetitions.
#pragma once

#include "command.h"
#include "cuda/nvrtc.h"
#include "problems.h"

#include <string>
#include <vector>

namespace nq::cli {

struct WarmupSources {
    ProblemLists lists = {};  // as typed
    std::vector<std::string> models = {};
    std::vector<std::string> manifests = {};
};

struct WarmupPlan {
    // Problems that are wanted for the same targets.
    struct Group {
        std::vector<Arch> archs;
        std::vector<Problem> problems;
    };
    std::vector<Group> groups;
    std::uint64_t kernels = 0;
    std::vector<std::string> sources;   // what they follow from, for people
    std::vector<std::string> left_out;  // what was asked for, in general, and is not made
};

// nvrtc: what will compile, or nullptr. It decides what a GPU's name stands for and which variants there are.
Result<WarmupPlan> plan_warmup(const WarmupSources& sources, const Nvrtc* nvrtc);

// Its "problems" are a manifest.
Json to_json(const WarmupPlan& plan);
std::string to_text(const WarmupPlan& plan);

}  // namespace nq::cli
