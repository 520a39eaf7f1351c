#include "support/environment.h"

#include <pwd.h>
#include <unistd.h>

#include <map>
#include <string>

#include "support/catch.h"

namespace {

using nq::Environment;
using nq::NamedPath;
using nq::read_environment;
using nq::Result;

using Variables = std::map<std::string, std::string>;

Result<Environment> read(const Variables& variables) {
    return read_environment([&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
    });
}

std::string passwd_default() {
    const passwd* record = getpwuid(geteuid());
    return record && record->pw_dir[0] == '/' ? std::string(record->pw_dir) + "/.cache/normquant" : "";
}

}  // namespace

TEST_CASE("default cache directory") {
    struct Row {
        Variables variables;
        std::string directory;
        std::string source;
    };
    const std::string passwd = passwd_default();
    const std::string passwd_source = passwd.empty() ? "" : "the passwd entry's home directory";
    const Row rows[] = {
        {{{"XDG_CACHE_HOME", "/xdg"}, {"HOME", "/home/u"}}, "/xdg/normquant", "XDG_CACHE_HOME"},
        {{{"XDG_CACHE_HOME", "/xdg/"}}, "/xdg/normquant", "XDG_CACHE_HOME"},
        {{{"XDG_CACHE_HOME", "/"}}, "/normquant", "XDG_CACHE_HOME"},
        {{{"XDG_CACHE_HOME", ""}, {"HOME", "/home/u"}}, "/home/u/.cache/normquant", "HOME"},
        {{{"XDG_CACHE_HOME", "relative"}, {"HOME", "/home/u"}}, "/home/u/.cache/normquant", "HOME"},
        {{{"XDG_CACHE_HOME", "./x"}, {"HOME", "/home/u"}}, "/home/u/.cache/normquant", "HOME"},
        {{{"HOME", "/home/with space"}}, "/home/with space/.cache/normquant", "HOME"},
        {{{"HOME", "/"}}, "/.cache/normquant", "HOME"},
        {{{"HOME", ""}}, passwd, passwd_source},
        {{{"HOME", "home/u"}}, passwd, passwd_source},
        {{}, passwd, passwd_source},
    };
    for (const Row& row : rows) {
        const auto environment = read(row.variables);
        REQUIRE(environment.ok());
        CHECK(environment->default_cache_dir == row.directory);
        CHECK(environment->cache_dir_source == row.source);
        CHECK_FALSE(environment->cache_dir.has_value());
    }
}

TEST_CASE("NORMQUANT_CACHE_DIR beats the default, and empty is not unset") {
    for (const std::string value : {"/cache", "relative", ""}) {
        const auto environment = read({{"NORMQUANT_CACHE_DIR", value}, {"HOME", "/home/u"}});
        REQUIRE(environment.ok());
        REQUIRE(environment->cache_dir.has_value());
        CHECK(*environment->cache_dir == value);
        CHECK(environment->cache_dir_source == "NORMQUANT_CACHE_DIR");
        CHECK(environment->default_cache_dir == "/home/u/.cache/normquant");
    }
}

TEST_CASE("nothing set, nothing chosen") {
    const auto environment = read({});
    REQUIRE(environment.ok());
    CHECK_FALSE(environment->jit.has_value());
    CHECK_FALSE(environment->nvrtc.has_value());
    CHECK_FALSE(environment->libcuda.has_value());
    CHECK_FALSE(environment->log_level.has_value());
    CHECK_FALSE(environment->cache_shared);
    CHECK(environment->cuda_homes.empty());
}

TEST_CASE("accepted values") {
    CHECK(read({{"NORMQUANT_JIT", "on"}})->jit == true);
    CHECK(read({{"NORMQUANT_JIT", "off"}})->jit == false);
    CHECK(read({{"NORMQUANT_CACHE_SHARED", "on"}})->cache_shared);
    CHECK_FALSE(read({{"NORMQUANT_CACHE_SHARED", "off"}})->cache_shared);
    CHECK(read({{"NORMQUANT_LOG", "debug"}})->log_level == NQ_LOG_DEBUG);
    CHECK(read({{"NORMQUANT_LOG", "info"}})->log_level == NQ_LOG_INFO);
    CHECK(read({{"NORMQUANT_LOG", "warn"}})->log_level == NQ_LOG_WARN);
    CHECK(read({{"NORMQUANT_LOG", "error"}})->log_level == NQ_LOG_ERROR);
    CHECK(read({{"NORMQUANT_LOG", "off"}})->log_level == NQ_LOG_OFF);
    CHECK(read({{"NORMQUANT_NVRTC", "/x/libnvrtc.so"}})->nvrtc == "/x/libnvrtc.so");
    CHECK(read({{"NORMQUANT_LIBCUDA", "libcuda.so.1"}})->libcuda == "libcuda.so.1");

    const auto both = read({{"CUDA_HOME", "/cuda-a"}, {"CUDA_PATH", "/cuda-b"}});
    CHECK(both->cuda_homes == std::vector<NamedPath>{{"CUDA_HOME", "/cuda-a"}, {"CUDA_PATH", "/cuda-b"}});
    CHECK(read({{"CUDA_HOME", "/cuda"}, {"CUDA_PATH", "/cuda"}})->cuda_homes == std::vector<NamedPath>{{"CUDA_HOME", "/cuda"}});
    CHECK(read({{"CUDA_HOME", ""}, {"CUDA_PATH", "/cuda"}})->cuda_homes == std::vector<NamedPath>{{"CUDA_PATH", "/cuda"}});
    const auto python = read({{"VIRTUAL_ENV", "/venv"}, {"CONDA_PREFIX", "/conda"}});
    CHECK(python->python_environments == std::vector<NamedPath>{{"VIRTUAL_ENV", "/venv"}, {"CONDA_PREFIX", "/conda"}});
}

TEST_CASE("a value that cannot be parsed is named, with what is accepted") {
    struct Row {
        std::string name, value, accepted;
    };
    const Row rows[] = {
        {"NORMQUANT_JIT", "", "on, off"},
        {"NORMQUANT_JIT", "1", "on, off"},
        {"NORMQUANT_JIT", "ON", "on, off"},
        {"NORMQUANT_JIT", "on ", "on, off"},
        {"NORMQUANT_CACHE_SHARED", "yes", "on, off"},
        {"NORMQUANT_LOG", "verbose", "debug, info, warn, error, off"},
        {"NORMQUANT_LOG", "warning", "debug, info, warn, error, off"},
        {"NORMQUANT_NVRTC", "", "the path of libnvrtc"},
        {"NORMQUANT_LIBCUDA", "", "the path of libcuda"},
    };
    for (const Row& row : rows) {
        const auto environment = read({{row.name, row.value}, {"HOME", "/home/u"}});
        INFO(row.name << "='" << row.value << "'");
        REQUIRE_FALSE(environment.ok());
        CHECK(environment.error().status == NQ_ERR_INVALID_ARGUMENT);
        INFO(environment.error().message);
        CHECK(environment.error().message.find(row.name) == 0);
        CHECK(environment.error().message.find(row.accepted) != std::string::npos);
        if (!row.value.empty()) CHECK(environment.error().message.find("'" + row.value + "'") != std::string::npos);
    }
}

TEST_CASE("the process environment") {
    REQUIRE(setenv("NORMQUANT_LOG", "chatty", 1) == 0);
    CHECK_FALSE(read_environment().ok());
    REQUIRE(setenv("NORMQUANT_LOG", "error", 1) == 0);
    const auto environment = read_environment();
    REQUIRE(environment.ok());
    CHECK(environment->log_level == NQ_LOG_ERROR);
    unsetenv("NORMQUANT_LOG");
}
