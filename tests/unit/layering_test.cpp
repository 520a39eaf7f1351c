// Modules of src/ may include only modules below them. A module that is not listed here fails, as does a cycle.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "support/catch.h"

namespace {

namespace fs = std::filesystem;

const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"support", {}},
    {"problem", {"support"}},
    {"plan", {"support", "problem"}},
    {"cuda", {"support", "problem"}},
    {"jit", {"support", "problem", "plan", "cuda"}},
    {"cache", {"support"}},
    {"runtime", {"support", "problem", "plan", "cuda", "jit", "cache"}},
    {"reference", {"support", "problem"}},
    {"api", {"support", "problem", "plan", "cuda", "jit", "cache", "runtime", "reference"}},
};

// Modules that may use the headers shared with the device code: <normquant/geometry.h> and the like, in kernels/.
const std::set<std::string> kMayIncludeKernels = {"problem", "plan", "jit", "runtime", "reference", "api"};

struct Include {
    std::string line;
    fs::path target;
    bool quoted;
};

std::vector<Include> includes_of(const fs::path& path) {
    static const std::regex pattern(R"re(^\s*#\s*include\s*(["<])([^">]+)[">])re");
    std::ifstream file(path);
    REQUIRE(file);
    std::vector<Include> found;
    for (std::string line; std::getline(file, line);) {
        std::smatch match;
        if (std::regex_search(line, match, pattern)) found.push_back({line, match[2].str(), match[1] == "\""});
    }
    return found;
}

}  // namespace

TEST_CASE("dependencies point one way") {
    const fs::path root = NORMQUANT_SOURCE_ROOT;
    std::size_t includes = 0;
    std::set<std::string> modules;
    for (const auto& item : fs::recursive_directory_iterator(root / "src")) {
        const fs::path extension = item.path().extension();
        if (extension != ".h" && extension != ".cpp") continue;
        const std::string module = item.path().lexically_relative(root / "src").begin()->string();
        INFO(item.path().string());
        REQUIRE(kMayInclude.count(module) == 1);
        modules.insert(module);
        for (const Include& include : includes_of(item.path())) {
            INFO(include.line);
            CHECK_FALSE(include.target.is_absolute());
            const std::string owner = include.target.begin()->string();
            if (include.quoted) {  // one of src/, by its path from there
                ++includes;
                CHECK(fs::exists(root / "src" / include.target));
                CHECK((owner == module || kMayInclude.at(module).count(owner) == 1));
            } else if (owner == "normquant" && include.target != "normquant/normquant.h") {
                CHECK(kMayIncludeKernels.count(module) == 1);
                CHECK(fs::exists(root / "kernels" / include.target));
            }
        }
    }
    CHECK(includes > 0);
    CHECK(modules.count("support") == 1);
}

TEST_CASE("the rules themselves have no cycle") {
    // Take away modules without remaining dependencies until none is left.
    auto left = kMayInclude;
    while (!left.empty()) {
        std::set<std::string> done;
        for (const auto& [module, below] : left) {
            if (below.empty()) done.insert(module);
        }
        REQUIRE_FALSE(done.empty());
        for (const std::string& module : done) left.erase(module);
        for (auto& [module, below] : left) {
            for (const std::string& name : done) below.erase(name);
        }
    }
}

// They are handed to NVRTC in memory, without a toolkit. What host builds of them take from C++ has no suffix.
TEST_CASE("kernel headers include only each other, by one kind of path") {
    const fs::path kernels = fs::path(NORMQUANT_SOURCE_ROOT) / "kernels";
    std::size_t includes = 0;
    for (const auto& item : fs::recursive_directory_iterator(kernels)) {
        if (!item.is_regular_file()) continue;
        for (const Include& include : includes_of(item.path())) {
            INFO(item.path().string() << ": " << include.line);
            ++includes;
            CHECK_FALSE(include.quoted);
            if (include.target.begin()->string() == "normquant")
                CHECK(fs::exists(kernels / include.target));
            else
                CHECK((!include.target.has_extension() && !include.target.has_parent_path()));
        }
    }
    CHECK(includes > 0);
}
