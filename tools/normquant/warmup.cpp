// normquant warmup: fills the kernel cache ahead of time. Needs NVRTC, but neither GPU nor driver.
#include "command.h"
#include "options.h"
#include "plan/plan.h"
#include "problems.h"
#include "runtime/parallel.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

namespace nq::cli {
namespace {

constexpr const char* kWarmupFooter =
    R"(Compiles every kernel that an engine will ask for into the cache, so that serving starts without a compile. Run it when an
image is built: it needs NVRTC, but no GPU and no driver. Kernels that are cached already are not compiled again.

Every combination of the lists is made. Targets: sm_80, sm_86, sm_89, sm_90 and, on Blackwell, family targets: sm_100f
(B200, B300), sm_110f, sm_120f (RTX 50, DGX Spark).

Examples:
  normquant warmup --hidden 4096,7168 --arch sm_90,sm_100f
  normquant warmup --hidden 2880 --arch sm_120f --dtype fp16,bf16 --format mxfp4 --layout swizzled --json
Exit codes: 0 all there, 1 none could be made, 2 bad option, 3 some failed.)";

struct WarmupOptions {
    ProblemLists lists{.hidden = {},
                       .archs = {},
                       .dtypes = {"bf16"},
                       .formats = {"nvfp4", "mxfp4"},
                       .layouts = {"linear", "swizzled"},
                       .weights = {"same"}};
    std::string threads = "0";
    std::string cache_dir;
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

struct Progress {
    const std::vector<nq_problem>& problems;
    std::map<std::string, ArchTally> tallies;
    Json failures = Json::array();

    void add(const nq_precompile_event& event) {
        const nq_problem& problem = problems[event.problem_index];
        const std::string what =
            fmt::format("{} H={} {} {} weight={} {} {}", event.arch, problem.hidden, dtype_name(problem.dtype),
                        format_name(problem), dtype_name(problem.weight_dtype), layout_name(problem.scale_layout),
                        name(static_cast<Variant>(event.variant)));
        ArchTally& tally = tallies[event.arch];
        const double milliseconds = static_cast<double>(event.compile_ns) * 1e-6;
        std::string outcome;
        if (event.status != NQ_OK) {
            ++tally.failed;
            outcome = fmt::format("failed: {}", event.message);
            failures.push_back(
                {{"kernel", what}, {"status", nq_status_name(event.status)}, {"message", event.message}});
        } else if (event.cached != 0) {
            ++tally.cached;
            outcome = "cached";
        } else {
            ++tally.compiled;
            tally.milliseconds.push_back(milliseconds);
            outcome = fmt::format("compiled in {:.0f} ms", milliseconds);
        }
        fmt::print(stderr, "[{}/{}] {}: {}\n", event.done, event.total, what, outcome);
    }
};

int on_event(const nq_precompile_event* event, void* payload) {
    static_cast<Progress*>(payload)->add(*event);
    return 0;
}

Result<Report> warmup(const WarmupOptions& options) {
    const auto valid = problems_of(options.lists);
    if (!valid) return valid.error();
    std::vector<nq_problem> problems;
    for (const Problem& problem : *valid) problems.push_back(problem_to_c(problem));
    const auto targets = archs_of(options.lists);
    if (!targets) return targets.error();
    std::vector<std::string> arch_names;
    for (const Arch& arch : *targets) arch_names.push_back(arch.name());
    std::vector<const char*> archs;
    for (const std::string& arch : arch_names) archs.push_back(arch.c_str());
    const auto threads = parse_count("--threads", options.threads, 0, 1024);
    if (!threads) return threads.error();
    nq_context_options context_options = NQ_CONTEXT_OPTIONS_INIT;
    // A context by itself leaves cores to its program; nothing else runs here.
    context_options.compile_threads = *threads != 0 ? *threads : cores();
    const auto context = create_context(options.cache_dir, context_options);
    if (!context) return context.error();

    Progress progress{problems, {}, Json::array()};
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = check(nq_precompile(context->get(), problems.data(), problems.size(), archs.data(),
                                                archs.size(), 0, on_event, &progress));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (progress.tallies.empty() && !outcome) return outcome.error();

    ArchTally total;
    Json per_arch = Json::object();
    std::string lines;
    for (auto& [arch, tally] : progress.tallies) {
        total.compiled += tally.compiled;
        total.cached += tally.cached;
        total.failed += tally.failed;
        const Json median = tally.median_ms();
        per_arch[arch] = {{"compiled", tally.compiled},
                          {"cached", tally.cached},
                          {"failed", tally.failed},
                          {"median_compile_ms", median}};
        lines += fmt::format("  {:<9} {} compiled{}, {} cached, {} failed\n", arch, tally.compiled,
                             median.is_null() ? "" : fmt::format(" (median {:.0f} ms)", median.get<double>()),
                             tally.cached, tally.failed);
    }
    const std::string cache_dir = nq_context_cache_dir(context->get());
    const std::uint64_t kernels = total.compiled + total.cached + total.failed;
    const std::string place = cache_dir.empty() ? "no disk cache: nothing was kept" : "cache: " + cache_dir;
    Report report;
    report.exit_code = total.failed == 0 && outcome.ok() ? kOk : total.failed == kernels ? kFailed : kPartial;
    report.text = fmt::format("normquant warmup: {} kernels, {} compiled, {} cached, {} failed, {:.1f} s\n{}  {}\n",
                              kernels, total.compiled, total.cached, total.failed, seconds, lines, place);
    report.json = {
        {"command", "warmup"},        {"cache_dir", cache_dir},       {"kernels", kernels},
        {"compiled", total.compiled}, {"cached", total.cached},       {"failed", total.failed},
        {"seconds", seconds},         {"archs", std::move(per_arch)}, {"failures", std::move(progress.failures)}};
    return report;
}

}  // namespace

Command add_warmup(CLI::App& parent) {
    auto options = std::make_shared<WarmupOptions>();
    CLI::App* app = parent.add_subcommand("warmup", "Compile kernels into the cache; needs no GPU");
    add_problem_options(*app, options->lists);
    app->add_option("--threads", options->threads, "Compiles at a time; 0: one a core")->capture_default_str();
    add_cache_dir(*app, options->cache_dir);
    app->footer(kWarmupFooter);
    return {app, [options] { return warmup(*options); }};
}

}  // namespace nq::cli
