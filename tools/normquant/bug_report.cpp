#include "bug_report.h"

#include "doctor_checks.h"
#include "printable.h"
#include "support/cores.h"

#include <fmt/core.h>

#include <gnu/libc-version.h>
#include <pwd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>

namespace nq::cli {
namespace {

// Variables that decide what normquant and the libraries below it do: by prefix, and by name where others with the prefix hold secrets
// (NVIDIA_API_KEY).
constexpr std::string_view kPrefixes[] = {"NORMQUANT_", "CUDA_", "NVRTC_"};
constexpr std::string_view kReported[] = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA", "NVTX_INJECTION64_PATH",
                                       "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "XDG_CACHE_HOME"};
constexpr std::string_view kSecrets[] = {"KEY", "TOKEN", "SECRET", "PASS"};

PrivateNames private_names() {
    PrivateNames names;
    if (const char* home = std::getenv("HOME")) names.home = home;
    while (names.home.size() > 1 && names.home.back() == '/') names.home.pop_back();
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
        if (!line.starts_with(kName)) continue;
        std::string value = line.substr(kName.size());
        std::erase(value, '"');
        return value;
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
        const bool ours = std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
        const bool secret = std::ranges::any_of(kSecrets, [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
        const bool named = std::ranges::find(kReported, name) != std::end(kReported);
        if ((named || (ours && !secret)) && name.size() < text.size()) variables[std::string(name)] = text.substr(name.size() + 1);
    }
    return variables;
}

}  // namespace

std::string without_names(std::string text, const PrivateNames& names) {
    if (names.home.size() > 1) replace_word(text, names.home, "~");
    // Of other users: a report made as root has paths of whom it serves.
    constexpr std::string_view kHomes = "/home/";
    for (std::size_t at = text.find(kHomes); at != std::string::npos; at = text.find(kHomes, at + kHomes.size())) {
        const std::size_t begin = at + kHomes.size();
        std::size_t end = begin;
        while (end < text.size() && (part_of_word(text[end]) || text[end] == '.' || text[end] == '-')) ++end;
        if (end != begin) text.replace(begin, end - begin, "USER");
    }
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
