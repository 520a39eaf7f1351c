// A value is completed from the names that the option takes, if those are a few; any other, and an argument that is no option, as a file.
#include "documentation.h"

#include <fmt/format.h>

namespace nq::cli {
namespace {

std::vector<std::string> subcommands_of(const DocumentedCommand& command) {
    std::vector<std::string> names;
    for (const auto& subcommand : command.subcommands) names.push_back(subcommand.name);
    return names;
}

std::vector<std::string> words_of(const DocumentedCommand& command) {
    std::vector<std::string> names = subcommands_of(command);
    for (const DocumentedOption& option : command.options)
        names.insert(names.end(), option.names.begin(), option.names.end());
    return names;
}

// Each of `special`, and a backslash, with a backslash before it.
std::string escaped(std::string_view text, std::string_view special) {
    std::string result;
    for (const char c : text) {
        if (c == '\\' || special.find(c) != std::string_view::npos) result += '\\';
        result += c;
    }
    return result;
}

// What zsh and bash read between single quotes.
std::string single_quoted(std::string_view text) {
    std::string result = "'";
    for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return result + "'";
}

std::string zsh_values(const DocumentedOption& option) {
    if (option.values.empty()) return "_files";
    return option.list ? fmt::format("_values -s , {} {}", option.value, fmt::join(option.values, " "))
                       : fmt::format("({})", fmt::join(option.values, " "));
}

std::string zsh_option(const DocumentedOption& option) {
    const std::string help = escaped(option.help, "[]");
    std::string text;
    for (const std::string& name : option.names) {
        const char* separator = name.starts_with("--") ? "=" : "+";  // of a value, which may also be a word of its own
        const std::string value = option.value.empty() ? "" : fmt::format(":{}:{}", escaped(option.value, ":"), zsh_values(option));
        const std::string spec = fmt::format("({}){}{}[{}]{}", fmt::join(option.names, " "), name,
                                             value.empty() ? "" : separator, help, value);
        text += fmt::format(" \\\n        {}", single_quoted(spec));
    }
    return text;
}

std::string fish_value(const DocumentedOption& option) {
    if (option.value.empty()) return "-f";
    if (option.values.empty()) return "-r -F";
    return fmt::format("-x -a '{}{}{}'", option.list ? "(__fish_append , " : "", fmt::join(option.values, " "), option.list ? ")" : "");
}

}  // namespace

std::string bash_completion(std::span<const DocumentedCommand> commands) {
    std::string paths, with_value, with_names, words;
    for (const DocumentedCommand& command : commands) {
        const std::string path = command.path.empty() ? "" : fmt::format("/{}", fmt::join(command.path, "/"));
        if (!path.empty()) paths += fmt::format("{}{}", paths.empty() ? "" : " | ", path);
        for (const DocumentedOption& option : command.options) {
            if (option.value.empty()) continue;
            std::string given;
            for (const std::string& name : option.names) given += fmt::format("{}{}/{}", given.empty() ? "" : " | ", path, name);
            if (option.values.empty()) {
                with_value += fmt::format("{}{}", with_value.empty() ? "" : " | ", given);
            } else {
                with_names += fmt::format("    {}) words='{}'{} ;;\n", given, fmt::join(option.values, " "), option.list ? " list=1" : "");
            }
        }
        words += fmt::format("    {}) words='{}' ;;\n", path.empty() ? "''" : path, fmt::join(words_of(command), " "));
    }
    return fmt::format(R"(# Written by: normquant documentation bash
_normquant() {{
    # --option=value is three words.
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} path='' word words='' list='' before=''
    [[ $previous != = ]] || previous=${{COMP_WORDS[COMP_CWORD - 2]}}
    [[ $current != = ]] || current=''
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $path/$word in
        {}) path+=/$word ;;
        esac
    done
    COMPREPLY=()
    case $path/$previous in
    {}) return ;; # a file, by -o default
{}    esac
    if [[ $list ]]; then # several, separated by commas: the last is completed
        before=${{current%"${{current##*,}}"}}
    fi
    [[ $words ]] || case $path in
{}    esac
    mapfile -t COMPREPLY < <(compgen -P "$before" -W "$words" -- "${{current#"$before"}}")
}}
complete -o default -F _normquant normquant
)",
                       paths, with_value, with_names, words);
}

std::string zsh_completion(std::span<const DocumentedCommand> commands) {
    std::string text = "#compdef normquant\n# Written by: normquant documentation zsh\n";
    for (const DocumentedCommand& command : commands) {
        const std::string function =
            fmt::format("_normquant{}{}", command.path.empty() ? "" : "_", fmt::join(command.path, "_"));
        text +=
            fmt::format("\n{}() {{\n    local context curcontext=$curcontext state line\n    _arguments -C", function);
        for (const DocumentedOption& option : command.options) text += zsh_option(option);
        for (const DocumentedOption& positional : command.positionals)
            text += fmt::format(" \\\n        {}",
                                single_quoted(fmt::format(":{}:_files", escaped(positional.names.front(), ":"))));
        if (!command.subcommands.empty()) {
            std::string listed, cases;
            for (const auto& [name, help] : command.subcommands) {
                listed += fmt::format(" {}\\:\"{}\"", name, escaped(help, "\":"));
                cases += fmt::format("    {}) {}_{} ;;\n", name, function, name);
            }
            text += fmt::format(
                " \\\n        {} \\\n        '*::argument:->argument'\n    [[ $state == argument ]] && case $line[1] "
                "in\n{}    esac",
                single_quoted(fmt::format("1:command:(({}))", listed.substr(1))), cases);
        }
        text += "\n}\n";
    }
    return text + "\n_normquant \"$@\"\n";
}

std::string fish_completion(std::span<const DocumentedCommand> commands) {
    std::string text = "# Written by: normquant documentation fish\n";
    for (const DocumentedCommand& command : commands) {
        std::string here;  // the command line so far is one of this command
        for (const std::string& name : command.path)
            here += fmt::format("{}__fish_seen_subcommand_from {}", here.empty() ? "" : "; and ", name);
        if (!command.subcommands.empty())
            here += fmt::format("{}not __fish_seen_subcommand_from {}", here.empty() ? "" : "; and ",
                                fmt::join(subcommands_of(command), " "));
        const auto line = [&](const std::string& what, const std::string& help) {
            text += fmt::format("complete -c normquant -n '{}' {} -d '{}'\n", here, what, escaped(help, "'"));
        };
        for (const auto& [name, help] : command.subcommands) line("-f -a " + name, help);
        for (const DocumentedOption& option : command.options) {
            std::string names;
            for (const std::string& name : option.names)
                names += name.starts_with("--") ? fmt::format("-l {} ", name.substr(2))
                                                : fmt::format("-s {} ", name.substr(1));
            line(names + fish_value(option), option.help);
        }
    }
    return text;
}

}  // namespace nq::cli
