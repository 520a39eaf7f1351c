#include "support/cores.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <optional>
#include <string_view>
#include <thread>

namespace nq {
namespace {

constexpr std::uint64_t kCompileBytes = 150'000'000;  // NVRTC's most while it compiles one kernel, and some to spare

// "" where there is no such file: a limit that cannot be read is none.
std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// Nothing for "max", for -1, and where there is no such file.
std::optional<std::uint64_t> number(std::string_view text) {
    std::uint64_t value = 0;
    const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc{} || stop != text.data() + text.size()) return std::nullopt;
    return value;
}

void limit_time(Limits& limits, std::optional<std::uint64_t> quota, std::optional<std::uint64_t> period) {
    if (!quota || !period || *quota == 0 || *period == 0) return;
    limits.processors = static_cast<unsigned>(std::min<std::uint64_t>(limits.processors, (*quota - 1) / *period + 1));
}

void limit_memory(Limits& limits, std::optional<std::uint64_t> bytes) {
    if (bytes) limits.memory_bytes = std::min(limits.memory_bytes, *bytes);
}

void read_version_2(const std::string& directory, Limits& limits) {
    const std::string time = first_line(directory + "/cpu.max");  // "200000 100000", "max 100000"
    const std::size_t blank = std::min(time.find(' '), time.size());
    limit_time(limits, number(std::string_view(time).substr(0, blank)), number(std::string_view(time).substr(std::min(blank + 1, time.size()))));
    limit_memory(limits, number(first_line(directory + "/memory.max")));
}

void read_version_1(const std::string& directory, Limits& limits) {
    limit_time(limits, number(first_line(directory + "/cpu.cfs_quota_us")), number(first_line(directory + "/cpu.cfs_period_us")));
    limit_memory(limits, number(first_line(directory + "/memory.limit_in_bytes")));
}

// The group and those above it. A container may see itself as the root, whatever its path is outside: that comes last.
void for_each_group(const std::string& mount, std::string group, const std::function<void(const std::string&)>& visit) {
    while (!group.empty() && group != "/") {
        visit(mount + group);
        group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
    }
    visit(mount);
}

}  // namespace

Limits control_group_limits(const std::string& root) {
    Limits limits;
    std::ifstream groups(root + "/proc/self/cgroup");
    const std::string mount = root + "/sys/fs/cgroup";
    for (std::string line; std::getline(groups, line);) {  // "0::/system.slice/x", "4:cpu,cpuacct:/docker/x"
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
        if (controllers.empty()) {
            for_each_group(mount, group, [&](const std::string& directory) { read_version_2(directory, limits); });
        } else {
            for_each_group(mount + "/" + controllers, group, [&](const std::string& directory) { read_version_1(directory, limits); });
        }
    }
    return limits;
}

unsigned cores() {
    unsigned count = std::thread::hardware_concurrency();
    // Fails on machines of more processors than a cpu_set_t has.
    if (cpu_set_t set; ::sched_getaffinity(0, sizeof set, &set) == 0) count = static_cast<unsigned>(CPU_COUNT(&set));
    return std::max(1u, std::min(count, control_group_limits().processors));
}

unsigned compiles_at_a_time(unsigned processors, const Limits& limits) {
    const std::uint64_t fit = std::min<std::uint64_t>(limits.memory_bytes / kCompileBytes, ~0u);
    return std::max(1u, std::min({processors, limits.processors, static_cast<unsigned>(fit)}));
}

unsigned compiles_at_a_time() { return compiles_at_a_time(cores(), control_group_limits()); }

}  // namespace nq
