// write_cubins DIRECTORY: cubins whose instructions sass_test.py counts, of bf16 -> NVFP4 with linear scales and 2 and 4 granules a thread.
// A line each on stdout: file, target, variant, form, granules a thread, threads a block, registers, bytes of spills.
#include "compile/find_nvrtc.h"
#include "jit/compile.h"
#include "jit/cubin_info.h"
#include "jit/source.h"

#include <normquant/geometry.h>

#include <fmt/format.h>

#include <fstream>

using namespace nq;

namespace {

constexpr std::uint32_t kHidden = 4096;  // T0 is 64, with 4 rounds: 64 threads have 4 granules each, 128 threads 2

unsigned spilled_bytes(const std::string& log) {
    const auto before = [&](const char* text) {
        const std::size_t at = log.find(text), comma = log.rfind(',', at);
        if (at == std::string::npos || comma == std::string::npos) throw std::runtime_error("ptxas does not report spills:\n" + log);
        return static_cast<unsigned>(std::stoul(log.substr(comma + 1)));
    };
    return before(" bytes spill stores") + before(" bytes spill loads");
}

void write(const std::string& directory, const Arch& arch, Variant variant, std::uint32_t threads) {
    Problem problem;
    problem.hidden = kHidden;
    const Result<Plan> plan = plan_of(problem, arch, {.threads_per_row = threads, .variant = variant});
    if (!plan) throw std::runtime_error(plan.error().message);
    const Result<Compiled> compiled =
        compile(test::nvrtc(), render_source(problem, *plan, arch), arch, {.options = {"-Xptxas=-v"}});
    if (!compiled) throw std::runtime_error(compiled.error().message + "\n" + compiled.error().detail);
    const std::uint32_t granules = normquant::granules_per_thread(kHidden, threads);
    const std::string file = fmt::format("{}/{}.{}.{}.cubin", directory, arch.name(), name(variant), granules);
    std::ofstream out(file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(compiled->cubin.data()), static_cast<std::streamsize>(compiled->cubin.size()));
    if (!out.flush()) throw std::runtime_error("cannot write " + file);
    fmt::print("{} {} {} {} {} {} {} {}\n", file, arch.name(), name(variant), plan->form == Form::staged ? "staged" : "plain", granules,
               plan->block_threads, cubin_info(compiled->cubin).registers, spilled_bytes(compiled->log));
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        fmt::print(stderr, "usage: write_cubins DIRECTORY\n");
        return 2;
    }
    try {
        for (const char* name : {"sm_80", "sm_89", "sm_90", "sm_100f", "sm_100a", "sm_103a", "sm_110f", "sm_120f", "sm_121a"}) {
            const Arch arch = *parse_arch(name);
            if (!test::nvrtc().lists(arch)) continue;
            for (const Variant variant : {Variant::throughput, Variant::throughput_32b}) {
                if (variant == Variant::throughput_32b && !features(arch).loads_256) continue;
                for (const std::uint32_t threads : {64u, 128u}) write(argv[1], arch, variant, threads);
            }
        }
    } catch (const std::exception& e) {
        fmt::print(stderr, "{}\n", e.what());
        return 1;
    }
}
