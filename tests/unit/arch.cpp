#include "problem/arch.h"

#include "support/catch.h"

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

using namespace nq;

namespace {

Arch arch(const std::string& name) {
    Result<Arch> parsed = parse_arch(name);
    if (!parsed) throw std::runtime_error(parsed.error().message);
    return *parsed;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::vector<std::string> kTargets = {"sm_80",   "sm_86",  "sm_87",   "sm_88",   "sm_89",  "sm_90",
                                           "sm_90a",  "sm_100", "sm_100a", "sm_100f", "sm_103", "sm_103a",
                                           "sm_103f", "sm_110", "sm_110a", "sm_110f", "sm_120", "sm_120a",
                                           "sm_120f", "sm_121", "sm_121a", "sm_121f"};

// Base numbers as nvrtcGetSupportedArchs gives them.
const std::vector<int> kNvrtc124 = {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90};
const std::vector<int> kNvrtc128 = {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 120};
const std::vector<int> kNvrtc129 = {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121};
const std::vector<int> kNvrtc130 = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

}  // namespace

TEST_CASE("target names: known ones survive, others are refused with the list") {
    for (const std::string& name : kTargets) {
        CAPTURE(name);
        const Result<Arch> parsed = parse_arch(name);
        REQUIRE(parsed.ok());
        CHECK(parsed->name() == name);
    }
    for (const std::string name :
         {"",         "sm_",    "90",      "sm_75",      "sm_090", "SM_90",         "sm_90 ",
          " sm_90",   "sm_90f", "sm_80a",  "sm_89f",     "sm_101", "sm_101a",       "sm_100b",
          "sm_100af", "sm_130", "sm_107f", "compute_90", "sm90",   "sm_4294967386", "sm_-90"}) {
        CAPTURE(name);
        const Result<Arch> parsed = parse_arch(name);
        REQUIRE_FALSE(parsed.ok());
        CHECK(parsed.error().status == NQ_ERR_INVALID_ARGUMENT);
        CHECK(contains(parsed.error().message, "\"" + name + "\""));
        for (const std::string& target : kTargets) CHECK(contains(parsed.error().message, target));
    }
}

TEST_CASE("features of every target") {
    for (const std::string& name : kTargets) {
        CAPTURE(name);
        const ArchFeatures f = features(arch(name));
        const int number = std::stoi(name.substr(3));
        const bool blackwell = number == 100 || number == 103 || number == 110 || number == 120 || number == 121;
        CHECK(f.fp4_convert == (blackwell && (name.back() == 'a' || name.back() == 'f')));
        CHECK(f.e4m3_convert == (blackwell || number == 89 || number == 90));
        CHECK(f.u16x2_min == (blackwell || number == 90));
        CHECK(f.loads_256 == blackwell);
        CHECK(f.packed_f32 == (number == 100 || number == 103));
    }
}

TEST_CASE("what runs on what") {
    const std::vector<ComputeCapability> devices = {{7, 5},  {8, 0},  {8, 6},  {8, 7},  {8, 9},  {9, 0},
                                                    {10, 0}, {10, 1}, {10, 3}, {11, 0}, {12, 0}, {12, 1}};
    struct Row {
        std::string target;
        std::string runs;  // one character a device above
    };
    // 10.1 is a device that no family lists: only the plain target of its major runs there.
    const std::vector<Row> table = {
        {"sm_80", ".yyyy......."},   {"sm_86", "..yyy......."},   {"sm_89", "....y......."},
        {"sm_90", ".....y......"},   {"sm_90a", ".....y......"},  {"sm_100", "......yyy..."},
        {"sm_100a", "......y....."}, {"sm_100f", "......y.y..."}, {"sm_103", "........y..."},
        {"sm_103a", "........y..."}, {"sm_103f", "........y..."}, {"sm_110", ".........y.."},
        {"sm_110a", ".........y.."}, {"sm_110f", ".........y.."}, {"sm_120", "..........yy"},
        {"sm_120a", "..........y."}, {"sm_120f", "..........yy"}, {"sm_121", "...........y"},
        {"sm_121a", "...........y"}, {"sm_121f", "...........y"},
    };
    for (const Row& row : table) {
        for (std::size_t i = 0; i < devices.size(); ++i) {
            CAPTURE(row.target, devices[i].major, devices[i].minor);
            CHECK(runs_on(arch(row.target), devices[i]) == (row.runs[i] == 'y'));
        }
    }
}

TEST_CASE("the target a device is compiled for") {
    struct Row {
        ComputeCapability device;
        std::optional<NvrtcVersion> nvrtc;
        std::vector<int> listed;
        std::string target;
    };
    const std::vector<Row> table = {
        // Family targets where NVRTC has them.
        {{10, 0}, {{12, 9}}, kNvrtc129, "sm_100f"},
        {{10, 3}, {{12, 9}}, kNvrtc129, "sm_100f"},
        {{10, 3}, {{13, 0}}, kNvrtc130, "sm_100f"},
        {{11, 0}, {{13, 0}}, kNvrtc130, "sm_110f"},
        {{12, 0}, {{12, 9}}, kNvrtc129, "sm_120f"},
        {{12, 1}, {{12, 9}}, kNvrtc129, "sm_120f"},
        {{12, 1}, {{13, 0}}, {}, "sm_120f"},
        // 12.8: the exact `a`, else the plain one of the major.
        {{10, 0}, {{12, 8}}, kNvrtc128, "sm_100a"},
        {{10, 3}, {{12, 8}}, kNvrtc128, "sm_100"},
        {{12, 0}, {{12, 8}}, kNvrtc128, "sm_120a"},
        {{12, 1}, {{12, 8}}, kNvrtc128, "sm_120"},
        {{12, 1}, {{12, 8}}, {}, "sm_120"},
        // Before Blackwell: plain, never 90a; the nearest lower minor where the exact one is not listed.
        {{9, 0}, {{12, 4}}, kNvrtc124, "sm_90"},
        {{9, 0}, {{13, 0}}, kNvrtc130, "sm_90"},
        {{8, 0}, {{12, 4}}, kNvrtc124, "sm_80"},
        {{8, 9}, {{13, 0}}, kNvrtc130, "sm_89"},
        {{8, 8}, {{12, 9}}, kNvrtc129, "sm_87"},
        {{8, 8}, {{13, 0}}, kNvrtc130, "sm_88"},
        {{8, 9}, {{13, 0}}, {80, 86, 90}, "sm_86"},
        {{8, 2}, {{13, 0}}, kNvrtc130, "sm_80"},
        // No NVRTC at hand: as the newest would.
        {{8, 8}, std::nullopt, {}, "sm_88"},
        {{9, 0}, std::nullopt, {}, "sm_90"},
        {{10, 3}, std::nullopt, {}, "sm_100f"},
        {{11, 0}, std::nullopt, {}, "sm_110f"},
        {{12, 1}, std::nullopt, {}, "sm_120f"},
    };
    for (const Row& row : table) {
        CAPTURE(row.device.major, row.device.minor, row.target);
        const Result<Arch> target = target_for(row.device, row.nvrtc, row.listed);
        REQUIRE(target.ok());
        CHECK(target->name() == row.target);
        CHECK(runs_on(*target, row.device));
    }
}

TEST_CASE("a device that cannot be compiled for: what it needs, and what is there") {
    struct Row {
        ComputeCapability device;
        std::optional<NvrtcVersion> nvrtc;
        std::vector<int> listed;
        std::vector<std::string> named;
    };
    const std::vector<Row> table = {
        {{7, 5}, {{13, 0}}, kNvrtc130, {"7.5", "8.0 and newer"}},
        {{7, 0}, std::nullopt, {}, {"7.0", "8.0 and newer"}},
        {{10, 0}, {{12, 4}}, kNvrtc124, {"10.0", "NVRTC >= 12.8", "12.4"}},
        {{10, 3}, {{12, 4}}, kNvrtc124, {"10.3", "NVRTC >= 12.8", "12.4"}},
        {{11, 0}, {{12, 9}}, kNvrtc129, {"11.0", "NVRTC >= 13.0", "12.9"}},
        {{12, 1}, {{12, 6}}, {}, {"12.1", "NVRTC >= 12.8", "12.6"}},
        {{9, 0}, {{12, 3}}, {}, {"9.0", "NVRTC >= 12.4", "12.3"}},
        {{8, 0}, {{14, 0}}, {90, 100, 120}, {"8.0", "compiles for sm_80", "90, 100, 120"}},
        {{10, 7}, {{12, 9}}, kNvrtc129, {"10.7", "NVRTC > 13.0"}},
        {{13, 0}, std::nullopt, {}, {"13.0", "not known"}},
    };
    for (const Row& row : table) {
        CAPTURE(row.device.major, row.device.minor);
        const Result<Arch> target = target_for(row.device, row.nvrtc, row.listed);
        REQUIRE_FALSE(target.ok());
        CHECK(target.error().status == NQ_ERR_UNSUPPORTED_DEVICE);
        CAPTURE(target.error().message);
        for (const std::string& part : row.named) CHECK(contains(target.error().message, part));
    }
}

TEST_CASE("targets to look for in a cache") {
    struct Row {
        ComputeCapability device;
        std::vector<std::string> targets;
    };
    const std::vector<Row> table = {
        {{7, 5}, {}},
        {{8, 0}, {"sm_80"}},
        {{8, 9}, {"sm_89"}},
        {{8, 4}, {"sm_80"}},
        {{9, 0}, {"sm_90", "sm_90a"}},
        {{10, 0}, {"sm_100f", "sm_100a", "sm_100"}},
        {{10, 3}, {"sm_100f", "sm_103a", "sm_103", "sm_100"}},
        {{11, 0}, {"sm_110f", "sm_110a", "sm_110"}},
        {{12, 0}, {"sm_120f", "sm_120a", "sm_120"}},
        {{12, 1}, {"sm_120f", "sm_121a", "sm_121", "sm_120"}},
        {{10, 7}, {}},
    };
    for (const Row& row : table) {
        CAPTURE(row.device.major, row.device.minor);
        std::vector<std::string> names;
        for (const Arch& target : lookup_targets(row.device)) {
            names.push_back(target.name());
            CHECK(runs_on(target, row.device));
        }
        CHECK(names == row.targets);
    }
}
