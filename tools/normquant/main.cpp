// The normquant command line tool.
#include "command.h"
#include "printable.h"
#include "variables.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <string>

namespace nq::cli {
namespace {

constexpr const char* kFooter = R"(normquant COMMAND --help explains a command, with examples.
Exit codes: 0 done, 1 failed or mismatch, 2 bad usage or input, 3 partly done.
Environment, with what holds where a variable is not set:
)";

std::string dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

void print_error(ExitCode code, const std::string& message, const std::string& detail, bool as_json) {
    if (as_json) {
        Json error = {{"message", message}};
        if (!detail.empty()) error["detail"] = detail;
        fmt::print("{}\n", dump({{"exit_code", static_cast<int>(code)}, {"error", std::move(error)}}));
    }
    fmt::print(stderr, "normquant: {}\n", printable(message, "\n"));
    if (!detail.empty()) fmt::print(stderr, "{}\n", printable(detail, "\n\t"));
}

// Options may not have been parsed yet when an error has to be printed.
bool wants_json(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--json") == 0) return true;
    }
    return false;
}

// A value that is empty, mostly a variable that is not set, is never taken for an option that is not there.
std::optional<std::string> empty_value(const CLI::App& app) {
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_expected_max() == 0 || std::ranges::count(option->results(), "") == 0) continue;
        return fmt::format("{} '' is empty: {}", option->get_name(),
                           option->get_required() ? "give a value" : "give a value, or leave it out");
    }
    return std::nullopt;
}

// What is accepted in place of a word that no command of `app` takes.
std::string names_of(const CLI::App& app) {
    std::string names;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App* each) { return !each->get_group().empty(); }))
        names += fmt::format("{}{}", names.empty() ? "" : ", ", command->get_name());
    return names;
}

int run(int argc, char** argv) {
    CLI::App app{"Fused RMSNorm and FP4 quantization (NVFP4, MXFP4), compiled at run time", "normquant"};
    app.footer(kFooter + variables_text());
    app.set_version_flag("--version",
                         fmt::format("normquant {}.{}.{}", NQ_VERSION_MAJOR, NQ_VERSION_MINOR, NQ_VERSION_PATCH));
    app.require_subcommand(0, 1);  // none is answered below, with the list of commands
    std::vector<Command> commands{add_quantize(app), add_warmup(app)};
    for (Command& command : add_cache(app)) commands.push_back(std::move(command));
    commands.push_back(add_bench(app));
    commands.push_back(add_info(app));
    commands.push_back(add_doctor(app));
    commands.push_back(add_documentation(app));
    bool as_json = false;
    const auto add_json = [&as_json](CLI::App& taker) {
        taker.add_flag("--json", as_json, "Print one JSON document on stdout, and nothing else there");
    };
    add_json(app);
    add_json(*app.get_subcommand("cache"));
    for (const Command& command : commands) add_json(*command.app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& asked) {  // --help, --version
        return app.exit(asked);
    } catch (const CLI::ParseError& error) {
        const CLI::App* cache = app.get_subcommand("cache");
        const bool in_cache = cache->parsed() && cache->get_subcommands().empty();
        const bool unknown =
            dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && (in_cache || app.get_subcommands().empty());
        const std::string hint =
            unknown ? fmt::format("commands{}: {}; ", in_cache ? " of cache" : "", names_of(in_cache ? *cache : app))
                    : "";
        print_error(kUsage, fmt::format("{} ({}see normquant --help)", error.what(), hint), {}, wants_json(argc, argv));
        return kUsage;
    }
    for (const Command& command : commands) {
        if (!command.app->parsed()) continue;
        if (const auto message = empty_value(*command.app)) {
            print_error(kUsage, *message, {}, as_json);
            return kUsage;
        }
        const auto report = command.run();
        if (!report) {
            const ExitCode code = exit_code_of(report.error());
            print_error(code, report.error().message, report.error().detail, as_json);
            return code;
        }
        fmt::print("{}", as_json ? dump(report->json) + "\n" : report->text);
        if (std::fflush(stdout) != 0) {
            fmt::print(stderr, "normquant: cannot write to stdout: {}\n", std::strerror(errno));
            return kFailed;
        }
        return report->exit_code;
    }
    std::string names;
    for (const Command& command : commands) {
        if (command.app->get_group().empty()) continue;  // hidden in --help as well
        const std::string group = command.app->get_parent() == &app ? "" : command.app->get_parent()->get_name() + " ";
        names += fmt::format("{}{}{}", names.empty() ? "" : ", ", group, command.app->get_name());
    }
    print_error(kUsage, fmt::format("name a command: {} (see normquant --help)", names), {}, wants_json(argc, argv));
    return kUsage;
}

}  // namespace
}  // namespace nq::cli

int main(int argc, char** argv) {
    try {
        return nq::cli::run(argc, argv);
    } catch (const std::exception& error) {  // out of memory, mostly
        std::fprintf(stderr, "normquant: %s\n", error.what());
        return nq::cli::kFailed;
    }
}
