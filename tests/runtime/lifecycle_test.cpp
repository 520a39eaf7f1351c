// How processes with the library begin, fork and end. Each scenario is a process of its own: lifecycle_program.cpp.
#include "support/catch.h"
#include "support/temp_directory.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

using nq::test::TempDirectory;

namespace {

struct Ended {
    int status = -1;  // as waitpid has it
    std::string err;
};

Ended run(const char* scenario, bool fake_nvrtc) {
    const TempDirectory directory;
    const std::string cache = directory / "cache", err = directory / "stderr";
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::setenv("NORMQUANT_LIBCUDA", NORMQUANT_FAKE_CUDA, 1);
        if (fake_nvrtc) ::setenv("NORMQUANT_NVRTC", NORMQUANT_FAKE_NVRTC, 1);
        ::setenv("NORMQUANT_CACHE_DIR", cache.c_str(), 1);
        for (const char* name : {"NORMQUANT_JIT", "NORMQUANT_BUNDLES", "NORMQUANT_LOG"}) ::unsetenv(name);
        ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
        ::alarm(120);
        ::execl(NORMQUANT_LIFECYCLE_PROGRAM, NORMQUANT_LIFECYCLE_PROGRAM, scenario, nullptr);
        ::_exit(127);
    }
    Ended ended;
    REQUIRE(::waitpid(child, &ended.status, 0) == child);
    std::ifstream file(err);
    ended.err.assign(std::istreambuf_iterator<char>(file), {});
    return ended;
}

void ends_well(const char* scenario, int times = 1, bool fake_nvrtc = true) {
    for (int i = 0; i < times; ++i) {
        const Ended ended = run(scenario, fake_nvrtc);
        INFO(scenario << ": " << ended.err);
        CHECK(ended.status == 0);
        CHECK(ended.err.empty());
    }
}

}  // namespace

TEST_CASE("loading the library, and all that needs no GPU, opens neither driver nor NVRTC") { ends_well("load_only"); }
TEST_CASE("a program may end without destroying anything") { ends_well("exit_while_loaded"); }
TEST_CASE("a program may end on a thread, while others launch and compile") { ends_well("exit_from_a_thread", 20); }
TEST_CASE("NVRTC and driver may be used first on a thread that ends before the program") { ends_well("first_use_on_a_thread"); }
TEST_CASE("a true NVRTC, too") { ends_well("real_nvrtc_on_a_thread", 1, false); }
TEST_CASE("the library is closed and opened again") { ends_well("open_again"); }
TEST_CASE("the library is closed while a thread lives that had a failure") { ends_well("close_under_a_thread"); }
TEST_CASE("the last destructor of a program may use the library") { ends_well("use_in_the_last_destructor"); }
TEST_CASE("a fork before the first use leaves both sides whole") { ends_well("fork_before_use"); }
TEST_CASE("after a fork the child is told, and leaves what is its parent's") { ends_well("fork_after_use"); }
TEST_CASE("a child does not inherit that there was no device") { ends_well("fork_after_a_failure"); }
