#include "runtime/prepare.h"

#include "runtime/parallel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <utility>

namespace nq {
namespace {

struct Cubins {
    Arch arch;
    std::vector<VariantCubin> variants;
};

Result<std::vector<Plan>> choose_plans(const Problem& problem, const Arch& arch, std::uint32_t threads_per_row) {
    if (threads_per_row == 0) return plans_for(problem, arch);
    Result<Plan> plan = plan_with_threads(problem, arch, threads_per_row, Variant::throughput);
    if (!plan) return std::move(plan).error();
    std::vector<Plan> plans = {*plan};
    // Not every target and thread count has the wide form.
    if (Result<Plan> wide = plan_with_threads(problem, arch, threads_per_row, Variant::throughput_32b))
        plans.push_back(*wide);
    return plans;
}

Result<Cubins> compile_for(Context& context, const Nvrtc& nvrtc, const Problem& problem, const Arch& arch,
                           std::uint32_t threads_per_row) {
    Result<std::vector<Plan>> plans = choose_plans(problem, arch, threads_per_row);
    if (!plans) return std::move(plans).error();
    std::vector<std::optional<Result<SharedCubin>>> outcomes(plans->size());
    parallel_for(plans->size(), std::min(kMaxCompileThreads, cores()), [&](std::size_t i) {
        outcomes[i] = obtain_cubin(context, make_request(problem, (*plans)[i], arch), nvrtc);
    });
    Cubins cubins{arch, {}};
    for (std::size_t i = 0; i < plans->size(); ++i) {
        if (!*outcomes[i]) return std::move(*outcomes[i]).error();
        cubins.variants.push_back({(*plans)[i], **outcomes[i]});
    }
    return cubins;
}

// All variants of one target, or `otherwise` with what was looked for.
Result<Cubins> find_for(Context& context, const Problem& problem, ComputeCapability capability,
                        std::uint32_t threads_per_row, Error otherwise) {
    std::vector<std::string> looked_for;
    for (const Arch& arch : lookup_targets(capability)) {
        looked_for.push_back(arch.name());
        Result<std::vector<Plan>> plans = choose_plans(problem, arch, threads_per_row);
        if (!plans) return std::move(plans).error();
        Cubins cubins{arch, {}};
        for (const Plan& plan : *plans) {
            SharedCubin cubin = find_cubin(context, make_request(problem, plan, arch));
            if (cubin == nullptr) break;
            cubins.variants.push_back({plan, std::move(cubin)});
        }
        if (cubins.variants.size() == plans->size()) return cubins;
    }
    const std::string where = context.store() ? "in " + context.store()->root() : "as there is no disk cache";
    otherwise.message +=
        fmt::format(". No cached kernel for \"{}\" on compute capability {}.{} (targets {}) {}",
                    canonical_text(problem), capability.major, capability.minor, fmt::join(looked_for, ", "), where);
    return otherwise;
}

Result<Cubins> obtain_cubins(Context& context, const Problem& problem, ComputeCapability capability,
                             std::uint32_t threads_per_row) {
    const auto cached_else = [&](Error error) {
        return find_for(context, problem, capability, threads_per_row, std::move(error));
    };
    if (!context.config().jit) {
        return cached_else({NQ_ERR_NOT_PREPARED, "JIT is off (nq_context_options.jit, NORMQUANT_JIT)", {}});
    }
    const auto nvrtc = context.nvrtc();
    if (!nvrtc) return cached_else(nvrtc.error());
    const Nvrtc& compiler = **nvrtc;
    Result<Arch> arch = target_for(capability, compiler.version, compiler.archs);
    if (!arch) {
        Error error = std::move(arch).error();
        error.message += fmt::format(" (loaded from {})", compiler.path);
        return cached_else(std::move(error));
    }
    return compile_for(context, compiler, problem, *arch, threads_per_row);
}

Result<const Kernel*> prepare_in(Context& context, std::shared_ptr<const Driver> driver,
                                 const DeviceContext& device_context, const Problem& problem, const KernelKey& key) {
    return context.kernel_flights().run(key, [&]() -> Result<const Kernel*> {
        // An earlier flight may have landed since the caller looked.
        if (const Kernel* kernel = context.find(key)) return kernel;
        Result<Device> device = device_of(*driver, device_context);
        if (!device) return std::move(device).error();
        Result<Cubins> cubins = obtain_cubins(context, problem, device->capability, key.threads_per_row);
        if (!cubins) return std::move(cubins).error();
        auto kernel = Kernel::load(std::move(driver), problem, device_context, *device, cubins->arch, cubins->variants);
        if (!kernel) return std::move(kernel).error();
        return context.keep(key, std::move(*kernel));
    });
}

// refusal: asked before a kernel is made that is not there yet; an error of its keeps everything as it is.
template <class Refusal>
Result<const Kernel*> prepare_unless(Context& context, const Problem& problem, std::uint32_t threads_per_row,
                                     CUstream stream, Refusal refusal) {
    if (Outcome exists = kernel_exists(problem); !exists) return std::move(exists).error();
    auto driver = context.driver();
    if (!driver) return std::move(driver).error();
    Result<DeviceContext> device_context = nq::device_context(**driver, stream);
    if (!device_context) return std::move(device_context).error();

    const KernelKey key{canonical_text(problem), threads_per_row, device_context->id};
    if (const Kernel* kernel = context.find(key)) {
        ++context.counters().memory_hits;
        return kernel;
    }
    if (std::optional<Error> error = refusal(**driver)) return std::move(*error);
    return prepare_in(context, std::move(*driver), *device_context, problem, key);
}

}  // namespace

Result<const Kernel*> prepare(Context& context, const Problem& problem, std::uint32_t threads_per_row,
                              CUstream stream) {
    return prepare_unless(context, problem, threads_per_row, stream,
                          [](const Driver&) -> std::optional<Error> { return std::nullopt; });
}

Result<const Kernel*> prepare_for_run(Context& context, const Problem& problem, CUstream stream) {
    return prepare_unless(context, problem, 0, stream, [&](const Driver& driver) -> std::optional<Error> {
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
        const CUresult result = driver.cuStreamIsCapturing(stream, &status);
        if (result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE) return std::nullopt;
        // The legacy stream while another one is captured: preparing might wait for that, too.
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
            return driver.error(result, "cuStreamIsCapturing");
        }
        return Error{NQ_ERR_NOT_PREPARED,
                     fmt::format("stream {} is being captured and \"{}\" is not prepared; call nq_prepare before "
                                 "the capture",
                                 fmt::ptr(stream), canonical_text(problem)),
                     {}};
    });
}

}  // namespace nq
