#include "runtime/kernel.h"

#include "jit/source.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace nq {
namespace {

constexpr std::uint32_t kUnaskedSharedBytes = 48 << 10;
constexpr std::uint32_t kPortableCluster = 8;

// What stands in for a variant that does not exist, in the order of enum nq_variant. A plan override leaves one or two: its wide loads
// then serve every number of rows.
constexpr Variant kNearest[kVariants][4] = {
    {Variant::latency, Variant::split, Variant::split, Variant::split},
    {Variant::throughput, Variant::split, Variant::split, Variant::split},
    {Variant::throughput, Variant::latency_32b, Variant::latency, Variant::split},
    {Variant::latency, Variant::throughput_32b, Variant::throughput, Variant::split},
    {Variant::latency, Variant::throughput, Variant::throughput, Variant::throughput},
};

// Makes a context current for as long as this lives.
class CurrentContext {
public:
    CurrentContext(const Driver& driver, CUcontext context)
        : driver_(driver), result_(driver.cuCtxPushCurrent(context)) {}
    ~CurrentContext() {
        CUcontext popped = nullptr;
        if (result_ == CUDA_SUCCESS) driver_.cuCtxPopCurrent(&popped);
    }
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

    CUresult result() const { return result_; }

private:
    const Driver& driver_;
    CUresult result_;
};

// Calls that a capture elsewhere would forbid, and be broken by, are allowed for this thread as long as this lives.
class RelaxedCaptureMode {
public:
    explicit RelaxedCaptureMode(const Driver& driver)
        : driver_(driver), result_(driver.cuThreadExchangeStreamCaptureMode(&mode_)) {}
    ~RelaxedCaptureMode() {
        if (result_ == CUDA_SUCCESS) driver_.cuThreadExchangeStreamCaptureMode(&mode_);
    }
    RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
    RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

    CUresult result() const { return result_; }

private:
    const Driver& driver_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result_;
};

Error load_error(const Driver& driver, CUresult result, const char* step, const Device& device, const Arch& arch) {
    Error error = driver.error(
        result, fmt::format("{} of a cubin for {} on device {} (compute capability {}.{}, driver for CUDA {}.{})", step,
                            arch.name(), device.ordinal, device.capability.major, device.capability.minor,
                            driver.version / 1000, driver.version % 1000 / 10));
    switch (result) {
        case CUDA_ERROR_NO_BINARY_FOR_GPU:
        case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
            if (runs_on(arch, device.capability)) {
                error.status = NQ_ERR_DRIVER_TOO_OLD;
                error.message +=
                    ". The driver is older than the NVRTC that made the cubin: update the driver, or use an older "
                    "NVRTC";
            } else {
                error.status = NQ_ERR_UNSUPPORTED_DEVICE;
            }
            break;
        case CUDA_ERROR_INVALID_IMAGE:
            error.message += ". If the NVRTC that made the cubin is newer than the driver, update the driver";
            break;
        default:
            break;
    }
    return error;
}

// Shared memory and clusters beyond what every device has: this one, or the part of it that the context may use, may have no room for
// them, which is UNSUPPORTED_DEVICE.
Outcome make_room(const Driver& driver, CUkernel kernel, const Problem& problem, const Plan& plan, const Device& device) {
    const auto set = [&](CUfunction_attribute attribute, std::uint32_t value) {
        return driver.cuKernelSetAttribute(attribute, static_cast<int>(value), kernel, device.ordinal);
    };
    const auto fail = [&](CUresult result, const char* step, const std::string& what) {
        return driver.error(result, fmt::format("{}, for {} on device {}", step, what, device.ordinal));
    };
    const auto refuse = [&](const std::string& what) {
        return Error{NQ_ERR_UNSUPPORTED_DEVICE, fmt::format("device {} has no room for {}; take fewer blocks or threads", device.ordinal, what), {}};
    };
    if (plan.shared_bytes > kUnaskedSharedBytes) {
        const std::string what = fmt::format("a block with {} bytes of shared memory", plan.shared_bytes);
        const CUresult result = set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, plan.shared_bytes);
        if (result == CUDA_ERROR_INVALID_VALUE) return refuse(what);
        if (result != CUDA_SUCCESS) return fail(result, "cuKernelSetAttribute", what);
    }
    if (plan.cluster > 1) {
        const std::string what = fmt::format("a cluster of {} blocks of {} threads", plan.cluster, plan.block_threads);
        if (plan.cluster > kPortableCluster) {
            const CUresult result = set(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
            if (result != CUDA_SUCCESS) return fail(result, "cuKernelSetAttribute", what);
        }
        int clusters = 0;
        const Launch launch(launch_shape(plan, problem, {.rows = 1}, 1), plan, nullptr, false);
        const CUresult result = driver.cuOccupancyMaxActiveClusters(&clusters, reinterpret_cast<CUfunction>(kernel), launch.config());
        if (result == CUDA_ERROR_INVALID_CLUSTER_SIZE || (result == CUDA_SUCCESS && clusters <= 0)) return refuse(what);
        if (result != CUDA_SUCCESS) return fail(result, "cuOccupancyMaxActiveClusters", what);
    }
    return Unit{};
}

}  // namespace

Launch::Launch(const LaunchShape& shape, const Plan& plan, CUstream stream, bool overlap) {
    config_.gridDimX = shape.blocks;
    config_.gridDimY = shape.blocks_per_row;
    config_.gridDimZ = 1;
    config_.blockDimX = shape.block_threads;
    config_.blockDimY = config_.blockDimZ = 1;
    config_.sharedMemBytes = shape.shared_bytes;
    config_.hStream = stream;
    config_.attrs = attributes_;
    const auto add = [this](CUlaunchAttributeID id) -> CUlaunchAttributeValue& {
        CUlaunchAttribute& attribute = attributes_[config_.numAttrs++];
        attribute = {};
        attribute.id = id;
        return attribute.value;
    };
    if (plan.cluster > 1) {
        CUlaunchAttributeValue& cluster = add(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
        cluster.clusterDim.x = 1;
        cluster.clusterDim.y = plan.cluster;
        cluster.clusterDim.z = 1;
    }
    if (overlap) add(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION).programmaticStreamSerializationAllowed = 1;
    if (config_.numAttrs == 0) config_.attrs = nullptr;
}

Result<DeviceContext> device_context(const Driver& driver, CUstream stream) {
    DeviceContext context;
    if (stream != nullptr) {
        const CUresult result = driver.cuStreamGetCtx(stream, &context.handle);
        if (result != CUDA_SUCCESS)
            return driver.error(result, fmt::format("cuStreamGetCtx of stream {}", fmt::ptr(stream)));
    } else {
        const CUresult result = driver.cuCtxGetCurrent(&context.handle);
        if (result != CUDA_SUCCESS) return driver.error(result, "cuCtxGetCurrent");
    }
    if (context.handle == nullptr) {
        return Error{NQ_ERR_NO_CONTEXT,
                     "the calling thread has no current CUDA context, and the stream is NULL. Make one current "
                     "(cuCtxSetCurrent, cudaSetDevice) or pass a stream of its own",
                     {}};
    }
    const CUresult result = driver.cuCtxGetId(context.handle, &context.id);
    if (result != CUDA_SUCCESS) return driver.error(result, "cuCtxGetId");
    return context;
}

Result<Device> device_of(const Driver& driver, const DeviceContext& context) {
    const CurrentContext current(driver, context.handle);
    if (current.result() != CUDA_SUCCESS) return driver.error(current.result(), "cuCtxPushCurrent");
    Device device;
    CUresult result = driver.cuCtxGetDevice(&device.ordinal);
    if (result != CUDA_SUCCESS) return driver.error(result, "cuCtxGetDevice");
    const std::pair<int*, CUdevice_attribute> attributes[] = {
        {&device.capability.major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
        {&device.capability.minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
        {&device.multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
    };
    for (const auto& [value, attribute] : attributes) {
        result = driver.cuDeviceGetAttribute(value, attribute, device.ordinal);
        if (result != CUDA_SUCCESS)
            return driver.error(result, fmt::format("cuDeviceGetAttribute of device {}", device.ordinal));
    }
    return device;
}

Result<std::shared_ptr<const Kernel::Loaded>> Kernel::Loaded::load(std::shared_ptr<const Driver> driver, const VariantCubin& cubin,
                                                                   const Device& device, const Arch& arch) {
    const Driver& api = *driver;
    CUlibrary library = nullptr;
    CUresult result = api.cuLibraryLoadData(&library, cubin.cubin->bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (result != CUDA_SUCCESS) return load_error(api, result, "cuLibraryLoadData", device, arch);
    const auto loaded = std::make_shared<Loaded>(std::move(driver), cubin.plan, library);
    result = api.cuLibraryGetKernel(&loaded->kernel, library, kKernelEntry);
    if (result != CUDA_SUCCESS) return load_error(api, result, "cuLibraryGetKernel", device, arch);
    return std::shared_ptr<const Loaded>(loaded);
}

Kernel::Loaded::~Loaded() {
    // The driver of a parent is out of reach for a forked child.
    if (!driver_->loaded_by.in_process()) return;
    // At process exit the driver may have gone already (CUDA_ERROR_DEINITIALIZED), and the library with it.
    const RelaxedCaptureMode relaxed(*driver_);
    driver_->cuLibraryUnload(library_);
}

Kernel::Kernel(std::shared_ptr<const Driver> driver, const Problem& problem, const Device& device, const Arch& arch)
    : driver_(std::move(driver)),
      problem_(problem),
      device_(device),
      arch_(arch),
      overlaps_(problem.overlap && features(arch).overlap) {}

// Asks the driver for all that a launch in the current context needs: the launch may be in a capture.
Outcome Kernel::choose_variants() {
    std::optional<Error> no_room;
    for (const auto& loaded : loaded_) {
        if (Outcome room = make_room(*driver_, loaded->kernel, problem_, loaded->plan, device_); !room) {
            if (room.error().status != NQ_ERR_UNSUPPORTED_DEVICE) return room;
            no_room = std::move(room).error();
            continue;  // others stand in for it, if there are any
        }
        // The function itself is of no use, as it belongs to the current context; asking for it makes the driver load the code now.
        CUfunction function = nullptr;
        const CUresult result = driver_->cuKernelGetFunction(&function, loaded->kernel);
        if (result != CUDA_SUCCESS) return load_error(*driver_, result, "cuKernelGetFunction", device_, arch_);
        by_variant_[static_cast<std::size_t>(loaded->plan.variant)] = loaded.get();
    }

    const auto exists = by_variant_;  // what stands in for one has nothing to say of the next
    for (std::size_t i = 0; i < kVariants; ++i) {
        for (const Variant nearest : kNearest[i]) {
            if (by_variant_[i] == nullptr) by_variant_[i] = exists[static_cast<std::size_t>(nearest)];
        }
        if (by_variant_[i] != nullptr) continue;
        if (no_room) return *std::move(no_room);
        return Error{NQ_ERR_INTERNAL, fmt::format("nothing stands in for the variant {}", name(static_cast<Variant>(i))), {}};
    }
    row_limits_ = nq::row_limits(problem_, variant(Variant::split).plan, variant(Variant::latency).plan,
                                 variant(Variant::throughput).plan, device_.multiprocessors);
    return Unit{};
}

Result<std::unique_ptr<const Kernel>> Kernel::finish(std::unique_ptr<Kernel> kernel, const DeviceContext& context,
                                                     const std::vector<VariantCubin>& cubins) {
    const Driver& driver = *kernel->driver_;
    const RelaxedCaptureMode relaxed(driver);
    if (relaxed.result() != CUDA_SUCCESS) return driver.error(relaxed.result(), "cuThreadExchangeStreamCaptureMode");
    const CurrentContext current(driver, context.handle);
    if (current.result() != CUDA_SUCCESS) return driver.error(current.result(), "cuCtxPushCurrent");
    for (const VariantCubin& cubin : cubins) {
        auto loaded = Loaded::load(kernel->driver_, cubin, kernel->device_, kernel->arch_);
        if (!loaded) return std::move(loaded).error();
        kernel->loaded_.push_back(*std::move(loaded));
    }
    if (Outcome chosen = kernel->choose_variants(); !chosen) return std::move(chosen).error();
    return std::unique_ptr<const Kernel>(std::move(kernel));
}

Result<std::unique_ptr<const Kernel>> Kernel::load(std::shared_ptr<const Driver> driver, const Problem& problem,
                                                   const DeviceContext& context, const Device& device, const Arch& arch,
                                                   const std::vector<VariantCubin>& cubins) {
    return finish(std::unique_ptr<Kernel>(new Kernel(std::move(driver), problem, device, arch)), context, cubins);
}

Result<std::unique_ptr<const Kernel>> Kernel::load_in(const DeviceContext& context) const {
    std::unique_ptr<Kernel> kernel(new Kernel(driver_, problem_, device_, arch_));
    kernel->loaded_ = loaded_;
    return finish(std::move(kernel), context, {});
}

}  // namespace nq
