// What every subcommand is made of: options bound by CLI11, and a function that returns a Report. Commands never print
// to stdout: main() prints the report as text or as one JSON document. Progress and notes go to stderr.
#pragma once

#include "errors.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace nq::cli {

using Json = nlohmann::ordered_json;

struct Report {
    ExitCode exit_code = kOk;
    Json json = Json::object();
    std::string text;  // for people; ends with a newline unless empty
};

struct Command {
    CLI::App* app = nullptr;
    std::function<Result<Report>()> run;
};

// One function a file.
Command add_quantize(CLI::App& parent);
Command add_warmup(CLI::App& parent);
std::vector<Command> add_cache(CLI::App& parent);
Command add_bench(CLI::App& parent);
Command add_info(CLI::App& parent);
Command add_doctor(CLI::App& parent);
Command add_documentation(CLI::App& parent);

}  // namespace nq::cli
