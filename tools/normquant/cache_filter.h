// Which entries a command is about: options that several commands take.
#pragma once

#include "cache_view.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace nq::cli {

struct FilterOptions {
    std::vector<std::string> archs;
    std::vector<std::string> hidden;
    std::string older_than;
    std::string newer_than;
};

void add_kernel_filter(CLI::App& app, FilterOptions& options);  // --arch, --hidden
void add_age_filter(CLI::App& app, FilterOptions& options);     // --older-than, --newer-than

class Filter {
public:
    static Result<Filter> parse(const FilterOptions& options);
    // Of an entry as describe() has it. A bad one does not tell its problem and is accepted, whichever is asked for.
    bool accepts(const Json& row) const;

private:
    std::vector<std::string> archs_;
    std::vector<std::uint32_t> hidden_;
    std::optional<std::int64_t> older_than_;
    std::optional<std::int64_t> newer_than_;
};

}  // namespace nq::cli
