// What normquant doctor finds, one line each.
#pragma once

#include "command.h"

#include <string>
#include <string_view>
#include <vector>

namespace nq::cli {

enum class Severity {
    ok,
    note,     // worth knowing
    warning,  // works, but less well than it could
    problem,  // something that was asked for does not work
};
const char* name(Severity severity);

struct Finding {
    Severity severity = Severity::ok;
    std::string topic;
    std::string text;
    std::string remedy;  // a command or a setting; "" only for ok and notes
};

class Findings {
public:
    void ok(std::string_view topic, std::string text) { add(Severity::ok, topic, std::move(text), ""); }
    void note(std::string_view topic, std::string text, std::string remedy = "") {
        add(Severity::note, topic, std::move(text), std::move(remedy));
    }
    void warning(std::string_view topic, std::string text, std::string remedy) {
        add(Severity::warning, topic, std::move(text), std::move(remedy));
    }
    void problem(std::string_view topic, std::string text, std::string remedy) {
        add(Severity::problem, topic, std::move(text), std::move(remedy));
    }
    std::size_t count(Severity severity) const;
    const std::vector<Finding>& all() const { return findings_; }

private:
    void add(Severity severity, std::string_view topic, std::string text, std::string remedy) {
        findings_.push_back({severity, std::string(topic), std::move(text), std::move(remedy)});
    }

    std::vector<Finding> findings_;
};

}  // namespace nq::cli
