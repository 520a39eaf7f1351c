// normquant documentation: the manual page and the completions, from the option tables. For packages; hidden in --help.
#include "documentation.h"

#include "command.h"
#include "options.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <memory>

namespace nq::cli {
namespace {

struct Writer {
    const char* name;
    std::string (*write)(std::span<const DocumentedCommand> commands);
};

constexpr Writer kWriters[] = {
    {"man", manual_page}, {"bash", bash_completion}, {"zsh", zsh_completion}, {"fish", fish_completion}};

DocumentedOption documented(const CLI::Option& option) {
    DocumentedOption result;
    for (const std::string& name : option.get_snames()) result.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) result.names.push_back("--" + name);
    if (!option.nonpositional()) result.names = {option.get_name(true)};
    if (option.get_expected_max() != 0) result.value = option.get_type_name();
    result.values = offered(&option);
    result.list = option.get_delimiter() == ',';
    result.help = option.get_description();
    result.given = option.get_default_str();
    result.required = option.get_required();
    return result;
}

void add_options(const CLI::App& app, DocumentedCommand& command) {
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_group().empty()) continue;
        (option->nonpositional() ? command.options : command.positionals).push_back(documented(*option));
    }
}

void add_commands(const CLI::App& app, const std::vector<std::string>& path, std::vector<DocumentedCommand>& commands) {
    DocumentedCommand command{path, app.get_description(), app.get_footer(), {}, {}, {}};
    add_options(app, command);
    std::vector<const CLI::App*> inner;
    for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) {
        if (child->get_group().empty()) continue;
        if (child->get_name().empty()) {  // not a command, but a group of options
            add_options(*child, command);
        } else {
            command.subcommands.push_back({child->get_name(), child->get_description()});
            inner.push_back(child);
        }
    }
    commands.push_back(std::move(command));
    for (const CLI::App* child : inner) {
        std::vector<std::string> longer = path;
        longer.push_back(child->get_name());
        add_commands(*child, longer, commands);
    }
}

}  // namespace

std::vector<DocumentedCommand> documented_commands(const CLI::App& root) {
    std::vector<DocumentedCommand> commands;
    add_commands(root, {}, commands);
    return commands;
}

Command add_documentation(CLI::App& parent) {
    auto form = std::make_shared<std::string>();
    CLI::App* app = parent.add_subcommand("documentation", "The manual page, or completions for a shell")->group("");
    app->add_option("FORM", *form, "man, bash, zsh or fish")->required();
    return {app, [&parent, form]() -> Result<Report> {
                std::string accepted;
                for (const Writer& writer : kWriters) {
                    if (*form == writer.name) {
                        Report report;
                        report.text = writer.write(documented_commands(parent));
                        report.json = {{"command", "documentation"}, {"form", *form}, {"text", report.text}};
                        return report;
                    }
                    accepted += fmt::format("{}{}", accepted.empty() ? "" : ", ", writer.name);
                }
                return usage_error(fmt::format("FORM '{}' is not accepted: choose one of {}", *form, accepted));
            }};
}

}  // namespace nq::cli
