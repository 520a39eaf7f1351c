#include "cache_filter.h"

#include "errors.h"
#include "options.h"
#include "problem/arch.h"
#include "problem/problem.h"
#include "units.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

namespace nq::cli {

void add_kernel_filter(CLI::App& app, FilterOptions& options) {
    app.add_option("--arch", options.arch, "Only kernels for this target, as sm_90 or sm_100f");
    app.add_option("--hidden", options.hidden, "Only kernels for rows of this length H");
}

void add_age_filter(CLI::App& app, FilterOptions& options) {
    app.add_option("--older-than", options.older_than, "Only those not used for longer: 90s, 30m, 12h, 7d");
    app.add_option("--newer-than", options.newer_than, "Only those used since: 90s, 30m, 12h, 7d ago");
}

Result<Filter> Filter::parse(const FilterOptions& options) {
    Filter filter;
    if (!options.arch.empty()) {
        const auto arch = parse_arch(options.arch);
        if (!arch) return usage_error(fmt::format("--arch: {}", arch.error().message));
        filter.arch_ = arch->name();
    }
    if (!options.hidden.empty()) {
        const auto hidden = parse_count("--hidden", options.hidden, 16, kMaxHidden);
        if (!hidden) return hidden.error();
        filter.hidden_ = *hidden;
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

bool Filter::accepts(const std::string& arch, std::int64_t age_seconds, const std::string& problem) const {
    if (!arch_.empty() && arch != arch_) return false;
    if (older_than_ && age_seconds <= *older_than_) return false;
    if (newer_than_ && age_seconds >= *newer_than_) return false;
    return !hidden_ || (" " + problem + " ").find(fmt::format(" hidden={} ", *hidden_)) != std::string::npos;
}

}  // namespace nq::cli
