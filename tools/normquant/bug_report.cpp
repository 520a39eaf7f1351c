#include "bug_report.h"

#include "doctor_checks.h"
#include "printable.h"
#include "support/cores.h"

#include <fmt/core.h>

#include <gnu/libc-version.h>
#include <pwd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <string_view>

namespace nq::cli {
namespace {

// Of variables that decide what normquant and the libraries below it do.
constexpr std::string_view kPrefixes[] = {"NORMQUANT_", "CUDA_", "NVRTC_", "NV_NVVM_", "NVIDIA_"};

PrivateNames private_names() {
    PrivateNames names;
    if (const char* home = std::getenv("HOME")) names.home = home;
    if (const passwd* user = ::getpwuid(::geteuid())) names.user = user->pw_name;
    utsname system{};
    if (::uname(&system) == 0) names.host = system.nodename;
    return names;
}

bool part_of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Where it stands for itself: not within another word.
void replace_word(std::string& text, const std::string& word, std::string_view with) {
    if (word.empty()) return;
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
        const std::size_t end = at + word.size();
        const bool whole = (at == 0 || !part_of_word(text[at - 1])) && (end == text.size() || !part_of_word(text[end]));
        if (whole) text.replace(at, word.size(), with);
        at += whole ? with.size() : word.size();
    }
}

void remove_names(Json& json, const PrivateNames& names) {
    if (json.is_string()) json = without_names(json.get<std::string>(), names);
    if (!json.is_structured()) return;
    for (Json& item : json) remove_names(item, names);
}

std::string distribution() {
    std::ifstream file("/etc/os-release");
    constexpr std::string_view kName = "PRETTY_NAME=";
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with(kName)) return line.substr(kName.size());
    }
    return "unknown";
}

Json system_facts() {
    utsname system{};
    ::uname(&system);
    return {{"distribution", distribution()}, {"kernel", system.release},     {"machine", system.machine},
            {"libc", ::gnu_get_libc_version()}, {"compiler", __VERSION__}, {"cores", cores()}};
}

Json settings() {
    Json variables = Json::object();
    for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
        const std::string_view text(*variable);
        const std::string_view name = text.substr(0, text.find('='));
        for (const std::string_view prefix : kPrefixes) {
            if (name.starts_with(prefix) && name.size() < text.size())
                variables[std::string(name)] = text.substr(name.size() + 1);
        }
    }
    return variables;
}

}  // namespace

std::string without_names(std::string text, const PrivateNames& names) {
    if (names.home.size() > 1) replace_word(text, names.home, "~");
    if (names.user != "root") replace_word(text, names.user, "USER");
    if (names.host != "localhost") replace_word(text, names.host, "HOST");
    return text;
}

void make_bug_report(Report& report) {
    const Findings findings = examine("", false);
    report.json["system"] = system_facts();
    report.json["settings"] = settings();
    report.json["findings"] = to_json(findings);
    for (const char* part : {"system", "settings"}) {
        report.text += fmt::format("{}\n", part);
        for (const auto& [name, value] : report.json[part].items())
            report.text += fmt::format("  {} {}\n", name, printable(value.is_string() ? value.get<std::string>() : value.dump()));
    }
    report.text += "doctor\n" + to_text(findings);
    const PrivateNames names = private_names();
    report.text = without_names(std::move(report.text), names);
    remove_names(report.json, names);
}

}  // namespace nq::cli
