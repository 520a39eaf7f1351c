#include "runtime/precompile.h"

#include "problem/struct_size.h"
#include "runtime/parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace nq {
namespace {

// One kernel to make, or why it cannot be made.
struct Job {
    std::size_t problem_index = 0;
    const char* arch_name = nullptr;
    Problem problem;
    Arch arch;
    Plan plan;
    std::optional<Error> error;
};

// What compiles, or why nothing does.
struct Compiler {
    std::shared_ptr<const Nvrtc> nvrtc;
    std::optional<Error> obstacle;
};

Compiler compiler_for(Context& context) {
    if (std::optional<Error> ban = context.compile_ban()) return {nullptr, std::move(ban)};
    auto nvrtc = context.nvrtc();
    if (!nvrtc) return {nullptr, std::move(nvrtc).error()};
    return {*std::move(nvrtc), std::nullopt};
}

void add_jobs(std::vector<Job>& jobs, std::size_t index, const nq_problem& c, const char* arch_name,
              const Compiler& compiler) {
    Job job{index, arch_name != nullptr ? arch_name : "", {}, {}, {}, {}};
    const auto fail = [&](Error error) {
        job.error = std::move(error);
        jobs.push_back(std::move(job));
    };
    Result<Problem> problem = problem_from_c(&c);
    if (!problem) {
        Error error = std::move(problem).error();
        error.message = fmt::format("problems[{}]: {}", index, error.message);
        return fail(std::move(error));
    }
    if (arch_name == nullptr)
        return fail({NQ_ERR_INVALID_ARGUMENT, "a name in archs is NULL; accepted: \"sm_90\" and the like", {}});
    Result<Arch> arch = parse_arch(arch_name);
    if (!arch) return fail(std::move(arch).error());
    job.problem = *problem;
    job.arch = *arch;
    for (const Plan& plan : plans_for(*problem, *arch)) {
        if (plan.load_bytes == 32 && compiler.nvrtc != nullptr && !compiler.nvrtc->loads_256()) continue;
        job.plan = plan;
        jobs.push_back(job);
    }
}

// With JIT off this tells what the cache lacks.
Result<SharedCubin> make(Context& context, const Job& job, const Compiler& compiler) {
    if (job.error) return *job.error;
    const CubinRequest request = make_request(job.problem, job.plan, job.arch);
    if (compiler.obstacle) {
        if (SharedCubin cubin = find_cubin(context, request, std::nullopt)) return cubin;
        return missing_cubins(context, *compiler.obstacle, {request});
    }
    Result<SharedCubin> cubin = obtain_cubin(context, request, *compiler.nvrtc);
    if (!cubin && cubin.error().status == NQ_ERR_NOT_PREPARED)  // sealed since this call began
        return missing_cubins(context, std::move(cubin).error(), {request});
    // A warm-up that cannot leave anything behind has failed, however well it compiles.
    if (cubin && !(*cubin)->stored) return (*cubin)->stored.error();
    return cubin;
}

}  // namespace

Outcome precompile(Context& context, const nq_problem* problems, std::size_t problem_count,
                   std::span<const char* const> archs, unsigned threads, const PrecompileObserver& observer) {
    if (Store* root = context.cache().root()) {
        if (Outcome usable = root->check(); !usable) return usable;
    }
    const Compiler compiler = compiler_for(context);
    std::vector<Job> jobs;
    const std::size_t stride = problem_count != 0 ? problems->struct_size : 0;
    if (problem_count != 0 &&
        (stride < sizeof(nq_problem) || stride > kMaxStructSize || stride % alignof(nq_problem) != 0)) {
        return Error{NQ_ERR_STRUCT_SIZE,
                     fmt::format("problems[0].struct_size is {}; accepted: multiples of {} from {} to {}", stride,
                                 alignof(nq_problem), sizeof(nq_problem), kMaxStructSize),
                     {}};
    }
    for (std::size_t i = 0; i < problem_count; ++i) {
        const auto* problem = reinterpret_cast<const nq_problem*>(reinterpret_cast<const char*>(problems) + i * stride);
        // An element that claims another size would have its tail checked beyond the array.
        if (problem->struct_size != stride) {
            return Error{NQ_ERR_STRUCT_SIZE,
                         fmt::format("problems[{}].struct_size is {}; accepted: that of problems[0], {}", i,
                                     problem->struct_size, stride),
                         {}};
        }
        for (const char* arch : archs) add_jobs(jobs, i, *problem, arch, compiler);
    }

    std::mutex events;  // serializes the observer, and guards what follows
    std::uint64_t done = 0;
    std::size_t first_failed = jobs.size();
    std::optional<Error> failure;
    std::atomic<bool> stop{false};
    const unsigned most = context.compile_threads();
    parallel_for(jobs.size(), threads != 0 ? std::min(threads, most) : most, [&](std::size_t i) {
        if (stop) return;
        const Job& job = jobs[i];
        const Result<SharedCubin> cubin = make(context, job, compiler);

        const std::lock_guard lock(events);
        if (stop) return;
        if (!cubin && i < first_failed) {
            first_failed = i;
            failure = cubin.error();
        }
        nq_precompile_event event = {};
        event.struct_size = sizeof event;
        event.variant = static_cast<std::uint32_t>(job.plan.variant);
        event.done = ++done;
        event.total = jobs.size();
        event.problem_index = job.problem_index;
        event.arch = job.arch_name;
        event.status = cubin ? NQ_OK : cubin.error().status;
        event.cached = cubin && (*cubin)->cached ? 1 : 0;
        event.compile_ns = cubin ? (*cubin)->compile_ns : 0;
        event.message = cubin ? "" : cubin.error().message.c_str();
        if (!observer(event)) stop = true;
    });
    if (failure) return std::move(*failure);
    return Unit{};
}

}  // namespace nq
