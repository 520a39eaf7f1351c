#include "documentation.h"

#include <normquant/normquant.h>

#include <fmt/format.h>

namespace nq::cli {
namespace {

// Text as it stands: a hyphen stays the one of options, and a line that begins with a point or a quote is no request.
std::string roff(std::string_view text) {
    std::string result;
    bool line_begins = true;
    for (const char c : text) {
        if (line_begins && (c == '.' || c == '\'')) result += "\\&";
        if (c == '\\') {
            result += "\\e";
        } else if (c == '-') {
            result += "\\-";
        } else {
            result += c;
        }
        line_begins = c == '\n';
    }
    return result;
}

// Footers are laid out by hand.
std::string as_it_stands(std::string_view text) {
    return text.empty() ? "" : fmt::format(".PP\n.nf\n{}\n.fi\n", roff(text));
}

std::string option_paragraph(const DocumentedOption& option) {
    std::string names;
    for (const std::string& name : option.names)
        names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", roff(name));
    const std::string value = option.value.empty() ? "" : fmt::format(" \\fI{}\\fR", roff(option.value));
    std::string text = fmt::format(".TP\n{}{}\n{}", names, value, roff(option.help));
    if (option.required) text += " (required)";
    // CLI11 shows a list as [a,b]; it is typed as a,b.
    const bool list = option.given.starts_with('[') && option.given.ends_with(']');
    const std::string given = list ? option.given.substr(1, option.given.size() - 2) : option.given;
    if (!given.empty()) text += fmt::format(" (default: {})", roff(given));
    return text + "\n";
}

std::string body(const DocumentedCommand& command) {
    std::string text;
    for (const DocumentedOption& positional : command.positionals) text += option_paragraph(positional);
    for (const DocumentedOption& option : command.options) text += option_paragraph(option);
    return text + as_it_stands(command.footer);
}

}  // namespace

std::string manual_page(std::span<const DocumentedCommand> commands) {
    const DocumentedCommand& program = commands.front();
    // No date: the same sources give the same page.
    std::string text = fmt::format(
        ".\\\" Written by: normquant documentation man\n.TH NORMQUANT 1 \"\" \"normquant {}.{}.{}\" \"User Commands\"\n"
        ".SH NAME\nnormquant \\- {}\n.SH SYNOPSIS\n\\fBnormquant\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.SH "
        "DESCRIPTION\n{}",
        NQ_VERSION_MAJOR, NQ_VERSION_MINOR, NQ_VERSION_PATCH, roff(program.help), body(program));
    text += ".SH COMMANDS\n";
    for (const DocumentedCommand& command : commands.subspan(1)) {
        std::string arguments;
        for (const DocumentedOption& positional : command.positionals)
            arguments += fmt::format(" {}{}{}", positional.required ? "" : "[", positional.names.front(),
                                     positional.required ? "" : "]");
        text += fmt::format(".SS {}{}\n{}\n{}", fmt::join(command.path, " "), roff(arguments), roff(command.help),
                            body(command));
    }
    return text;
}

}  // namespace nq::cli
