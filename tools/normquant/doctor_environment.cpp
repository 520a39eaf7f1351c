// normquant doctor: the environment variables.
#include "doctor_checks.h"
#include "variables.h"

#include <fmt/core.h>

#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <set>
#include <string_view>
#include <vector>

namespace nq::cli {
namespace {

constexpr const char* kTopic = "environment";

// Others that decide what normquant does, by themselves or through the driver.
constexpr const char* kOthers[] = {"XDG_CACHE_HOME", "HOME", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_VISIBLE_DEVICES"};
// Those that the scripts which build normquant read.
constexpr std::string_view kBuildVariable = "NORMQUANT_CUDA";
// Those that libnvrtc reads by itself.
constexpr const char* kNvrtcVariables[] = {"NVRTC_APPEND_FLAGS", "NV_NVVM_VERSION"};

bool is_known(std::string_view name) {
    return std::ranges::any_of(variables(), [&](const Variable& variable) { return variable.name == name; });
}

void check_unknown(Findings& findings) {
    for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
        const std::string_view text(*variable);
        const std::string name(text.substr(0, text.find('=')));
        if (!name.starts_with("NORMQUANT_") || is_known(name) || name == kBuildVariable) continue;
        findings.warning(kTopic, fmt::format("{} is not a variable that normquant knows", name),
                         fmt::format("correct its name, or unset {}", name));
    }
}

}  // namespace

Environment check_environment(Findings& findings) {
    if (getauxval(AT_SECURE) != 0) {
        findings.note(kTopic, "this program runs with privileges that its caller has not: variables are ignored");
    }
    std::set<std::string, std::less<>> unusable;
    std::vector<const char*> names(std::begin(kOthers), std::end(kOthers));
    std::ranges::transform(variables(), std::inserter(names, names.begin()), &Variable::name);
    for (const char* name : names) {
        const char* value = secure_getenv(name);
        if (value == nullptr) continue;
        // Read by itself, each shows its own error.
        const auto alone =
            read_environment([&](const char* asked) { return std::string_view(asked) == name ? value : nullptr; });
        if (alone) {
            findings.ok(kTopic, fmt::format("{}={}", name, value));
            continue;
        }
        unusable.insert(name);
        findings.problem(kTopic, fmt::format("{}: no context can be created", alone.error().message),
                         fmt::format("set {} to what is accepted, or unset it", name));
    }
    check_unknown(findings);
    for (const char* name : kNvrtcVariables) {
        const char* value = std::getenv(name);
        if (value == nullptr) continue;
        findings.warning(kTopic,
                         fmt::format("{}={} is read by NVRTC and may change the code of kernels: they are cached apart",
                                     name, value),
                         fmt::format("unset {}, unless it is meant for normquant's kernels too", name));
    }
    const auto usable = read_environment(
        [&](const char* asked) { return unusable.contains(std::string_view(asked)) ? nullptr : secure_getenv(asked); });
    return usable ? *usable : Environment{};
}

}  // namespace nq::cli
