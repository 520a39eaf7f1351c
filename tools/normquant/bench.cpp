// normquant bench: how fast the kernel is on this GPU, beside what its memory allows, and what the host pays.
#include "bench_host.h"
#include "command.h"
#include "libraries.h"
#include "options.h"
#include "problem/problem.h"

#include <normquant/geometry.h>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <memory>

namespace nq::cli {
namespace {

constexpr const char* kBenchFooter =
    R"(Times one kernel launch, beside a floor kernel (reads and writes as many bytes as the operator does, no arithmetic; the faster
of two), an empty kernel and a device copy that moves as many bytes. All of a shape are CUDA graphs that take turns in every
round; figures are medians over the rounds. GB/s counts the bytes that must be read and written, without padding.
Up to 64 rows are a decode step, whose rows lie in L2 if half of it holds them; others rotate through 4 times what L2 holds: the column
`inputs` says which.
  layout     with an o: launches overlap
  of floor   the floor kernel's time over the kernel's: 1 is as fast as memory allows
  x floor    its inverse; x empty, x copy likewise
Then the host's costs, for one row of the first shape: nq_prepare with an empty cache, from the disk cache and in memory, and
nq_launch beside the driver's own call with the same arguments. The cache directories used for that are temporary.

Examples:
  normquant bench
  normquant bench --shape 7168x16384,7168x1 --layout linear --format mxfp4
  normquant bench --op add_rmsnorm --y-out --layout swizzled,both --overlap
  normquant bench --shape 4096x1 --threads all --part kernels     every thread count of a row, to tune by
  normquant bench --json >bench.json && tools/plot_bench.py bench.json bench.svg
Exit codes: 0 done, 1 no GPU, or a measurement failed, 2 bad option.)";

// Prefill of at least 64 Mi elements, a small prefill, decode.
constexpr const char* kDefaultShapes[] = {
    "2048x32768", "2880x32768", "3584x32768", "4096x16384", "5120x16384", "7168x16384", "8192x16384", "12288x8192",
    "14336x8192", "16384x8192", "32768x4096", "128x524288", "512x131072", "1024x65536", "7168x1024",  "2048x1",
    "2048x8",     "2048x64",    "4096x1",     "4096x8",     "4096x64",    "5120x1",     "5120x8",     "5120x64",
    "7168x1",     "7168x8",     "7168x64",    "8192x1",     "8192x8",     "8192x64"};

struct BenchOptions {
    std::vector<std::string> shapes{std::begin(kDefaultShapes), std::end(kDefaultShapes)};
    std::vector<std::string> layouts{"linear", "swizzled"};
    std::string op = "rmsnorm";
    bool y_out = false, overlap = false;
    std::string dtype = "bf16";
    std::string weight = "same";
    std::string format = "nvfp4";
    std::string block, scale;
    std::string inputs;
    std::string threads;
    std::string variant = "throughput";
    std::string cluster = "1";
    std::string replays = "31";
    std::string part = "all";
    std::string cache_dir;
    bool csv = false;
};

Result<ShapeQuery> parse_shape(const std::string& text, const nq_problem& problem) {
    ShapeQuery query;
    query.problem = problem;
    const char* end = text.data() + text.size();
    const auto hidden = std::from_chars(text.data(), end, query.problem.hidden);
    if (hidden.ec == std::errc{} && hidden.ptr != end && *hidden.ptr == 'x') {
        const auto rows = std::from_chars(hidden.ptr + 1, end, query.rows);
        if (rows.ec == std::errc{} && rows.ptr == end && query.rows >= 1 && query.rows <= kMaxRows) {
            if (const Outcome valid = check(nq_problem_check(&query.problem)); !valid)
                return usage_error(fmt::format("--shape '{}': {}", text, valid.error().message));
            return query;
        }
    }
    return usage_error(fmt::format(
        "--shape '{}' is not HxM, a row length and a number of rows from 1 to {}, such as 7168x16384", text, kMaxRows));
}

Result<std::vector<std::uint32_t>> parse_layouts(const std::vector<std::string>& texts) {
    std::vector<std::uint32_t> layouts;
    for (const std::string& text : texts) {
        const auto layout = parse_any_layout("--layout", text);
        if (!layout) return layout.error();
        layouts.push_back(*layout);
    }
    return layouts;
}

// Plan overrides to measure beside what normquant chooses.
Result<std::vector<std::uint32_t>> parse_threads(const std::string& text, std::uint32_t hidden) {
    std::vector<std::uint32_t> threads{0};
    if (text.empty()) return threads;
    std::uint32_t only = 0;
    if (text != "all") {
        const char* end = text.data() + text.size();
        const auto [stop, status] = std::from_chars(text.data(), end, only);
        if (status != std::errc{} || stop != end || only == 0)
            return usage_error(
                fmt::format("--threads '{}' is not accepted: choose all, or a number of threads a row", text));
    }
    std::string valid;
    for (std::uint32_t n = 1; n <= 1024; n *= 2) {
        if (!normquant::threads_per_row_valid(hidden, n)) continue;
        valid += fmt::format("{}{}", valid.empty() ? "" : ", ", n);
        if (text == "all" || n == only) threads.push_back(n);
    }
    if (threads.size() > 1) return threads;
    return usage_error(fmt::format("--threads '{}' does not go with a row length of {}: choose all, or one of {}", text,
                                   hidden, valid));
}

struct NamedVariant {
    const char* name;
    std::uint32_t value;
};
constexpr NamedVariant kOverridable[] = {
    {"throughput", NQ_VARIANT_THROUGHPUT}, {"latency", NQ_VARIANT_LATENCY}, {"split", NQ_VARIANT_SPLIT}};

Names input_names() { return {name(InputsFrom::memory), name(InputsFrom::l2)}; }

Names part_names() { return {"all", "kernels", "host"}; }

Names variant_names() {
    Names names;
    for (const NamedVariant& variant : kOverridable) names.push_back(variant.name);
    return names;
}

Result<std::uint32_t> parse_variant(const std::string& text) {
    for (const NamedVariant& variant : kOverridable) {
        if (text == variant.name) return variant.value;
    }
    return one_of("--variant", text, variant_names()).error();
}

const char* variant_name(std::uint32_t value) {
    return std::ranges::find(kOverridable, value, &NamedVariant::value)->name;
}

Result<nq_problem> parse_problem(const BenchOptions& options) {
    nq_problem problem = NQ_PROBLEM_INIT;
    const auto format = parse_format(options.format, options.block, options.scale);
    if (!format) return format.error();
    problem.block_size = format->block_size;
    problem.scale_format = format->scale_format;
    const auto dtype = parse_dtype("--dtype", options.dtype);
    if (!dtype) return dtype.error();
    problem.dtype = *dtype;
    if (Outcome weight = one_of("--weight-dtype", options.weight, weight_names()); !weight) return weight.error();
    const auto op = parse_op("--op", options.op);
    if (!op) return op.error();
    problem.op = *op;
    if (options.y_out) problem.flags |= NQ_PROBLEM_Y_OUT;
    problem.weight_dtype = options.weight == "same" ? *dtype : static_cast<std::uint32_t>(NQ_FP32);
    return problem;
}

Result<std::vector<ShapeQuery>> parse_queries(const BenchOptions& options) {
    const auto problem = parse_problem(options);
    if (!problem) return problem.error();
    const auto layouts = parse_layouts(options.layouts);
    if (!layouts) return layouts.error();
    const auto replays = parse_count("--replays", options.replays, 1, 10000);
    if (!replays) return replays.error();
    const auto variant = parse_variant(options.variant);
    if (!variant) return variant.error();
    const auto cluster = parse_count("--cluster", options.cluster, 1, 16);
    if (!cluster) return cluster.error();
    if (options.threads.empty() && (*cluster != 1 || *variant != NQ_VARIANT_THROUGHPUT))
        return usage_error("--variant and --cluster say more of --threads, which is missing");
    if (!options.inputs.empty()) {
        if (Outcome inputs = one_of("--inputs", options.inputs, input_names()); !inputs) return inputs.error();
    }
    std::vector<ShapeQuery> queries;
    for (const std::string& text : options.shapes) {
        auto query = parse_shape(text, *problem);
        if (!query) return query.error();
        auto threads = parse_threads(options.threads, query->problem.hidden);
        if (!threads) return threads.error();
        query->threads = std::move(*threads);
        query->variant = *variant;
        query->cluster = static_cast<std::uint32_t>(*cluster);
        query->layouts = *layouts;
        query->overlap = options.overlap;
        query->replays = *replays;
        const bool decode = options.inputs.empty() ? query->rows <= kMostRowsInL2 : options.inputs == "l2";
        query->inputs = decode ? InputsFrom::l2 : InputsFrom::memory;
        queries.push_back(std::move(*query));
    }
    return queries;
}

Json to_json(const Spread& spread) { return {{"median", spread.median}, {"p10", spread.p10}, {"p90", spread.p90}}; }

Json to_json(const ShapeQuery& query, const ShapeTimes& times, const Candidate& candidate) {
    const double time = candidate.microseconds.median;
    return {{"hidden", query.problem.hidden},
            {"rows", query.rows},
            {"layout", layout_name(candidate.layout)},
            {"overlap", candidate.overlap},
            {"inputs", name(query.inputs)},
            {"threads", candidate.threads == 0 ? Json(nullptr) : Json(candidate.threads)},
            {"variant", candidate.threads == 0 ? Json(nullptr) : Json(variant_name(query.variant))},
            {"us", to_json(candidate.microseconds)},
            {"bytes", times.bytes},
            {"gb_per_s", static_cast<double>(times.bytes) / time * 1e-3},
            {"floor", times.best_floor == FloorKernel::vector ? "vector" : "granule"},
            {"floor_us", to_json(times.floor)},
            {"of_floor", times.floor.median / time},
            {"empty_us", to_json(times.empty)},
            {"to_empty", time / times.empty.median},
            {"copy_us", to_json(times.copy)},
            {"to_copy", time / times.copy.median},
            {"grid", candidate.launch.grid},
            {"cluster", candidate.launch.cluster},
            {"block_threads", candidate.launch.block_threads},
            {"shared_bytes", candidate.launch.shared_bytes},
            {"sets", times.sets},
            {"launches", times.launches}};
}

Json to_json(const HostCosts& costs) {
    const auto optional = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
    return {{"variants", costs.variants},
            {"cold_one_us", to_json(costs.cold_one)},
            {"cold_one_compile_us", to_json(costs.cold_one_compile)},
            {"cold_one_to_compile", costs.cold_one_ratio},
            {"cold_all_us", to_json(costs.cold_all)},
            {"slowest_compile_us", to_json(costs.slowest_compile)},
            {"cold_all_to_slowest_compile", costs.cold_all_ratio},
            {"warm_us", to_json(costs.warm)},
            {"memory_us", to_json(costs.memory)},
            {"launch_us", to_json(costs.launch)},
            {"raw_us", to_json(costs.raw_function)},
            {"launch_to_raw", costs.launch_ratio},
            {"raw_kernel_us", costs.raw_kernel ? to_json(*costs.raw_kernel) : Json(nullptr)},
            {"launch_to_raw_kernel", optional(costs.launch_to_raw_kernel)}};
}

double number(const Json& json, const char* name) { return json[name].get<double>(); }
double median(const Json& json, const char* name) { return json[name]["median"].get<double>(); }

std::string threads_text(const Json& kernel) {
    return kernel["threads"].is_null() ? "auto" : fmt::format("{}", kernel["threads"].get<int>());
}

std::string kernels_text(const Json& kernels) {
    std::string text =
        fmt::format("  {:>6} {:>7} {:<9} {:<6} {:>7} {:>9} {:>19} {:>6} {:>9} {:>8} {:>7} {:>7} {:>6}  {}\n", "H", "M",
                    "layout", "inputs", "threads", "us", "p10 - p90", "GB/s", "floor us", "of floor", "x floor",
                    "x empty", "x copy", "launch");
    for (const Json& k : kernels) {
        const double of_floor = number(k, "of_floor");
        std::string launch = fmt::format("{}", k["grid"][0].get<unsigned>());
        if (k["grid"][1] != 1) launch += fmt::format("x{}", k["grid"][1].get<unsigned>());
        launch +=
            fmt::format(" blocks of {}, {} B", k["block_threads"].get<unsigned>(), k["shared_bytes"].get<unsigned>());
        text += fmt::format(
            "  {:>6} {:>7} {:<9} {:<6} {:>7} {:>9.2f} {:>19} {:>6.0f} {:>9.2f} {:>8.3f} {:>7.2f} {:>7.2f} {:>6.2f}  "
            "{}\n",
            k["hidden"].get<unsigned>(), k["rows"].get<std::int64_t>(), k["layout"].get<std::string>() + (k["overlap"].get<bool>() ? " o" : ""),
            k["inputs"].get<std::string>(), threads_text(k), median(k, "us"),
            fmt::format("{:.2f} - {:.2f}", number(k["us"], "p10"), number(k["us"], "p90")), number(k, "gb_per_s"),
            median(k, "floor_us"), of_floor, 1 / of_floor, number(k, "to_empty"), number(k, "to_copy"), launch);
    }
    return text;
}

std::string host_text(const Json& host) {
    std::string text = "host, medians:\n";
    const auto line = [&](const char* what, double microseconds, const std::string& more) {
        text += fmt::format("  {:<44} {:>12.3f} us{}{}\n", what, microseconds, more.empty() ? "" : "   ", more);
    };
    line("nq_prepare, empty cache, one kernel", median(host, "cold_one_us"),
         fmt::format("{:.3f} x its NVRTC compile ({:.0f} us)", number(host, "cold_one_to_compile"),
                     median(host, "cold_one_compile_us")));
    line(fmt::format("nq_prepare, empty cache, all {} kernels", host["variants"].get<int>()).c_str(),
         median(host, "cold_all_us"),
         fmt::format("{:.3f} x the slowest compile ({:.0f} us)", number(host, "cold_all_to_slowest_compile"),
                     median(host, "slowest_compile_us")));
    line("nq_prepare, from the disk cache", median(host, "warm_us"), "");
    line("nq_prepare, in memory", median(host, "memory_us"), "");
    line("nq_launch", median(host, "launch_us"),
         fmt::format("{:.3f} x cuLaunchKernelEx of the CUfunction ({:.3f} us)", number(host, "launch_to_raw"),
                     median(host, "raw_us")));
    if (!host["raw_kernel_us"].is_null())
        line("", median(host, "launch_us"),
             fmt::format("{:.3f} x cuLaunchKernelEx of the CUkernel ({:.3f} us)", number(host, "launch_to_raw_kernel"),
                         median(host, "raw_kernel_us")));
    return text;
}

std::string csv_text(const Json& json) {
    std::string text =
        "hidden,rows,op,y_out,dtype,weight_dtype,format,layout,overlap,inputs,threads,us,us_p10,us_p90,gb_per_s,floor_us,of_floor,empty_"
        "us,to_empty,"
        "copy_us,to_copy\n";
    const Json& problem = json["problem"];
    for (const Json& k : json["kernels"]) {
        text += fmt::format("{},{},{},{:d},{},{},{},{},{:d},{},{},{},{},{},{},{},{},{},{},{},{}\n", k["hidden"].get<unsigned>(),
                            k["rows"].get<std::int64_t>(), problem["op"].get<std::string>(),
                            problem["y_out"].get<bool>(), problem["dtype"].get<std::string>(),
                            problem["weight_dtype"].get<std::string>(), problem["format"].get<std::string>(),
                            k["layout"].get<std::string>(), k["overlap"].get<bool>(), k["inputs"].get<std::string>(), threads_text(k),
                            median(k, "us"), number(k["us"], "p10"), number(k["us"], "p90"), number(k, "gb_per_s"),
                            median(k, "floor_us"), number(k, "of_floor"), median(k, "empty_us"), number(k, "to_empty"),
                            median(k, "copy_us"), number(k, "to_copy"));
    }
    return text;
}

std::string as_text(const Json& json) {
    const Json &device = json["device"], &problem = json["problem"];
    std::string text = fmt::format("normquant bench on {}: {}, {} SMs, L2 {} MiB, driver {}, NVRTC {}\n",
                                   device["name"].get<std::string>(), device["target"].get<std::string>(),
                                   device["multiprocessors"].get<int>(), device["l2_bytes"].get<int>() >> 20,
                                   device["driver"].get<std::string>(), device["nvrtc"].get<std::string>());
    if (json.contains("kernels"))
        text += fmt::format("{}{} to {}, {} rows, {} weight; medians of {} rounds\n{}",
                            problem["op"].get<std::string>(), problem["y_out"].get<bool>() ? " and y" : "", problem["format"].get<std::string>(),
                            problem["dtype"].get<std::string>(), problem["weight_dtype"].get<std::string>(),
                            json["replays"].get<unsigned>(), kernels_text(json["kernels"]));
    if (json.contains("host")) text += host_text(json["host"]);
    return text;
}

Result<Json> time_kernels(const BenchOptions& options, Device& device, const Nvrtc& nvrtc,
                          std::vector<ShapeQuery> queries) {
    const auto context = create_context(options.cache_dir);
    if (!context) return context.error();
    const auto floor = FloorKernels::load(device, nvrtc, queries.front().problem);
    if (!floor) return floor.error();
    // Before anything takes its time.
    const auto l2_bytes = static_cast<std::uint64_t>(device.facts().l2_bytes);
    for (ShapeQuery& query : queries) {
        // What decode has there, a small L2 does not hold.
        if (options.inputs.empty() && query.inputs == InputsFrom::l2 && !sets_for(query, l2_bytes)) query.inputs = InputsFrom::memory;
        if (const auto sets = sets_for(query, l2_bytes); !sets) return sets.error();
    }
    Json kernels = Json::array();
    std::size_t done = 0;
    for (const ShapeQuery& query : queries) {
        const auto times = time_shape(device, context->get(), *floor, query);
        if (!times) return times.error();
        for (const Candidate& candidate : times->candidates) kernels.push_back(to_json(query, *times, candidate));
        fmt::print(stderr, "[{}/{}] {}x{}\n", ++done, queries.size(), query.problem.hidden, query.rows);
    }
    return kernels;
}

Json describe(const Device& device, const Nvrtc& nvrtc) {
    const DeviceFacts& facts = device.facts();
    const auto target = target_for(facts.capability, nvrtc.version, nvrtc.archs);
    const int driver = device.driver()->version;
    return {{"name", facts.name},
            {"target", target ? Json(target->name()) : Json(nullptr)},
            {"multiprocessors", facts.multiprocessors},
            {"l2_bytes", facts.l2_bytes},
            {"driver", fmt::format("{}.{}", driver / 1000, driver % 1000 / 10)},
            {"nvrtc", text(nvrtc.version)}};
}

Result<Report> bench(const BenchOptions& options, bool as_json) {
    if (Outcome part = one_of("--part", options.part, part_names()); !part) return part.error();
    if (options.csv && as_json) return usage_error("--csv and --json are two forms of the same figures: choose one");
    if (options.csv && options.part == "host")
        return usage_error("--csv has the kernels alone, and --part host leaves them out");
    const auto queries = parse_queries(options);
    if (!queries) return queries.error();

    const auto config = environment_config();
    if (!config) return config.error();
    auto device = open_first_device();
    if (!device) {
        Error error = device.error();
        error.message += " (bench times kernels on a GPU)";
        return error;
    }
    const auto nvrtc = load_nvrtc(config->nvrtc);
    if (!nvrtc) return nvrtc.error();

    const nq_problem& problem = queries->front().problem;
    Report report;
    report.json = {{"command", "bench"},
                   {"device", describe(*device, **nvrtc)},
                   {"problem",
                    {{"dtype", dtype_name(problem.dtype)},
                     {"weight_dtype", dtype_name(problem.weight_dtype)},
                     {"format", format_name(problem)},
                     {"block", problem.block_size},
                     {"scale", scale_name(problem.scale_format)},
                     {"op", options.op},
                     {"y_out", options.y_out}}},
                   {"replays", queries->front().replays}};
    if (options.part != "host") {
        auto kernels = time_kernels(options, *device, **nvrtc, *queries);
        if (!kernels) return kernels.error();
        report.json["kernels"] = std::move(*kernels);
    }
    if (options.part != "kernels" && !options.csv) {
        nq_problem first = problem;
        first.scale_layout = queries->front().layouts.front();
        if (options.overlap) first.flags |= NQ_PROBLEM_OVERLAP;
        const auto costs = time_host(*device, **nvrtc, first);
        if (!costs) return costs.error();
        report.json["host"] = to_json(*costs);
    }
    report.text = options.csv ? csv_text(report.json) : as_text(report.json);
    return report;
}

}  // namespace

Command add_bench(CLI::App& parent) {
    auto options = std::make_shared<BenchOptions>();
    CLI::App* app = parent.add_subcommand("bench", "Time the kernel on the GPU, beside what its memory allows");
    app->add_option("--shape", options->shapes,
                    "HxM, row length and number of rows; several, separated by commas (default: prefill from 64 Mi "
                    "elements, decode)")
        ->delimiter(',')
        ->allow_extra_args(false);
    offer(app->add_option("--layout", options->layouts,
                          "linear, swizzled, both (in one launch); several, separated by commas (default: linear,swizzled)")
              ->delimiter(',')
              ->allow_extra_args(false),
          any_layout_names());
    offer(app->add_option("--op", options->op, "rmsnorm, add_rmsnorm (the residual is updated in place)")->capture_default_str(),
          op_names());
    app->add_flag("--y-out", options->y_out, "The normed rows are written, too");
    app->add_flag("--overlap", options->overlap, "Each kernel once more with launches that overlap (sm_90 and later)");
    offer(app->add_option("--format", options->format, "nvfp4 or mxfp4")->capture_default_str(), format_names());
    offer(app->add_option("--block", options->block, "16 or 32 elements a scale, instead of the format's"), block_names());
    offer(app->add_option("--scale", options->scale, "e4m3 or ue8m0 scales, instead of the format's"), scale_names());
    offer(app->add_option("--dtype", options->dtype, "fp16, bf16")->capture_default_str(), dtype_names());
    offer(app->add_option("--weight-dtype", options->weight, "same (as --dtype), fp32")->capture_default_str(), weight_names());
    offer(app->add_option("--inputs", options->inputs, "memory or l2: where launches find their rows (default: l2 up to 64 rows, where it holds them)"),
          input_names());
    app->add_option("--threads", options->threads,
                    "all, or threads a row: plan overrides to time beside the plan that is chosen");
    offer(app->add_option("--variant", options->variant, "throughput, latency, split: of the plan overrides")->capture_default_str(),
          variant_names());
    app->add_option("--cluster", options->cluster, "Blocks of a cluster that share a row, in the plan overrides")->capture_default_str();
    app->add_option("--replays", options->replays, "Rounds, 1 to 10000")->capture_default_str();
    offer(app->add_option("--part", options->part, "all, kernels, host: what to time")->capture_default_str(), part_names());
    app->add_flag("--csv", options->csv, "Print the kernels' figures as CSV; leaves the host's costs out");
    add_cache_dir(*app, options->cache_dir);
    app->footer(kBenchFooter);
    return {app,
            [options, app] { return bench(*options, app->count("--json") + app->get_parent()->count("--json") > 0); }};
}

}  // namespace nq::cli
