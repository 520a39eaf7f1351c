#include "support/cores.h"

#include <sched.h>

#include <filesystem>
#include <fstream>

#include "support/catch.h"
#include "support/temp_directory.h"

namespace {

namespace fs = std::filesystem;

using nq::compiles_at_a_time;
using nq::control_group_limits;
using nq::Limits;

// /proc and /sys of a process in a container.
struct Machine {
    nq::test::TempDirectory directory;

    void write(const std::string& path, const std::string& text) const {
        const fs::path file = directory / path;
        fs::create_directories(file.parent_path());
        std::ofstream(file) << text << '\n';
    }
    void group(const std::string& text) const { write("proc/self/cgroup", text); }
    void limit(const std::string& file, const std::string& text) const { write("sys/fs/cgroup/" + file, text); }
    Limits limits() const { return control_group_limits(directory.path()); }
};

constexpr std::uint64_t kNone = ~std::uint64_t{0};

}  // namespace

TEST_CASE("control groups, version 2: the least along the path") {
    const Machine machine;
    CHECK(machine.limits().processors == ~0u);  // no such files at all
    CHECK(machine.limits().memory_bytes == kNone);
    machine.group("0::/pods/one/inner");
    machine.limit("pods/one/inner/cpu.max", "max 100000");
    machine.limit("pods/one/inner/memory.max", "max");
    CHECK(machine.limits().processors == ~0u);
    CHECK(machine.limits().memory_bytes == kNone);
    machine.limit("pods/one/cpu.max", "250000 100000");
    machine.limit("pods/one/memory.max", "900000000");
    machine.limit("pods/cpu.max", "800000 100000");
    machine.limit("pods/memory.max", "600000000");
    CHECK(machine.limits().processors == 3);  // two and a half
    CHECK(machine.limits().memory_bytes == 600'000'000);
    machine.limit("pods/one/inner/cpu.max", "50000 100000");
    CHECK(machine.limits().processors == 1);
}

TEST_CASE("control groups: a container that is its own root") {
    const Machine machine;
    machine.limit("cpu.max", "200000 100000");
    machine.limit("memory.max", "300000000");
    machine.group("0::/");
    CHECK(machine.limits().processors == 2);
    CHECK(machine.limits().memory_bytes == 300'000'000);
    machine.group("0::/docker/not/visible/here");
    CHECK(machine.limits().processors == 2);
    CHECK(machine.limits().memory_bytes == 300'000'000);
}

TEST_CASE("control groups, version 1") {
    const Machine machine;
    machine.group("5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n3:pids:/\n0::/");
    machine.limit("cpu,cpuacct/docker/x/cpu.cfs_quota_us", "400000");
    machine.limit("cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000");
    machine.limit("memory/docker/x/memory.limit_in_bytes", "750000000");
    CHECK(machine.limits().processors == 4);
    CHECK(machine.limits().memory_bytes == 750'000'000);
    machine.limit("cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1");
    machine.limit("memory/docker/x/memory.limit_in_bytes", "9223372036854771712");  // as it says that there is none
    CHECK(machine.limits().processors == ~0u);
    CHECK(compiles_at_a_time(8, machine.limits()) == 8);
}

TEST_CASE("control groups: what is no limit is none") {
    const Machine machine;
    machine.group("0::/\nnonsense\n:\n");
    for (const char* text : {"", "max", "1000", "0 100000", "100000 0", "x 100000", "100000 100000x"}) {
        machine.limit("cpu.max", text);
        INFO(text);
        CHECK(machine.limits().processors == ~0u);
    }
}

TEST_CASE("compiles at a time: cores, time and memory each bound them") {
    CHECK(compiles_at_a_time(64, {}) == 64);
    CHECK(compiles_at_a_time(64, {.processors = 3}) == 3);
    CHECK(compiles_at_a_time(2, {.processors = 3}) == 2);
    CHECK(compiles_at_a_time(64, {.processors = 16, .memory_bytes = 512 << 20}) == 3);
    CHECK(compiles_at_a_time(64, {.memory_bytes = 1}) == 1);
}

TEST_CASE("cores are those that the process may run on") {
    cpu_set_t before;
    REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
    int first = 0;
    while (!CPU_ISSET(first, &before)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    const unsigned bound = nq::cores();
    REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
    CHECK(bound == 1);
    CHECK(nq::cores() <= static_cast<unsigned>(CPU_COUNT(&before)));
}
