#include "cache_filter.h"

#include "errors.h"
#include "options.h"
#include "problem/arch.h"
#include "problem/problem.h"
#include "targets.h"
#include "units.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>

namespace nq::cli {

void add_kernel_filter(CLI::App& app, FilterOptions& options) {
    const auto list = [&app](const char* name, std::vector<std::string>& values, const char* help) {
        return app.add_option(name, values, help)->delimiter(',')->allow_extra_args(false);
    };
    offer(list("--arch", options.archs, "Only kernels for these targets, as sm_90,sm_100f"), target_names());
    list("--hidden", options.hidden, "Only kernels for rows of these lengths H, as 4096,7168; and bad entries");
}

void add_age_filter(CLI::App& app, FilterOptions& options) {
    app.add_option("--older-than", options.older_than, "Only those not used for longer: 90s, 30m, 12h, 7d");
    app.add_option("--newer-than", options.newer_than, "Only those used since: 90s, 30m, 12h, 7d ago");
}

Result<Filter> Filter::parse(const FilterOptions& options) {
    Filter filter;
    for (const std::string& text : options.archs) {
        const auto arch = parse_arch(text);
        if (!arch) return usage_error(fmt::format("--arch: {}", arch.error().message));
        filter.archs_.push_back(arch->name());
    }
    for (const std::string& text : options.hidden) {
        const auto hidden = parse_count("--hidden", text, 16, kMaxHidden);
        if (!hidden) return hidden.error();
        filter.hidden_.push_back(*hidden);
    }
    if (!options.older_than.empty()) {
        const auto age = parse_age("--older-than", options.older_than);
        if (!age) return age.error();
        filter.older_than_ = *age;
    }
    if (!options.newer_than.empty()) {
        const auto age = parse_age("--newer-than", options.newer_than);
        if (!age) return age.error();
        filter.newer_than_ = *age;
    }
    return filter;
}

bool Filter::accepts(const Json& row) const {
    if (!archs_.empty() && std::ranges::find(archs_, row["arch"].get<std::string>()) == archs_.end()) return false;
    const auto age = row["age_seconds"].get<std::int64_t>();
    if (older_than_ && age <= *older_than_) return false;
    if (newer_than_ && age >= *newer_than_) return false;
    if (hidden_.empty() || row.contains("error")) return true;
    const std::string problem = fmt::format(" {} ", row["problem"].get<std::string>());
    return std::ranges::any_of(hidden_, [&](std::uint32_t hidden) {
        return problem.find(fmt::format(" hidden={} ", hidden)) != problem.npos;
    });
}

}  // namespace nq::cli
