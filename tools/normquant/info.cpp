// normquant info: what is here, where it was found, and what it can do.
#include "bug_report.h"
#include "command.h"
#include "libraries.h"
#include "options.h"
#include "problem/arch.h"
#include "self_test.h"
#include "support/profiler_range.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <memory>

namespace nq::cli {
namespace {

constexpr const char* kInfoFooter =
    R"(Shows versions, the NVRTC and driver that normquant finds, and what each GPU supports. Nothing missing is an error here:
NVRTC is needed to compile kernels, the driver and a GPU to run them, neither for the CPU reference.

  --self-test   runs a dozen problems on GPU 0 and compares every byte with the CPU reference
  --bug-report  adds what a maintainer needs to know: the system, the settings, and what normquant doctor finds. The names of the
                user, the host and the home directory are replaced; look it over before you send it

Examples:
  normquant info
  normquant info --bug-report --self-test --json >report.json
  normquant info --self-test || echo "do not serve from this machine"
Exit codes: 0 done, 1 --self-test failed or found no GPU, 2 bad option.)";

std::string version_text(const NvrtcVersion& version) { return fmt::format("{}.{}", version.major, version.minor); }

struct Nvrtcs {
    std::optional<NvrtcVersion> version;
    std::vector<int> archs;
};

Json describe_nvrtc(const ContextConfig& config, Nvrtcs& found, std::string& text) {
    const auto nvrtc = load_nvrtc(config.nvrtc);
    if (!nvrtc) {
        text += fmt::format("  {:<10}not found: {}\n", "nvrtc", nvrtc.error().message);
        return {{"found", false}, {"message", nvrtc.error().message}};
    }
    const Nvrtc& library = **nvrtc;
    found = {library.version, library.archs};
    std::string archs;
    for (const int arch : library.archs) archs += fmt::format(" {}", arch);
    text += fmt::format("  {:<10}{} at {}, targets{}\n", "nvrtc", version_text(library.version), library.path, archs);
    return {
        {"found", true}, {"path", library.path}, {"version", version_text(library.version)}, {"archs", library.archs}};
}

Json describe_device(const DeviceFacts& facts, const Nvrtcs& nvrtc, std::string& text) {
    const std::string capability = fmt::format("{}.{}", facts.capability.major, facts.capability.minor);
    Json json = {{"ordinal", facts.ordinal},
                 {"name", facts.name},
                 {"compute_capability", capability},
                 {"multiprocessors", facts.multiprocessors},
                 {"memory_bytes", facts.memory_bytes}};
    const auto target = target_for(facts.capability, nvrtc.version, nvrtc.archs);
    std::string support;
    if (target) {
        const bool native = features(*target).fp4_convert;
        json["target"] = target->name();
        json["fp4_conversion"] = native ? "instruction" : "software";
        support = fmt::format("target {}, FP4 conversion by {}", target->name(),
                              native ? "instruction" : "software, same bytes");
    } else {
        json["target"] = nullptr;
        json["message"] = target.error().message;
        support = "not supported: " + target.error().message;
    }
    text += fmt::format("  {:<10}{}, compute capability {}, {} SMs, {:.0f} GiB: {}\n",
                        fmt::format("gpu {}", facts.ordinal), facts.name, capability, facts.multiprocessors,
                        static_cast<double>(facts.memory_bytes) / (1u << 30), support);
    return json;
}

Json describe_driver(const ContextConfig& config, const Nvrtcs& nvrtc, Json& devices, std::string& text) {
    const auto driver = load_driver(config.libcuda);
    if (!driver) {
        text += fmt::format("  {:<10}not usable: {}\n", "driver", driver.error().message);
        return {{"found", false}, {"message", driver.error().message}};
    }
    const int version = (*driver)->version;
    const std::string version_name = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
    text += fmt::format("  {:<10}CUDA {} at {}\n", "driver", version_name, (*driver)->path);
    const auto count = device_count(**driver);
    for (int ordinal = 0; count && ordinal < *count; ++ordinal) {
        const auto facts = device_facts(**driver, ordinal);
        if (facts) {
            devices.push_back(describe_device(*facts, nvrtc, text));
        } else {
            text += fmt::format("  {:<10}{}\n", fmt::format("gpu {}", ordinal), facts.error().message);
            devices.push_back({{"ordinal", ordinal}, {"message", facts.error().message}});
        }
    }
    if (devices.empty()) text += fmt::format("  {:<10}none\n", "gpu");
    return {{"found", true}, {"path", (*driver)->path}, {"version", version_name}};
}

void add_self_test(Report& report) {
    auto device = open_first_device();
    const auto context = create_context("");
    if (!device || !context) {
        const std::string message = (device ? context.error() : device.error()).message;
        report.exit_code = kFailed;
        report.text += fmt::format("self-test not possible: {}\n", message);
        report.json["self_test"] = {{"ran", false}, {"message", message}};
        return;
    }
    std::size_t passed = 0;
    Json cases = Json::array();
    for (const SelfTestCase& result : self_test(*device, context->get())) {
        passed += result.passed ? 1u : 0u;
        report.text += fmt::format("  {} {}{}{}\n", result.passed ? "equal " : "FAILED", result.name,
                                   result.passed ? "" : ": ", result.message);
        cases.push_back({{"problem", result.name}, {"passed", result.passed}, {"message", result.message}});
    }
    if (passed != cases.size()) report.exit_code = kFailed;
    report.text += fmt::format("self-test on {}: {} of {} equal the CPU reference, byte for byte\n",
                               device->facts().name, passed, cases.size());
    report.json["self_test"] = {{"ran", true}, {"passed", passed}, {"cases", std::move(cases)}};
}

struct InfoOptions {
    bool self_test = false;
    bool bug_report = false;
};

Result<Report> info(const InfoOptions& options) {
    Report report;
    const std::uint32_t version = nq_version();
    const std::string version_name = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
    report.text = fmt::format("normquant {}, kernel sources {}\n", version_name, nq_kernel_sources_digest());
    const auto config = environment_config();
    if (!config && !options.bug_report) return config.error();
    if (!config) {  // that is what the report is about
        report.exit_code = kFailed;
        report.text += fmt::format("  {}\n", config.error().message);
        report.json = {{"command", "info"}, {"version", version_name}, {"kernel_sources", nq_kernel_sources_digest()}, {"message", config.error().message}};
        make_bug_report(report);
        return report;
    }
    Nvrtcs nvrtcs;
    Json devices = Json::array();
    Json nvrtc = describe_nvrtc(*config, nvrtcs, report.text);
    Json driver = describe_driver(*config, nvrtcs, devices, report.text);
    report.text +=
        fmt::format("  {:<10}{}\n", "cache", config->cache.root.empty() ? "no disk cache" : config->cache.root);
    report.text += fmt::format("  {:<10}ranges for profilers are {}built in\n", "nvtx", profiler_ranges_built_in() ? "" : "not ");
    report.json = {{"command", "info"},
                   {"version", version_name},
                   {"kernel_sources", nq_kernel_sources_digest()},
                   {"nvrtc", nvrtc},
                   {"driver", driver},
                   {"devices", devices},
                   {"cache_dir", config->cache.root},
                   {"nvtx", profiler_ranges_built_in()}};
    if (options.self_test) add_self_test(report);
    if (options.bug_report) make_bug_report(report);
    return report;
}

}  // namespace

Command add_info(CLI::App& parent) {
    auto options = std::make_shared<InfoOptions>();
    CLI::App* app = parent.add_subcommand("info", "Versions, libraries, devices, and a self-test of the GPU");
    app->add_flag("--self-test", options->self_test, "Compare the GPU's bytes with the CPU reference's");
    app->add_flag("--bug-report", options->bug_report, "Add the system, the settings and doctor's findings, without names");
    app->footer(kInfoFooter);
    return {app, [options] { return info(*options); }};
}

}  // namespace nq::cli
