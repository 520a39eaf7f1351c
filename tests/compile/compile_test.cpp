// What NVRTC makes of the generated units: no warnings, no spills, the entry, and the instructions that each target should have.
#include "compile/find_nvrtc.h"
#include "jit/compile.h"
#include "jit/cubin_info.h"
#include "jit/embedded.h"
#include "jit/source.h"
#include "support/catch.h"
#include "support/operator_cases.h"
#include "support/problems.h"

#include <normquant/geometry.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>

using namespace nq;
using namespace nq::test;

namespace {

// Every target that this NVRTC can be asked for, with suffixes.
std::vector<Arch> targets() {
    std::vector<Arch> all;
    for (const int base : nvrtc().archs) {
        for (const char* suffix : {"", "a", "f"}) {
            const auto arch = parse_arch("sm_" + std::to_string(base) + suffix);
            if (arch && nvrtc().lists(*arch)) all.push_back(*arch);
        }
    }
    return all;
}

struct Specialization {
    Problem problem;
    Plan plan;
    Arch arch;
    int spills = 0;  // bytes that it may spill in any case
};

// "" if all is well, else what is not.
std::string judge(const Specialization& unit) {
    const auto compiled = compile(nvrtc(), render_source(unit.problem, unit.plan, unit.arch), unit.arch,
                                  {.options = {"-Xptxas=-v"}, .ptx = true});
    if (!compiled) return compiled.error().message + "\n" + compiled.error().detail;
    const std::string &ptx = compiled->ptx, &log = compiled->log;
    const auto has = [&](const char* text) { return ptx.find(text) != std::string::npos; };
    const bool half = unit.plan.form == Form::split ? unit.plan.vector == 8 : normquant::half_granules(unit.problem.hidden, unit.plan.threads_per_row);

    if (compiled->cubin.size() < 4 || std::memcmp(compiled->cubin.data(), "\177ELF", 4) != 0) return "the cubin is no ELF file";
    if (log.find("warning") != std::string::npos) return "warnings:\n" + log;
    if (log.find("spill stores") == std::string::npos) return "ptxas reports no spills at all:\n" + log;
    // A block of 256 threads that does more than the plain operator may spill two registers, or ten with fp32 weights: a second block beside it is worth more.
    const bool more = unit.problem.adds() || unit.problem.y_out || unit.problem.scale_layout == ScaleLayout::both;
    const int allowed = unit.problem.hidden > 16384 ? 1 << 20 : more && unit.plan.form == Form::plain && unit.plan.block_threads >= 256
                        ? (unit.problem.weight_dtype == DType::fp32 ? 40 : 8)
                        : 0;
    const std::string stores = " bytes spill stores";
    const std::size_t number = log.rfind(' ', log.find(stores) - 1);
    if (std::atoi(log.c_str() + number) > std::max(allowed, unit.spills)) return "spills:\n" + log;
    if (!has(".entry normquant_kernel(")) return "the entry is missing";
    if (has("cvt.rn.satfinite.e2m1x2.f32") != features(unit.arch).fp4_convert) return "wrong FP4 conversion";
    if (has("cvt.rn.satfinite.e4m3x2.f32") != (features(unit.arch).e4m3_convert && unit.problem.scale_format == ScaleFormat::e4m3)) {
        return "wrong E4M3 conversion";
    }
    for (const char* packed : {"mul.rn.f32x2", "fma.rn.f32x2"}) {
        if (has(packed) != features(unit.arch).packed_f32) return std::string("where it should not be, or not where it should: ") + packed;
    }
    const bool overlap = unit.problem.overlap && features(unit.arch).overlap;
    // What an earlier kernel may still write does not come through the read-only path.
    const std::string input = overlap ? "ld.global" : "ld.global.nc", other = overlap ? "ld.global.nc" : "ld.global";
    if (has((input + ".v8.b32").c_str()) != (unit.plan.load_bytes == 32)) return "256-bit loads where there should be none, or none";
    // The residual, which this kernel writes; the staged form copies it.
    const bool residual = unit.problem.adds() && unit.plan.form != Form::staged;
    if (has((input + ".v4.b32").c_str()) != (unit.plan.load_bytes == 16 || (overlap && residual)))
        return "128-bit loads where there should be none, or none";
    if (has((other + ".v4.b32").c_str()) != (!overlap && residual)) return "coherent loads where there should be none, or none";
    if (has((other + ".v8.b32").c_str())) return "256-bit loads of the wrong kind";
    const bool word = unit.problem.scale_format == ScaleFormat::e4m3 || unit.problem.device_rows;  // the global scale, the row count
    if (has((input + ".b32").c_str()) != word || has((other + ".b32").c_str())) return "loads of a word where there should be none, or none";
    for (const char* narrow : {"ld.global.nc.v2", "ld.global.nc.u", "ld.global.nc.f", "ld.global.nc.s", "ld.global.b8", "ld.global.b16", "ld.global.b64", "ld.global.u", "ld.global.v2"}) {
        if (has(narrow)) return std::string("an unexpected load: ") + narrow;
    }
    if (has("griddepcontrol.wait") != overlap || has("griddepcontrol.launch_dependents") != overlap)
        return "launches that overlap where they cannot, or do not";
    if (overlap) {
        const std::size_t wait = ptx.find("griddepcontrol.wait");
        for (const char* access : {"ld.global", "st.global", "cp.async.bulk", "st.async", "griddepcontrol.launch_dependents"})
            if (ptx.find(access) < wait) return std::string("before what it waits for: ") + access;
        if (ptx.find("griddepcontrol.wait", wait + 1) != std::string::npos) return "it waits twice";
    }
    const bool rounds = unit.problem.y_out, fp16 = unit.problem.dtype == DType::fp16;
    if (has("cvt.rn.f16x2.f32") != (rounds && fp16) || has("cvt.rn.bf16x2.f32") != (rounds && !fp16)) return "wrong rounding of y";
    if (has("add.rn.f16x2") != (unit.problem.adds() && fp16)) return "wrong sum with the residual";
    if (has("st.global.v2.b32") == half) return "FP4 stores of the wrong width";
    if (has("st.async") != (unit.plan.cluster > 1)) return "sums sent to other blocks where there should be none, or none";
    if (has("cp.async.bulk") != (unit.plan.form == Form::staged)) return "bulk copies where there should be none, or none";
    if (has(".reqnctapercluster") || has(".explicitcluster")) return "a compile-time cluster dimension";
    if (has("div.approx") || has("div.full") || has("sqrt.approx.f32") || has("fma.rn.ftz")) return "an approximate or flushed result";
    return {};
}

void judge_all(const std::vector<Specialization>& units) {
    std::atomic<std::size_t> next{0};
    std::mutex mutex;
    std::vector<std::string> failures;
    std::vector<std::thread> workers;
    for (unsigned w = 0; w < std::clamp(std::thread::hardware_concurrency(), 1u, 16u); ++w) {
        workers.emplace_back([&] {
            for (std::size_t i = next++; i < units.size(); i = next++) {
                const std::string verdict = judge(units[i]);
                if (verdict.empty()) continue;
                const std::lock_guard lock(mutex);
                failures.push_back(canonical_text(units[i].problem) + " | " + canonical_text(units[i].plan) + " | " +
                                   units[i].arch.name() + ": " + verdict);
            }
        });
    }
    for (std::thread& worker : workers) worker.join();
    std::printf("%zu units compiled\n", units.size());
    for (const std::string& failure : failures) UNSCOPED_INFO(failure);
    REQUIRE(failures.empty());
}

constexpr std::uint32_t kHidden[] = {64, 2880, 16384};

Specialization plain_unit(const char* arch) {
    Specialization unit;
    unit.problem.hidden = 576;
    unit.arch = *parse_arch(arch);
    unit.plan = plans_for(unit.problem, unit.arch)[0];
    return unit;
}

}  // namespace

TEST_CASE("every specialization on every target") {
    std::vector<Specialization> units;
    std::size_t turn = 0;
    for (const Arch& arch : targets()) {
        for (std::size_t i = 0; i < every_problem(64).size(); ++i, ++turn) {
            const Problem problem = every_problem(kHidden[turn % std::size(kHidden)])[i];
            const std::vector<Plan> plans = plans_for(problem, arch);
            units.push_back({problem, plans[turn / std::size(kHidden) % plans.size()], arch});
        }
    }
    REQUIRE(units.size() >= 32 * 5);
    judge_all(units);
}

TEST_CASE("every variant at every width, on one target of each kind") {
    std::vector<Specialization> units;
    for (const char* name : {"sm_80", "sm_89", "sm_90", "sm_100f", "sm_120f"}) {
        const Arch arch = *parse_arch(name);
        if (!nvrtc().lists(arch)) continue;
        for (const std::uint32_t hidden : {16u, 576u, 5120u, 7168u, 8192u, 32784u, 131072u}) {
            Problem problem;
            problem.hidden = hidden;
            for (const Plan& plan : plans_for(problem, arch)) units.push_back({problem, plan, arch});
            if (const auto plan = plan_of(problem, arch, {.threads_per_row = 512, .cluster = 4})) units.push_back({problem, *plan, arch});
        }
    }
    judge_all(units);
}

namespace {

constexpr const char* kFamilies[] = {"sm_80", "sm_89", "sm_90", "sm_100f", "sm_103a", "sm_110f", "sm_120f"};

// The factors of operator_cases.h that are fields of the problem, each with as many values as make other code.
const std::vector<unsigned> kProblemFactors = {2, 2, 3, 2, 2, 2, 2, 2};

Problem problem_of(const std::vector<unsigned>& c, std::uint64_t turn, std::uint64_t seed) {
    constexpr std::uint32_t kWidths[] = {512, 2880, 4096, 7168, 16384};
    return operator_case(kWidths[turn % std::size(kWidths)], 0, {c[0], c[1], c[2], c[3], c[4], 2 * c[5], c[6], c[7], 0}, seed).problem;
}

}  // namespace

TEST_CASE("everything that a problem may ask for, in pairs, on one target of each family") {
    std::vector<Specialization> units;
    std::uint64_t turn = 0;
    for (const char* name : kFamilies) {
        const Arch arch = *parse_arch(name);
        if (!nvrtc().lists(arch)) continue;
        for (const auto& choice : pairwise(kProblemFactors)) {
            const Problem problem = problem_of(choice, turn, turn);
            const std::vector<Plan> plans = plans_for(problem, arch);
            units.push_back({problem, plans[turn % plans.size()], arch});
            ++turn;
        }
    }
    judge_all(units);
}

TEST_CASE("every specialization, variant and width on every target", "[nightly]") {
    std::vector<Specialization> units;
    for (const Arch& arch : targets()) {
        for (const std::uint32_t hidden : kHidden) {
            for (const Problem& problem : every_problem(hidden)) {
                for (const Plan& plan : plans_for(problem, arch)) units.push_back({problem, plan, arch});
            }
        }
    }
    judge_all(units);
}

// A section a target, so that one can be run alone: -c sm_90.
TEST_CASE("every combination of what a problem may ask for, on one target of each family", "[nightly]") {
    for (const char* name : kFamilies) {
        DYNAMIC_SECTION(name) {
            const Arch arch = *parse_arch(name);
            if (!nvrtc().lists(arch)) continue;
            std::vector<Specialization> units;
            std::uint64_t turn = 0;
            for (const auto& choice : every_combination(kProblemFactors)) {
                ++turn;
                // Types, blocks and formats in no step with the combinations.
                const Problem problem = problem_of(choice, turn, turn * 0x9e3779b97f4a7c15u >> 32);
                if (problem.overlap && !features(arch).overlap) continue;  // the same code as without
                // Plans are made for the plain operator. Of what does more, one in thirty spills on sm_90, 140 bytes at most; of what
                // only takes rows in batches, one unit on each of sm_100f, sm_103a and sm_110f.
                const bool more = problem.adds() || problem.y_out || problem.scale_layout == ScaleLayout::both;
                const int spills = more ? 160 : problem.batches ? 16 : 0;
                for (const Plan& plan : plans_for(problem, arch)) units.push_back({problem, plan, arch, spills});
                const PlanOverride cluster{.threads_per_row = 4 * normquant::tree_threads(problem.hidden), .cluster = 4};
                if (const auto plan = plan_of(problem, arch, cluster)) units.push_back({problem, *plan, arch, spills});
            }
            judge_all(units);
        }
    }
}

TEST_CASE("options that others leave behind in NVRTC do not change the code") {
    std::vector<Specialization> units;
    for (const char* name : {"sm_90", "sm_100f"}) {
        Specialization unit = plain_unit(name);
        if (!nvrtc().lists(unit.arch)) continue;
        for (const Op op : {Op::rmsnorm, Op::add_rmsnorm}) {
            unit.problem.op = op;
            for (const Plan& plan : plans_for(unit.problem, unit.arch)) {
                unit.plan = plan;
                units.push_back(unit);
            }
        }
    }
    const auto compile_all = [&] {
        std::vector<std::vector<unsigned char>> cubins;
        for (const Specialization& unit : units) {
            auto compiled = compile(nvrtc(), render_source(unit.problem, unit.plan, unit.arch), unit.arch);
            REQUIRE(compiled);
            cubins.push_back(std::move(compiled->cubin));
        }
        return cubins;
    };
    const auto before = compile_all();
    // --restrict stays in force in NVRTC 13.0 for every later compile of the process. The pointers of Params
    // are __restrict__, or used by volatile asm alone, so that it has nothing to add.
    REQUIRE(compile(nvrtc(), "extern \"C\" __global__ void f(int* a, int* b) { a[0] = b[0]; a[1] = b[0]; }",
                    *parse_arch("sm_90"), {.options = {"--restrict"}}));
    const auto after = compile_all();
    for (std::size_t i = 0; i < units.size(); ++i) {
        INFO(canonical_text(units[i].plan) << " " << units[i].arch.name());
        CHECK(before[i] == after[i]);
    }
}

TEST_CASE("a cubin says how many registers it takes and who made it") {
    for (const Arch& arch : targets()) {
        Problem problem;
        problem.hidden = 5120;
        const Plan plan = plans_for(problem, arch)[0];
        const auto compiled = compile(nvrtc(), render_source(problem, plan, arch), arch, {.options = {"-Xptxas=-v"}});
        if (!compiled) FAIL(compiled.error().message << "\n" << compiled.error().detail);
        const CubinInfo info = cubin_info(compiled->cubin);
        INFO(compiled->log << info.registers << " " << info.toolkit);
        CHECK(compiled->log.find("Used " + std::to_string(info.registers) + " registers") != std::string::npos);
        // NVRTC 12 leaves the note out.
        if (nvrtc().version >= NvrtcVersion{13, 0}) {
            CHECK(info.toolkit.rfind("V" + text(nvrtc().version) + ".", 0) == 0);
        }
    }
}

TEST_CASE("a cubin that is damaged anywhere is read within its bounds") {
    const Specialization unit = plain_unit("sm_90");
    const auto compiled = compile(nvrtc(), render_source(unit.problem, unit.plan, unit.arch), unit.arch);
    REQUIRE(compiled);
    const std::vector<unsigned char>& cubin = compiled->cubin;
    const CubinInfo whole = cubin_info(cubin);
    std::size_t differ = 0;
    for (std::size_t size = 0; size < cubin.size(); ++size) {
        // A copy of its own, so that a sanitizer sees its end.
        const std::vector<unsigned char> part(cubin.begin(), cubin.begin() + static_cast<std::ptrdiff_t>(size));
        const CubinInfo info = cubin_info(part);
        differ += info.registers != whole.registers || info.toolkit != whole.toolkit;
    }
    CHECK(differ > 0);
    for (std::size_t i = 0; i < cubin.size(); ++i) {
        std::vector<unsigned char> flipped = cubin;
        flipped[i] ^= 0xff;
        CHECK_NOTHROW(cubin_info(flipped));
    }
    CHECK(cubin_info({}).registers == 0);
    CHECK(cubin_info({}).toolkit.empty());
}

TEST_CASE("a compile that fails carries its log") {
    const auto failed = compile(nvrtc(), "extern \"C\" __global__ void f() { undeclared_name(); }", *parse_arch("sm_90"));
    REQUIRE_FALSE(failed);
    CHECK(failed.error().status == NQ_ERR_COMPILE_FAILED);
    CHECK(failed.error().detail.find("undeclared_name") != std::string::npos);
}

TEST_CASE("quoted includes cannot pull in files of the working directory") {
    for (const EmbeddedHeader& header : embedded_headers()) {
        INFO(header.name);
        CHECK(std::string(header.text).find("#include \"") == std::string::npos);
    }
}
