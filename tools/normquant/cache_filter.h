// Which entries a command is about: options that several commands take.
#pragma once

#include "cache_view.h"

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace nq::cli {

struct FilterOptions {
    std::string arch;
    std::string hidden;
    std::string older_than;
    std::string newer_than;
};

void add_kernel_filter(CLI::App& app, FilterOptions& options);  // --arch, --hidden
void add_age_filter(CLI::App& app, FilterOptions& options);     // --older-than, --newer-than

class Filter {
public:
    static Result<Filter> parse(const FilterOptions& options);
    // problem: as the entry's metadata has it.
    bool accepts(const std::string& arch, std::int64_t age_seconds, const std::string& problem) const;

private:
    std::string arch_;
    std::optional<std::uint32_t> hidden_;
    std::optional<std::int64_t> older_than_;
    std::optional<std::int64_t> newer_than_;
};

}  // namespace nq::cli
