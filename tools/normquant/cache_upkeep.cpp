// normquant cache gc, clear, stats.
#include "cache_commands.h"
#include "cache_view.h"
#include "errors.h"
#include "inventory.h"
#include "options.h"
#include "printable.h"
#include "units.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <unistd.h>

#include <cstdio>

namespace nq::cli {
namespace {

std::string version_root(const Store& store) { return store.root() + "/v1"; }

// ---- gc -----------------------------------------------------------------------------------------------------------

constexpr const char* kGcFooter =
    R"(Removes the entries that were used longest ago, until the root is within 90 % of the size, and those not used for longer
than the age; and what killed processes have left. Processes that use the cache meanwhile are not disturbed. Without
options, the size limit of NORMQUANT_CACHE_SIZE (1 GiB by default) is applied, as every process does that stores.

Examples:
  normquant cache gc
  normquant cache gc --max-size 256M --max-age 30d
Exit codes: 0 done, 1 no cache, another process is at it, or something could not be removed, 2 bad option.)";

Json describe(const EvictionReport& report) {
    return {{"removed_entries", report.entries},
            {"removed_bytes", report.bytes},
            {"left_entries", report.left_entries},
            {"left_bytes", report.left_bytes},
            {"failed", report.failed},
            {"removed_temp_files", report.temp_files},
            {"removed_bad_files", report.bad_files},
            {"removed_locks", report.locks}};
}

std::string text_of(const EvictionReport& report, const std::string& root) {
    const std::uint64_t others = report.temp_files + report.bad_files + report.locks;
    return fmt::format("{} entries, {} removed{}; {}{} entries, {} left in {}\n", report.entries,
                       size_text(report.bytes), others == 0 ? "" : fmt::format(", and {} other files", others),
                       report.failed == 0 ? "" : fmt::format("{} could not be removed; ", report.failed),
                       report.left_entries, size_text(report.left_bytes), printable(root));
}

// Directories that cannot be read hold more than the counts say.
ExitCode exit_code_of(const EvictionReport& report, const CacheView& view) {
    return report.failed == 0 && view.not_read().empty() ? kOk : kFailed;
}

struct GcOptions {
    std::string cache_dir;
    std::string max_size;
    std::string max_age;
};

Result<Report> gc(const GcOptions& options) {
    EvictionLimits limits;
    if (!options.max_size.empty()) {
        const auto size = parse_bytes("--max-size", options.max_size);
        if (!size) return size.error();
        if (*size == 0) return usage_error("--max-size '0' leaves nothing: that is normquant cache clear");
        limits.bytes = *size;
    }
    if (!options.max_age.empty()) {
        const auto age = parse_age("--max-age", options.max_age);
        if (!age) return age.error();
        if (*age == 0)
            return usage_error(
                fmt::format("--max-age '{}' leaves nothing: that is normquant cache clear", options.max_age));
        limits.age_seconds = *age;
    }
    const auto view = CacheView::open({options.cache_dir, ""}, Access::change);
    if (!view) return view.error();
    const auto root = (*view)->writable_root();
    if (!root) return root.error();
    if (options.max_size.empty() && options.max_age.empty()) limits.bytes = (*root)->options().size_limit;

    EvictionReport done;
    const bool exists = ::access(version_root(**root).c_str(), F_OK) == 0;
    if (exists) {
        done = (*root)->evict(limits);
        if (!done.ran) return failure(fmt::format("another process is evicting from {}: try again", (*root)->root()));
    }
    Report report;
    report.exit_code = exit_code_of(done, **view);
    report.text = text_of(done, (*root)->root());
    report.json = {{"command", "cache gc"}, {"root", (*root)->root()}, {"limit_bytes", limits.bytes}};
    report.json.update(describe(done));
    report.json["not_read"] = (*view)->not_read_json();
    return report;
}

// ---- clear --------------------------------------------------------------------------------------------------------

constexpr const char* kClearFooter =
    R"(Removes every entry of the root, its statistics and what is left of interrupted work; layers and files that are none of
the cache's stay. Processes that have loaded their kernels go on; others compile again. Asks before it does so.

Examples:
  normquant cache clear
  normquant cache clear --yes --cache-dir /var/cache/normquant
Exit codes: 0 done, 1 no cache, declined, or something could not be removed, 2 bad option or nobody to ask.)";

bool confirmed(const std::string& question) {
    fmt::print(stderr, "{} [y/N] ", printable(question));
    std::fflush(stderr);
    char answer[16] = "";
    return std::fgets(answer, sizeof answer, stdin) != nullptr && (answer[0] == 'y' || answer[0] == 'Y');
}

Result<Report> clear(const std::string& cache_dir, bool yes) {
    if (!yes && ::isatty(STDIN_FILENO) == 0)
        return usage_error("there is nobody to ask whether to remove every entry: --yes does so without asking");
    const auto view = CacheView::open({cache_dir, ""}, Access::change);
    if (!view) return view.error();
    const auto root = (*view)->writable_root();
    if (!root) return root.error();
    if (!yes) {
        const Inventory there = take_inventory((*root)->root());
        if (!confirmed(fmt::format("Remove {} entries, {}, in {}?", there.entries, size_text(there.disk_bytes),
                                   (*root)->root()))) {
            return failure("nothing was removed");
        }
    }
    const EvictionReport done = (*root)->clear();
    Report report;
    report.exit_code = exit_code_of(done, **view);
    report.text = text_of(done, (*root)->root());
    report.json = {{"command", "cache clear"}, {"root", (*root)->root()}};
    report.json.update(describe(done));
    report.json["not_read"] = (*view)->not_read_json();
    return report;
}

// ---- stats --------------------------------------------------------------------------------------------------------

constexpr const char* kStatsFooter =
    R"(What is in the root now, and what all processes that have used it and ended have counted, by the names of nq_counters.
Kernels are counted, of which nq_prepare loads one to four.

  --reset   sets the counters to zero, after showing them

Examples:
  normquant cache stats
  normquant cache stats --json | jq '.counters.misses'
Exit codes: 0 done, 1 no cache, or the counters could not be reset, 2 bad option.)";

std::string milliseconds(std::uint64_t nanoseconds) {
    return fmt::format("{:.0f} ms", static_cast<double>(nanoseconds) * 1e-6);
}

std::string text_of(const CounterTotals& totals, const Json& ratio) {
    const auto line = [](std::string_view label, const std::string& value) {
        return fmt::format("  {:<16}{}\n", label, value);
    };
    return line("hits", fmt::format("{} layers, {} root; {} prepares from memory", totals.layer_hits, totals.disk_hits,
                                    totals.memory_hits)) +
           line("misses", std::to_string(totals.misses)) +
           line("hit ratio", ratio.is_null() ? "-" : fmt::format("{:.1f} %", 100 * ratio.get<double>())) +
           line("compiles", fmt::format("{}, {} failed, {}", totals.compiles, totals.failed_compiles,
                                        milliseconds(totals.compile_ns))) +
           line("waits", fmt::format("{} for another process, {}; {} given up", totals.lock_waits,
                                     milliseconds(totals.lock_wait_ns), totals.lock_timeouts)) +
           line("stored", fmt::format("{} entries, {}; {} failed", totals.stored_entries,
                                      size_text(totals.stored_bytes), totals.failed_stores)) +
           line("read", size_text(totals.loaded_bytes)) +
           line("evicted", fmt::format("{} entries, {}", totals.evicted_entries, size_text(totals.evicted_bytes))) +
           line("bad entries", std::to_string(totals.bad_entries));
}

Result<Report> stats(const std::string& cache_dir, bool reset) {
    const auto view = CacheView::open({cache_dir, ""}, reset ? Access::change : Access::look);
    if (!view) return view.error();
    if (reset) {
        if (const auto writable = (*view)->writable_root(); !writable) return writable.error();
    }
    Report report;
    const std::string& root = (*view)->root_path();
    const std::uint64_t limit = (*view)->config().cache.store.size_limit;
    const Inventory there = take_inventory(root);
    const CounterTotals totals = root.empty() ? CounterTotals{} : (*view)->places().back().store->statistics();
    const std::uint64_t hits = totals.layer_hits + totals.disk_hits, asked = hits + totals.misses;
    const Json ratio = asked == 0 ? Json(nullptr) : Json(static_cast<double>(hits) / static_cast<double>(asked));

    Json counters = Json::object();
#define NQ_ADD(name) counters[#name] = totals.name;
    NQ_COUNTERS(NQ_ADD)
#undef NQ_ADD
    Json archs = Json::object();
    std::string arch_text;
    for (const auto& [arch, count] : there.by_arch) {
        archs[arch] = count;
        arch_text += fmt::format("{}{} {}", arch_text.empty() ? "" : ", ", count, arch);
    }
    report.text = fmt::format("{}\n  {:<16}{}{}\n  {:<16}{} of {}\n", printable((*view)->summary()), "entries",
                              there.entries, arch_text.empty() ? "" : ": " + printable(arch_text), "size",
                              size_text(there.disk_bytes), limit == 0 ? "no limit" : size_text(limit)) +
                  text_of(totals, ratio);
    if (reset) {
        Store& store = *(*view)->places().back().store;
        // Where there is no cache yet, they are zero, and nothing is made for their sake.
        if (::access(version_root(store).c_str(), F_OK) == 0 && !store.reset_statistics())
            return failure(
                fmt::format("the counters in {} could not be reset: another process is at them, or the "
                            "directory cannot be written",
                            root));
        report.text += "the counters are zero now\n";
    }
    report.json = {{"command", "cache stats"},         {"root", root},
                   {"places", (*view)->places_json()}, {"not_read", (*view)->not_read_json()},
                   {"entries", there.entries},         {"bytes", there.bytes},
                   {"disk_bytes", there.disk_bytes},   {"limit_bytes", limit == 0 ? Json(nullptr) : Json(limit)},
                   {"archs", std::move(archs)},        {"hit_ratio", ratio},
                   {"counters", std::move(counters)},  {"reset", reset}};
    return report;
}

}  // namespace

Command add_cache_gc(CLI::App& cache) {
    auto options = std::make_shared<GcOptions>();
    CLI::App* app = cache.add_subcommand("gc", "Remove entries not used for long");
    app->add_option("--max-size", options->max_size, "Bytes on disk, such as 256M or 2G");
    app->add_option("--max-age", options->max_age, "Time since the last use, such as 12h or 30d");
    add_cache_dir(*app, options->cache_dir);
    app->footer(kGcFooter);
    return {app, [options] { return gc(*options); }};
}

Command add_cache_clear(CLI::App& cache) {
    auto cache_dir = std::make_shared<std::string>();
    auto yes = std::make_shared<bool>(false);
    CLI::App* app = cache.add_subcommand("clear", "Remove every entry");
    app->add_flag("--yes", *yes, "Do not ask");
    add_cache_dir(*app, *cache_dir);
    app->footer(kClearFooter);
    return {app, [cache_dir, yes] { return clear(*cache_dir, *yes); }};
}

Command add_cache_stats(CLI::App& cache) {
    auto cache_dir = std::make_shared<std::string>();
    auto reset = std::make_shared<bool>(false);
    CLI::App* app = cache.add_subcommand("stats", "What processes have hit, missed, compiled and stored");
    app->add_flag("--reset", *reset, "Set the counters to zero");
    add_cache_dir(*app, *cache_dir);
    app->footer(kStatsFooter);
    return {app, [cache_dir, reset] { return stats(*cache_dir, *reset); }};
}

}  // namespace nq::cli
