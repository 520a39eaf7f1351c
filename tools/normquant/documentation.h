// The commands and options as `normquant documentation` writes them down, in whichever form.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace nq::cli {

struct DocumentedOption {
    std::vector<std::string> names;  // "-o", "--out"
    std::string value;               // what stands for a value in --help, or "" for a flag
    std::vector<std::string> values;  // the names that it may be, where they are a few
    bool list = false;               // several, separated by commas
    std::string help;
    std::string given;  // the default, or ""
    bool required = false;
};

struct DocumentedCommand {
    std::vector<std::string> path;  // {"cache", "list"}; empty for the program itself
    std::string help;
    std::string footer;
    std::vector<DocumentedOption> options;
    std::vector<DocumentedOption> positionals;  // one name each
    struct Subcommand {
        std::string name, help;
    };
    std::vector<Subcommand> subcommands;
};

// The program first, each group before its commands. What is hidden in --help is left out.
std::vector<DocumentedCommand> documented_commands(const CLI::App& root);

std::string manual_page(std::span<const DocumentedCommand> commands);  // roff, with the man macros
std::string bash_completion(std::span<const DocumentedCommand> commands);
std::string zsh_completion(std::span<const DocumentedCommand> commands);
std::string fish_completion(std::span<const DocumentedCommand> commands);

}  // namespace nq::cli
