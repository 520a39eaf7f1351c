#include "support/environment.h"

#include <pwd.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "support/catch.h"
#include "support/skip.h"
#include "support/temp_directory.h"

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
    CHECK(read({{"NORMQUANT_CACHE_READONLY", "on"}})->cache_readonly);
    CHECK_FALSE(read({})->cache_readonly);
    CHECK(read({{"NORMQUANT_CACHE_SIZE", "0"}})->cache_size == 0);
    CHECK(read({{"NORMQUANT_CACHE_SIZE", "4096"}})->cache_size == 4096);
    CHECK(read({{"NORMQUANT_CACHE_SIZE", "3K"}})->cache_size == 3 << 10);
    CHECK(read({{"NORMQUANT_CACHE_SIZE", "3M"}})->cache_size == 3 << 20);
    CHECK(read({{"NORMQUANT_CACHE_SIZE", "3G"}})->cache_size == 3ull << 30);
    CHECK_FALSE(read({})->cache_size.has_value());
    CHECK(read({{"NORMQUANT_BUNDLES", "/a.nqb:/b"}})->bundles == std::vector<std::string>{"/a.nqb", "/b"});
    CHECK(read({{"NORMQUANT_BUNDLES", ":/a.nqb::"}})->bundles == std::vector<std::string>{"/a.nqb"});
    CHECK(read({{"NORMQUANT_BUNDLES", ""}})->bundles.empty());
    CHECK(read({{"NORMQUANT_LOG", "debug"}})->log_level == NQ_LOG_DEBUG);
    CHECK(read({{"NORMQUANT_LOG", "info"}})->log_level == NQ_LOG_INFO);
    CHECK(read({{"NORMQUANT_LOG", "warn"}})->log_level == NQ_LOG_WARN);
    CHECK(read({{"NORMQUANT_LOG", "error"}})->log_level == NQ_LOG_ERROR);
    CHECK(read({{"NORMQUANT_LOG", "off"}})->log_level == NQ_LOG_OFF);
    CHECK(read({{"NORMQUANT_NVRTC", "/x/libnvrtc.so"}})->nvrtc == "/x/libnvrtc.so");
    CHECK(read({{"NORMQUANT_LIBCUDA", "libcuda.so.1"}})->libcuda == "libcuda.so.1");
    CHECK(read({{"NORMQUANT_RECORD", "/r.json"}})->record == "/r.json");
    CHECK(read({{"NORMQUANT_DUMP_DIR", "dump"}})->dump_dir == "dump");
    CHECK(read({})->record.empty());
    CHECK(read({})->dump_dir.empty());

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
        {"NORMQUANT_CACHE_READONLY", "1", "on, off"},
        {"NORMQUANT_CACHE_SIZE", "", "512M"},
        {"NORMQUANT_CACHE_SIZE", "1T", "512M"},
        {"NORMQUANT_CACHE_SIZE", "-1", "512M"},
        {"NORMQUANT_CACHE_SIZE", "1.5G", "512M"},
        {"NORMQUANT_CACHE_SIZE", "1 G", "512M"},
        {"NORMQUANT_CACHE_SIZE", "0x10", "512M"},
        {"NORMQUANT_CACHE_SIZE", "18446744073709551616", "512M"},
        {"NORMQUANT_CACHE_SIZE", "17179869184G", "512M"},
        {"NORMQUANT_LOG", "verbose", "debug, info, warn, error, off"},
        {"NORMQUANT_LOG", "warning", "debug, info, warn, error, off"},
        {"NORMQUANT_NVRTC", "", "the path of libnvrtc"},
        {"NORMQUANT_LIBCUDA", "", "the path of libcuda"},
        {"NORMQUANT_RECORD", "", "the file to record problems in"},
        {"NORMQUANT_DUMP_DIR", "", "the directory to dump compiles to"},
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

// What a program that runs with the rights of its file sees; run by the test below.
TEST_CASE("environment of a set-user-id program", "[.][secure]") {
    if (getauxval(AT_SECURE) == 0) std::_Exit(77);  // a file system that ignores the bit
    const auto environment = read_environment();
    REQUIRE(environment.ok());
    CHECK_FALSE(environment->cache_dir.has_value());
    CHECK(environment->bundles.empty());
    CHECK_FALSE(environment->nvrtc.has_value());
    CHECK(environment->cuda_homes.empty());
    CHECK(environment->default_cache_dir.empty());  // no passwd entry, and HOME is the caller's
    CHECK(environment->cache_dir_source.empty());
}

TEST_CASE("a set-user-id program believes no variable, and a user without a home has no default", "[privileged]") {
#if defined(__SANITIZE_ADDRESS__)
    nq::test::skip("the address sanitizer's search for leaks may not start in such a program");
#else
    if (geteuid() != 0) return nq::test::skip("not root: users cannot be changed here");
    constexpr uid_t kOwner = 4242, kCaller = 4001;
    REQUIRE(getpwuid(kOwner) == nullptr);
    const nq::test::TempDirectory directory;
    std::filesystem::permissions(directory.path(), std::filesystem::perms(0755));
    const std::string program = directory / "program";
    std::filesystem::copy_file("/proc/self/exe", program);
    REQUIRE(chown(program.c_str(), kOwner, kOwner) == 0);
    REQUIRE(chmod(program.c_str(), 04755) == 0);
    const pid_t child = fork();
    if (child == 0) {
        if (setgid(kCaller) != 0 || setuid(kCaller) != 0) _exit(2);
        setenv("HOME", "/tmp/evil", 1);
        setenv("XDG_CACHE_HOME", "/tmp/evil", 1);
        setenv("NORMQUANT_CACHE_DIR", "/tmp/evil", 1);
        setenv("NORMQUANT_BUNDLES", "/tmp/evil.nqb", 1);
        setenv("NORMQUANT_NVRTC", "/tmp/evil.so", 1);
        setenv("NORMQUANT_LOG", "not a level", 1);
        setenv("CUDA_HOME", "/tmp/evil", 1);
        execl(program.c_str(), program.c_str(), "[secure]", static_cast<char*>(nullptr));
        _exit(3);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) return nq::test::skip("the temporary directory is mounted nosuid");
    CHECK(WEXITSTATUS(status) == 0);
#endif
}
