// normquant warmup: fills the kernel cache ahead of time. Needs NVRTC, but neither GPU nor driver.
#include "command.h"
#include "interruption.h"
#include "options.h"
#include "plan/plan.h"
#include "printable.h"
#include "progress.h"
#include "runtime/precompile.h"
#include "support/cores.h"
#include "support/log.h"
#include "units.h"
#include "warmup_bundle.h"
#include "warmup_plan.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>

namespace nq::cli {
namespace {

constexpr const char* kWarmupFooter =
    R"(Compiles every kernel that an engine will ask for into the cache, so that serving starts without a compile. Run it when an
image is built: it needs NVRTC, but no GPU and no driver. Kernels that are cached already are not compiled again: what was
interrupted is resumed by the same command.

Problems come from any of
  --hidden      row lengths; every combination of the lists of options is made
  --model       a Hugging Face config.json, a .safetensors file, or a model's folder: the lengths of its RMSNorms, and what the model
                says of --dtype, --weight-dtype and --weight-bias; with and without residual add where there is a residual
  --manifest    a JSON file: what an engine recorded under NORMQUANT_RECORD=FILE, or {"arch": ["h200"], "layout": "swizzled",
                "problems": [{"hidden": [4096, 7168], "op": "add_rmsnorm"}]}, with the options' names as keys; those beside problems
                hold for each that does not say otherwise, and what is said nowhere, the options say
Options that are given win over what a model says; --arch wins over a manifest's.

Targets: GPUs by name, or sm_80, sm_86, sm_89, sm_90 and, on Blackwell, family targets: sm_100f (B200, B300), sm_110f, sm_120f
(RTX 50, DGX Spark). all: one for every kind of GPU that this NVRTC compiles for.

Examples:
  normquant warmup --hidden 4096,7168 --arch h200,b200
  normquant warmup --model config.json --arch all --format nvfp4 --layout swizzled --dry-run
  normquant warmup --manifest recorded.json --bundle kernels.nqb
Exit codes: 0 all there, 1 none could be made, 2 bad option or input, 3 some failed, interrupted, or no bundle written.)";

struct WarmupOptions {
    WarmupSources sources{.lists = {.formats = {"nvfp4", "mxfp4"}, .layouts = {"linear", "swizzled"}}};
    std::string threads = "0";
    std::string cache_dir;
    std::string bundle;
    bool dry_run = false;
};

struct ArchTally {
    std::uint64_t compiled = 0;
    std::uint64_t cached = 0;
    std::uint64_t failed = 0;
    std::vector<double> milliseconds;

    Json median_ms() {
        if (milliseconds.empty()) return nullptr;
        const auto middle = milliseconds.begin() + static_cast<std::ptrdiff_t>(milliseconds.size() / 2);
        std::nth_element(milliseconds.begin(), middle, milliseconds.end());
        return *middle;
    }
};

struct Results {
    std::map<std::string, ArchTally> tallies;
    Json failures = Json::array();

    std::uint64_t sum(std::uint64_t ArchTally::*count) const {
        std::uint64_t total = 0;
        for (const auto& [arch, tally] : tallies) total += tally.*count;
        return total;
    }

    void add(const nq_problem& problem, const nq_precompile_event& event, Progress& progress) {
        const std::string what =
            fmt::format("{} {} {}", event.arch, problem_text(problem), name(static_cast<Variant>(event.variant)));
        ArchTally& tally = tallies[event.arch];
        const double milliseconds = static_cast<double>(event.compile_ns) * 1e-6;
        std::string outcome = "cached";
        auto step = Progress::Step::hit;
        if (event.status != NQ_OK) {
            step = Progress::Step::failed;
            ++tally.failed;
            outcome = fmt::format("failed: {}", event.message);
            failures.push_back(
                {{"kernel", what}, {"status", nq_status_name(event.status)}, {"message", event.message}});
        } else if (event.cached != 0) {
            ++tally.cached;
        } else {
            step = Progress::Step::made;
            ++tally.compiled;
            tally.milliseconds.push_back(milliseconds);
            outcome = fmt::format("compiled in {:.0f} ms", milliseconds);
        }
        progress.step(printable(fmt::format("{}: {}", what, outcome)), step);
    }
};

Outcome compile_group(Context& context, const WarmupPlan::Group& group, Results& results, Progress& progress) {
    std::vector<nq_problem> problems;
    problems.reserve(group.problems.size());
    for (const Problem& problem : group.problems) problems.push_back(problem_to_c(problem));
    std::vector<std::string> names;
    names.reserve(group.archs.size());
    for (const Arch& arch : group.archs) names.push_back(arch.name());
    std::vector<const char*> archs;
    archs.reserve(names.size());
    for (const std::string& name : names) archs.push_back(name.c_str());
    return precompile(context, problems.data(), problems.size(), archs, 0, [&](const nq_precompile_event& event) {
        results.add(problems[event.problem_index], event, progress);
        return !Interruption::requested();
    });
}

// What the context logs, beside the bar once there is one.
struct Log {
    std::optional<Progress> progress;

    static void write(std::uint32_t level, const char* message, void* self) {
        auto& progress = static_cast<Log*>(self)->progress;
        const auto print = [&] { log_to_stderr(level, message, nullptr); };
        progress ? progress->beside(print) : print();
    }
};

// One context for the plan and the compiles: what NVRTC is found decides both.
Result<std::unique_ptr<Context>> open_context(const WarmupOptions& options, Log& log) {
    const auto threads = parse_count("--threads", options.threads, 0, 1024);
    if (!threads) return threads.error();
    nq_context_options context_options = NQ_CONTEXT_OPTIONS_INIT;
    // A context by itself leaves cores to its program; nothing else runs here.
    context_options.compile_threads = *threads != 0 ? *threads : compiles_at_a_time();
    context_options.log_callback = &Log::write;
    context_options.log_payload = &log;
    if (!options.cache_dir.empty()) context_options.cache_dir = options.cache_dir.c_str();
    const auto environment = read_environment();
    if (!environment) return environment.error();
    auto config = make_config(&context_options, *environment);
    if (!config) return config.error();
    return std::make_unique<Context>(*std::move(config));
}

Result<WarmupPlan> plan_for(Context& context, const WarmupSources& sources) {
    if (context.compile_ban()) return plan_warmup(sources, nullptr);
    const auto nvrtc = context.nvrtc();
    return plan_warmup(sources, nvrtc ? nvrtc->get() : nullptr);
}

Report dry_run(const WarmupPlan& plan) {
    Report report;
    report.json = {{"command", "warmup"}, {"dry_run", true}};
    report.json.update(to_json(plan));
    report.text = fmt::format("normquant warmup: {} kernels to be there; nothing was compiled\n{}", plan.kernels, to_text(plan));
    return report;
}

// A bundle that lacks kernels would only be found out when serving: it is written when every kernel is there.
void add_bundle(Report& report, Context& context, const WarmupPlan& plan, const std::string& path) {
    report.json["bundle"] = nullptr;
    const auto not_written = [&](const std::string& reason) {
        report.text += fmt::format("  bundle: {} not written: {}\n", printable(path), printable(reason));
        report.json["bundle_error"] = reason;
    };
    if (report.exit_code != kOk) return not_written("not every kernel is there");
    const auto written = write_warm_bundle(context, plan, path);
    if (!written) {
        note(fmt::format("bundle {} not written: {}", path, written.error().message));
        report.exit_code = kPartial;
        return not_written(written.error().message);
    }
    report.text += fmt::format("  bundle: {} kernels{}{}, {} in {}\n", written->entries,
                               written->kept != 0 ? fmt::format(" ({} kept from before)", written->kept) : "",
                               written->dropped != 0 ? fmt::format(", {} of other kernel sources left out", written->dropped) : "",
                               size_text(written->bytes), printable(path));
    report.json["bundle"] = {{"path", path}, {"kernels", written->entries}, {"kept", written->kept},
                             {"dropped", written->dropped}, {"bytes", written->bytes}};
}

Result<Report> warmup(const WarmupOptions& options) {
    Log log;
    const auto context = open_context(options, log);
    if (!context) return context.error();
    const auto plan = plan_for(**context, options.sources);
    if (!plan) return plan.error();
    if (options.dry_run) return dry_run(*plan);
    const std::string cache_dir = (*context)->cache_dir();
    if (!options.bundle.empty()) {
        if (cache_dir.empty()) return usage_error("--bundle needs a cache to compile into: name a directory with --cache-dir");
        if (const Outcome place = check_bundle_place(options.bundle, (*context)->config().cache.store.shared); !place) return place.error();
    }
    for (const std::string& reason : plan->left_out) fmt::print(stderr, "note: {}\n", printable(reason));

    const Interruption interruption;
    Results results;
    Progress& progress = log.progress.emplace(plan->kernels);
    const auto begin = std::chrono::steady_clock::now();
    for (const WarmupPlan::Group& group : plan->groups) {
        const std::uint64_t before = progress.done();
        const Outcome outcome = compile_group(**context, group, results, progress);
        if (!outcome && progress.done() == before) return outcome.error();  // nothing could even begin
        if (Interruption::requested()) break;
    }
    progress.clear();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

    const std::uint64_t compiled = results.sum(&ArchTally::compiled), cached = results.sum(&ArchTally::cached),
                        failed = results.sum(&ArchTally::failed), kernels = compiled + cached + failed;
    const bool interrupted = kernels != plan->kernels;
    Json per_arch = Json::object();
    std::string lines;
    for (auto& [arch, tally] : results.tallies) {
        const Json median = tally.median_ms();
        per_arch[arch] = {{"compiled", tally.compiled},
                          {"cached", tally.cached},
                          {"failed", tally.failed},
                          {"median_compile_ms", median}};
        lines += fmt::format("  {:<9} {} compiled{}, {} cached, {} failed\n", arch, tally.compiled,
                             median.is_null() ? "" : fmt::format(" (median {:.0f} ms)", median.get<double>()),
                             tally.cached, tally.failed);
    }
    Report report;
    report.exit_code = failed == 0 && !interrupted ? kOk : failed == kernels && !interrupted ? kFailed : kPartial;
    report.text = fmt::format("normquant warmup: {} kernels, {} compiled, {} cached, {} failed, {:.1f} s\n{}  {}\n",
                              kernels, compiled, cached, failed, seconds, lines,
                              cache_dir.empty() ? "no disk cache: nothing was kept" : "cache: " + printable(cache_dir));
    if (interrupted)
        report.text += fmt::format("  interrupted, {} of {} kernels done: the same command does the rest\n", kernels, plan->kernels);
    report.json = {
        {"command", "warmup"},  {"cache_dir", cache_dir},       {"kernels", kernels},       {"planned", plan->kernels},
        {"compiled", compiled}, {"cached", cached},             {"failed", failed},         {"interrupted", interrupted},
        {"seconds", seconds},   {"archs", std::move(per_arch)}, {"left_out", plan->left_out}, {"failures", std::move(results.failures)}};
    if (!options.bundle.empty()) add_bundle(report, **context, *plan, options.bundle);
    return report;
}

}  // namespace

Command add_warmup(CLI::App& parent) {
    auto options = std::make_shared<WarmupOptions>();
    CLI::App* app = parent.add_subcommand("warmup", "Compile kernels into the cache; needs no GPU");
    add_problem_options(*app, options->sources.lists);
    app->add_option("--model", options->sources.models, "config.json, .safetensors file or folder of a model; may be repeated")
        ->allow_extra_args(false);
    app->add_option("--manifest", options->sources.manifests, "JSON file of problems, as NORMQUANT_RECORD writes; may be repeated")
        ->allow_extra_args(false);
    app->add_option("--bundle", options->bundle, "Also write the kernels into this one file, beside what it has of the same kernel sources");
    app->add_flag("--dry-run", options->dry_run, "Print what would be made; its --json is a manifest");
    app->add_option("--threads", options->threads, "Compiles at a time; 0: as many as cores and memory allow, also in a container")->capture_default_str();
    add_cache_dir(*app, options->cache_dir);
    app->footer(kWarmupFooter);
    return {app, [options] { return warmup(*options); }};
}

}  // namespace nq::cli
