#include "runtime/prepare.h"

#include "runtime/parallel.h"
#include "runtime/record.h"
#include "support/profiler_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace nq {
namespace {

// Who waits for a compile: a program that starts, or a request that it serves.
enum class Caller { prepare, run };

struct Cubins {
    Arch arch;
    std::vector<VariantCubin> variants;
};

Result<std::vector<Plan>> choose_plans(const Problem& problem, const Arch& arch, const PlanOverride& override) {
    if (override.threads_per_row == 0) return plans_for(problem, arch, override);
    Result<Plan> plan = plan_of(problem, arch, override);
    if (!plan) return std::move(plan).error();
    std::vector<Plan> plans = {*plan};
    if (override.cluster > 1) return plans;
    // Wide loads beside those that take every input. Not every target and thread count has the wide form.
    PlanOverride other = override;
    switch (override.variant) {
        case Variant::throughput: other.variant = Variant::throughput_32b; break;
        case Variant::latency: other.variant = Variant::latency_32b; break;
        case Variant::throughput_32b: other.variant = Variant::throughput; break;
        case Variant::latency_32b: other.variant = Variant::latency; break;
        case Variant::split: return plans;
    }
    if (Result<Plan> found = plan_of(problem, arch, other)) plans.push_back(*found);
    return plans;
}

Result<std::vector<CubinRequest>> requests_for(const Problem& problem, const Arch& arch,
                                               const PlanOverride& override) {
    Result<std::vector<Plan>> plans = choose_plans(problem, arch, override);
    if (!plans) return std::move(plans).error();
    std::vector<CubinRequest> requests;
    for (const Plan& plan : *plans) requests.push_back(make_request(problem, plan, arch));
    return requests;
}

bool is_wide(const CubinRequest& request) { return request.plan.load_bytes == 32; }

// found: what a search has brought already, for this target or another.
Result<Cubins> compile_for(Context& context, const Nvrtc& nvrtc, const Problem& problem, const Arch& arch,
                           const PlanOverride& override, const Cubins& found, Cache::Layers layers, Caller caller) {
    Result<std::vector<CubinRequest>> requests = requests_for(problem, arch, override);
    if (!requests) return std::move(requests).error();
    for (CubinRequest& request : *requests) request.in_run = caller == Caller::run;
    if (!nvrtc.loads_256()) std::erase_if(*requests, is_wide);
    std::vector<std::optional<Result<SharedCubin>>> outcomes(requests->size());
    parallel_for(requests->size(), context.compile_threads(), [&](std::size_t i) {
        const CubinRequest& request = (*requests)[i];
        for (const VariantCubin& variant : found.variants) {
            if (found.arch == arch && variant.plan == request.plan && variant.cubin != nullptr)
                outcomes[i] = variant.cubin;
        }
        if (!outcomes[i]) outcomes[i] = obtain_cubin(context, request, nvrtc, layers);
    });
    Cubins cubins{arch, {}};
    for (std::size_t i = 0; i < requests->size(); ++i) {
        if (!*outcomes[i]) return std::move(*outcomes[i]).error();
        cubins.variants.push_back({(*requests)[i].plan, **outcomes[i]});
    }
    return cubins;
}

// What the cache has of them; nullptr for the others.
Cubins find_each(Context& context, const Arch& arch, const std::vector<CubinRequest>& requests,
                 const std::optional<CompilerId>& compiler) {
    Cubins cubins{arch, {}};
    for (const CubinRequest& request : requests)
        cubins.variants.push_back({request.plan, find_cubin(context, request, compiler)});
    return cubins;
}

bool complete(const Cubins& cubins) {
    return !cubins.variants.empty() &&
           std::ranges::none_of(cubins.variants, [](const VariantCubin& variant) { return variant.cubin == nullptr; });
}

// An NVRTC that is too old for 32-byte loads has made all but those variants; the others stand in for them. One of
// several that is missing has been lost, which costs speed and no more.
void drop_missing_wide(Context& context, const std::vector<CubinRequest>& requests, Cubins& cubins) {
    const bool some_wide = std::ranges::any_of(cubins.variants, [](const VariantCubin& variant) {
        return variant.cubin != nullptr && variant.plan.load_bytes == 32;
    });
    for (std::size_t i = 0; i < requests.size() && some_wide; ++i) {
        if (cubins.variants[i].cubin != nullptr || !is_wide(requests[i])) continue;
        add(context.process().counters.misses);
        context.log().warn(fmt::format("\"{}\" for {} runs without its {} variant, which is missing (key {})",
                                       requests[i].problem, requests[i].arch.name(), name(requests[i].plan.variant),
                                       hex(requests[i].key)));
    }
    std::erase_if(cubins.variants, [](const VariantCubin& variant) {
        return variant.cubin == nullptr && variant.plan.load_bytes == 32;
    });
}

// For whichever target that the device runs is there, whichever NVRTC made it; or `otherwise` with what was looked for.
Result<Cubins> find_for(Context& context, const Problem& problem, ComputeCapability capability,
                        const PlanOverride& override, Error otherwise) {
    std::vector<CubinRequest> missing;
    for (const Arch& arch : lookup_targets(capability)) {
        Result<std::vector<CubinRequest>> requests = requests_for(problem, arch, override);
        if (!requests) return std::move(requests).error();
        Cubins cubins = find_each(context, arch, *requests, std::nullopt);
        const bool usable = std::ranges::all_of(
            cubins.variants, [](const VariantCubin& v) { return v.cubin != nullptr || v.plan.load_bytes == 32; });
        if (usable) {
            drop_missing_wide(context, *requests, cubins);
            if (complete(cubins)) return cubins;
        }
        for (std::size_t i = 0; i < requests->size(); ++i) {
            if (cubins.variants[i].cubin == nullptr) missing.push_back(std::move((*requests)[i]));
        }
    }
    otherwise.message += fmt::format(" (compute capability {}.{})", capability.major, capability.minor);
    return missing_cubins(context, std::move(otherwise), missing);
}

// All that is needed when everything is warm: opens neither NVRTC nor anything else but the entries.
Result<Cubins> find_without_nvrtc(Context& context, const Problem& problem, ComputeCapability capability,
                                  const PlanOverride& override) {
    const auto nvrtc = context.nvrtc_file();
    // What an NVRTC that supports every target would be asked for. An entry that this NVRTC made says that it can.
    const Result<Arch> arch = target_for(capability, std::nullopt, {});
    if (!nvrtc || !arch) return Cubins{};
    Result<std::vector<CubinRequest>> requests = requests_for(problem, *arch, override);
    if (!requests) return std::move(requests).error();
    return find_each(context, *arch, *requests, compiler_of(**nvrtc));
}

Result<Cubins> compile_cubins(Context& context, const Problem& problem, ComputeCapability capability,
                              const PlanOverride& override, const Cubins& found, Cache::Layers layers, Caller caller) {
    if (std::optional<Error> ban = context.compile_ban()) return *std::move(ban);
    const auto nvrtc = context.nvrtc();
    if (!nvrtc) return nvrtc.error();
    const Nvrtc& compiler = **nvrtc;
    Result<Arch> arch = target_for(capability, compiler.version, compiler.archs);
    if (!arch) {
        Error error = std::move(arch).error();
        error.message += fmt::format(" (loaded from {})", compiler.path);
        return error;
    }
    return compile_for(context, compiler, problem, *arch, override, found, layers, caller);
}

Result<Cubins> obtain_cubins(Context& context, const Problem& problem, ComputeCapability capability,
                             const PlanOverride& override, Caller caller) {
    Result<Cubins> found = Cubins{};
    if (!context.compile_ban()) found = find_without_nvrtc(context, problem, capability, override);
    if (!found || complete(*found)) return found;
    Result<Cubins> compiled =
        compile_cubins(context, problem, capability, override, *found, Cache::Layers::search, caller);
    if (compiled) return compiled;
    switch (compiled.error().status) {
        case NQ_ERR_NOT_PREPARED:
        case NQ_ERR_NVRTC_MISSING:
        case NQ_ERR_UNSUPPORTED_DEVICE:
            // Nothing here can compile it; somebody else may have.
            return find_for(context, problem, capability, override, std::move(compiled).error());
        default:
            return compiled;
    }
}

// Layers, and a read-only root, serve what any NVRTC has made: one newer than this driver, perhaps. What broke the CUDA context before
// is no fault of theirs.
bool refused(Context& context, const Error& error, const Cubins& cubins) {
    if (is_of_earlier_work(static_cast<CUresult>(error.driver_result))) return false;
    const bool by_driver = error.status == NQ_ERR_DRIVER || error.status == NQ_ERR_DRIVER_TOO_OLD ||
                           error.status == NQ_ERR_UNSUPPORTED_DEVICE;
    const auto nvrtc = context.nvrtc_file();
    if (!by_driver || context.compile_ban() || !nvrtc) return false;
    const CompilerId own = compiler_of(**nvrtc);
    return std::ranges::any_of(cubins.variants,
                               [&](const VariantCubin& variant) { return variant.cubin->compiler != own; });
}

// What was asked for, found or not: a warm-up makes it. It knows no plan overrides.
void record_request(Context& context, const Problem& problem, ComputeCapability capability, const PlanOverride& plan,
                    const Result<Cubins>& cubins) {
    if (plan != PlanOverride{}) return;
    if (cubins) {
        record(context, problem, cubins->arch);
    } else if (const Result<Arch> target = target_for(capability, std::nullopt, {})) {
        record(context, problem, *target);
    }
}

Result<const Kernel*> prepare_in(Context& context, std::shared_ptr<const Driver> driver,
                                 const DeviceContext& device_context, const Problem& problem, const KernelKey& key, Caller caller) {
    return context.process().kernel_flights.run(key, [&]() -> Result<const Kernel*> {
        const ProfilerRange range("prepare " + key.problem);
        // An earlier flight may have landed since the caller looked.
        if (const Kernel* kernel = context.find(key)) return kernel;
        Result<Device> device = device_of(*driver, device_context);
        if (!device) return std::move(device).error();
        if (const Kernel* elsewhere = context.find_elsewhere(key, device->ordinal)) {
            auto kernel = elsewhere->load_in(device_context);
            if (!kernel) return std::move(kernel).error();
            return context.keep(key, std::move(*kernel));
        }
        Result<Cubins> cubins = obtain_cubins(context, problem, device->capability, key.plan, caller);
        record_request(context, problem, device->capability, key.plan, cubins);
        if (!cubins) return std::move(cubins).error();
        const auto load = [&] {
            const ProfilerRange loading("load " + key.problem);
            return Kernel::load(driver, problem, device_context, *device, cubins->arch, cubins->variants);
        };
        auto kernel = load();
        if (!kernel && refused(context, kernel.error(), *cubins)) {
            context.log().warn(fmt::format("a cubin found {} cannot be loaded, so it is compiled here: {}",
                                           context.cache().places(), kernel.error().message));
            Result<Cubins> own = compile_cubins(context, problem, device->capability, key.plan, Cubins{},
                                                Cache::Layers::skip, caller);
            if (own) {
                cubins = std::move(own);
                kernel = load();
            }
        }
        if (!kernel) return std::move(kernel).error();
        return context.keep(key, std::move(*kernel));
    });
}

// refusal: asked before a kernel is made that is not there yet; an error of its keeps everything as it is.
template <class Refusal>
Result<const Kernel*> prepare_unless(Context& context, const Problem& problem, const PlanOverride& override,
                                     CUstream stream, Caller caller, Refusal refusal) {
    auto driver = context.driver();
    if (!driver) return std::move(driver).error();
    Result<DeviceContext> device_context = nq::device_context(**driver, stream);
    if (!device_context) return std::move(device_context).error();

    const KernelKey key{canonical_text(problem), override, device_context->id};
    if (const Kernel* kernel = context.find(key)) {
        add(context.process().counters.memory_hits);
        return kernel;
    }
    if (std::optional<Error> error = refusal(**driver)) return std::move(*error);
    return prepare_in(context, std::move(*driver), *device_context, problem, key, caller);
}

}  // namespace

Result<const Kernel*> prepare(Context& context, const Problem& problem, const PlanOverride& override,
                              CUstream stream) {
    return prepare_unless(context, problem, override, stream, Caller::prepare,
                          [](const Driver&) -> std::optional<Error> { return std::nullopt; });
}

Result<const Kernel*> prepare_for_run(Context& context, const Problem& problem, CUstream stream) {
    return prepare_unless(context, problem, PlanOverride{}, stream, Caller::run, [&](const Driver& driver) -> std::optional<Error> {
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
