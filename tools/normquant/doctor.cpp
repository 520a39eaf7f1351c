// normquant doctor: looks at everything that normquant depends on, and says what to do about what is wrong.
#include "command.h"
#include "doctor_checks.h"
#include "options.h"
#include "printable.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>

namespace nq::cli {
namespace {

constexpr const char* kDoctorFooter =
    R"(Looks at the environment, the cache directory (place, file system, space, owner, mode, writing, locks, size, leftovers),
the layers, NVRTC, the driver and the devices. Each finding is ok, a note, a warning or a problem; what is to be done
about it stands below it. Nothing is created but a few files in an existing cache, which are removed again.

  --compile         also compiles one kernel in memory, as nq_prepare would
  --cache-dir DIR   looks at this root, not at that of the environment

Examples:
  normquant doctor
  normquant doctor --compile --json | jq '.findings[] | select(.severity == "problem")'
Exit codes: 0 no problem, 1 problems, 2 bad option.)";

struct DoctorOptions {
    std::string cache_dir;
    bool compile = false;
};

Result<Report> doctor(const DoctorOptions& options) {
    const Findings findings = examine(options.cache_dir, options.compile);
    Report report;
    const std::size_t problems = findings.count(Severity::problem), warnings = findings.count(Severity::warning);
    report.exit_code = problems == 0 ? kOk : kFailed;
    report.text = fmt::format("normquant doctor: {} problem{}, {} warning{}\n", problems, problems == 1 ? "" : "s",
                              warnings, warnings == 1 ? "" : "s") +
                  to_text(findings);
    report.json = {{"command", "doctor"}, {"problems", problems}, {"warnings", warnings}, {"findings", to_json(findings)}};
    return report;
}

}  // namespace

Findings examine(const std::string& cache_dir, bool compile) {
    Findings findings;
    Environment environment = check_environment(findings);
    if (!cache_dir.empty()) {
        environment.cache_dir = cache_dir;
        environment.cache_dir_source = "--cache-dir";
    }
    if (const auto config = make_config(nullptr, environment)) {
        check_cache(*config, environment, findings);
        check_libraries(*config, compile, findings);
    } else {
        findings.problem("environment", config.error().message, "set the variable to what is accepted, or unset it");
    }
    return findings;
}

Json to_json(const Findings& findings) {
    Json list = Json::array();
    for (const Finding& finding : findings.all()) {
        list.push_back({{"severity", name(finding.severity)},
                        {"topic", finding.topic},
                        {"text", finding.text},
                        {"remedy", finding.remedy}});
    }
    return list;
}

std::string to_text(const Findings& findings) {
    std::string text;
    for (const Finding& finding : findings.all()) {
        text += fmt::format("  {:<8} {:<16} {}\n", name(finding.severity), finding.topic, printable(finding.text));
        if (!finding.remedy.empty()) text += fmt::format("  {:<8} {:<16} -> {}\n", "", "", printable(finding.remedy));
    }
    return text;
}

const char* name(Severity severity) {
    switch (severity) {
        case Severity::ok:
            return "ok";
        case Severity::note:
            return "note";
        case Severity::warning:
            return "warning";
        case Severity::problem:
            break;
    }
    return "problem";
}

std::size_t Findings::count(Severity severity) const {
    return static_cast<std::size_t>(std::ranges::count(findings_, severity, &Finding::severity));
}

Command add_doctor(CLI::App& parent) {
    auto options = std::make_shared<DoctorOptions>();
    CLI::App* app = parent.add_subcommand("doctor", "What is wrong with this installation, and what to do about it");
    app->add_flag("--compile", options->compile, "Compile one kernel in memory");
    add_cache_dir(*app, options->cache_dir);
    app->footer(kDoctorFooter);
    return {app, [options] { return doctor(*options); }};
}

}  // namespace nq::cli
