#include "warmup_plan.h"

#include "errors.h"
#include "files.h"
#include "manifest.h"
#include "model.h"
#include "options.h"
#include "plan/plan.h"
#include "printable.h"
#include "problem/option_values.h"
#include "targets.h"

#include <fmt/core.h>

#include <algorithm>

namespace nq::cli {
namespace {

// What the command line leaves open, the model says.
ProblemLists lists_of(const Norm& norm, const Model& model, ProblemLists lists) {
    lists.hidden = {std::to_string(norm.hidden)};
    if (lists.ops.empty() && norm.on_residual) lists.ops = {"rmsnorm", "add_rmsnorm"};
    // Nothing is added to what these normalize, whatever the others do.
    if (!norm.on_residual) lists.ops = {"rmsnorm"};
    if (lists.dtypes.empty() && !model.dtype.empty()) lists.dtypes = {model.dtype};
    if (lists.weights.empty() && norm.fp32_weight) lists.weights = {"fp32"};
    if (lists.weight_biases.empty() && model.weight_bias_one) lists.weight_biases = {"1"};
    return lists;
}

std::string describe(const std::string& path, const Model& model) {
    std::string norms;
    for (const Norm& norm : model.norms)
        norms += fmt::format("{}{} {}{}", norms.empty() ? "" : ", ", norm.name, norm.hidden, norm.fp32_weight ? " (fp32)" : "");
    return fmt::format("{}: {}{}, {}{}", path, model.type.empty() ? "" : model.type + ", ",
                       !model.other_dtype.empty() ? model.other_dtype : model.dtype.empty() ? "dtype not said, so bf16" : model.dtype, norms,
                       model.weight_bias_one ? ", weights stored as w - 1" : "");
}

// Targets of sets of lists, and the plan that grows from them.
class Planner {
public:
    explicit Planner(const Nvrtc* nvrtc) : nvrtc_(nvrtc) {}

    Outcome add(const ProblemLists& lists, std::vector<std::string>* left_out) {
        if (lists.archs.empty()) return usage_error("--arch is missing: name GPUs (h200, b200), targets (sm_90, sm_100f), or all");
        const auto problems = problems_of(lists, left_out);
        if (!problems) return problems.error();
        const auto archs = targets_of(lists.archs, nvrtc_, plan.left_out);
        if (!archs) return archs.error();
        for (const Arch& arch : *archs) {
            auto group = std::ranges::find_if(plan.groups, [&](const auto& g) { return g.archs.front() == arch; });
            if (group == plan.groups.end()) group = plan.groups.insert(group, {{arch}, {}});
            for (const Problem& problem : *problems) add_once(group->problems, problem);
        }
        return Unit{};
    }

    Outcome add_model(const std::string& path, const ProblemLists& lists) {
        const auto model = read_model(path);
        if (!model) return model.error();
        if (lists.dtypes.empty() && !model->other_dtype.empty())
            return usage_error(fmt::format("--model {}: {}: rows are bfloat16 or float16; say which with --dtype", path, model->other_dtype));
        plan.sources.push_back(describe(path, *model));
        for (const std::string& note : model->notes) plan.left_out.push_back(fmt::format("{}: {}", path, note));
        for (const Norm& norm : model->norms) {
            if (norm.hidden < 16 || norm.hidden > kMaxHidden) {
                plan.left_out.push_back(fmt::format("{}: {} {}: lengths from 16 to {} have kernels", path, norm.name, norm.hidden, kMaxHidden));
                continue;
            }
            if (Outcome added = add(lists_of(norm, *model, lists), &plan.left_out); !added) return added;
        }
        return Unit{};
    }

    // Targets of the command line replace those of the file: a record of one GPU warms up another.
    Outcome add_manifest(const std::string& path, const ProblemLists& lists) {
        const auto file = MappedFile::open(path);
        if (!file) return usage_error(fmt::format("--manifest {}: {}", path, file.error().message));
        const Bytes bytes = file->bytes();
        std::vector<std::string> notes;
        auto problems = parse_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, lists, notes);
        if (!problems) return usage_error(fmt::format("--manifest {}: {}", path, problems.error().message));
        for (const std::string& note : notes) plan.left_out.push_back(fmt::format("{}: {}", path, note));
        for (std::size_t i = 0; i < problems->size(); ++i) {
            if (!lists.archs.empty()) (*problems)[i].archs = lists.archs;
            if (const Outcome added = add((*problems)[i], nullptr); !added)
                return Error{added.error().status, fmt::format("--manifest {}: problem {}: {}", path, i + 1, added.error().message)};
        }
        plan.sources.push_back(fmt::format("{}: {} problem{}", path, problems->size(), problems->size() == 1 ? "" : "s"));
        return Unit{};
    }

    // One call for the targets that have the same problems keeps all cores busy to its end.
    void finish() {
        std::vector<WarmupPlan::Group> merged;
        for (const WarmupPlan::Group& group : plan.groups) {
            for (const Problem& problem : group.problems) plan.kernels += kernels(problem, group.archs.front());
            const auto same = std::ranges::find(merged, group.problems, &WarmupPlan::Group::problems);
            if (same == merged.end()) {
                merged.push_back(group);
            } else {
                same->archs.push_back(group.archs.front());
            }
        }
        plan.groups = std::move(merged);
    }

    WarmupPlan plan;

private:
    std::uint64_t kernels(const Problem& problem, const Arch& arch) const {
        const auto plans = plans_for(problem, arch);
        return static_cast<std::uint64_t>(std::ranges::count_if(
            plans, [&](const Plan& p) { return p.load_bytes != 32 || nvrtc_ == nullptr || nvrtc_->loads_256(); }));
    }

    const Nvrtc* nvrtc_;
};

}  // namespace

Result<WarmupPlan> plan_warmup(const WarmupSources& sources, const Nvrtc* nvrtc) {
    const ProblemLists& lists = sources.lists;
    if (lists.hidden.empty() && sources.models.empty() && sources.manifests.empty())
        return usage_error("nothing to compile: give --hidden, --model or --manifest");
    Planner planner(nvrtc);
    if (!lists.hidden.empty()) {
        if (const Outcome added = planner.add(lists, nullptr); !added) return added.error();
    }
    for (const std::string& model : sources.models) {
        if (const Outcome added = planner.add_model(model, lists); !added) return added.error();
    }
    for (const std::string& manifest : sources.manifests) {
        if (const Outcome added = planner.add_manifest(manifest, lists); !added) return added.error();
    }
    planner.finish();
    if (planner.plan.kernels == 0) {
        return usage_error(fmt::format("nothing to compile{}", planner.plan.left_out.empty() ? "" : ": " + planner.plan.left_out.front()));
    }
    return std::move(planner.plan);
}

Json to_json(const WarmupPlan& plan) {
    Json problems = Json::array(), archs = Json::array();
    for (const WarmupPlan::Group& group : plan.groups) {
        Json names = Json::array();
        for (const Arch& arch : group.archs) names.push_back(arch.name());
        for (const Json& name : names) archs.push_back(name);
        for (const Problem& problem : group.problems) {
            problems.push_back(Json::parse(manifest_text(problem)));
            problems.back()["arch"] = names;
        }
    }
    return {{"archs", std::move(archs)},  {"kernels", plan.kernels},         {"sources", plan.sources},
            {"left_out", plan.left_out}, {"problems", std::move(problems)}};
}

std::string to_text(const WarmupPlan& plan) {
    std::string text;
    for (const std::string& source : plan.sources) text += fmt::format("  from      {}\n", printable(source));
    for (const std::string& reason : plan.left_out) text += fmt::format("  note      {}\n", printable(reason));
    for (const WarmupPlan::Group& group : plan.groups) {
        std::string archs;
        for (const Arch& arch : group.archs) archs += fmt::format("{}{}", archs.empty() ? "" : ", ", arch.name());
        text += fmt::format("  for       {}\n", archs);
        for (const Problem& problem : group.problems) text += fmt::format("    {}\n", problem_text(problem_to_c(problem)));
    }
    return text;
}

}  // namespace nq::cli
