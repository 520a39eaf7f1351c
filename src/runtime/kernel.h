// What stands behind nq_kernel: the variants of one problem, loaded for one device context.
#pragma once

#include "cuda/driver.h"
#include "plan/plan.h"
#include "problem/arch.h"
#include "problem/problem.h"
#include "runtime/choose.h"
#include "runtime/cubin.h"
#include "support/result.h"

#include <array>
#include <compare>
#include <memory>
#include <string>
#include <vector>

namespace nq {

// A context's handle may be reused after it is destroyed; its id is not.
struct DeviceContext {
    CUcontext handle = nullptr;
    unsigned long long id = 0;
};

// The context of the stream, or the current one for NULL. NO_CONTEXT when there is none: none is ever created.
Result<DeviceContext> device_context(const Driver& driver, CUstream stream);

struct Device {
    CUdevice ordinal = 0;
    ComputeCapability capability;
    int multiprocessors = 0;
};

Result<Device> device_of(const Driver& driver, const DeviceContext& context);

// Which kernel of a context: two prepares with equal keys give the same one.
struct KernelKey {
    std::string problem;  // canonical text
    PlanOverride plan;
    unsigned long long context_id = 0;
    friend auto operator<=>(const KernelKey&, const KernelKey&) = default;
};

struct VariantCubin {
    Plan plan;
    SharedCubin cubin;
};

// What the driver takes to launch a plan. Not to be moved: the configuration points into it.
class Launch {
public:
    // overlap: with the end of the kernel before it in the stream.
    Launch(const LaunchShape& shape, const Plan& plan, CUstream stream, bool overlap);
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;

    const CUlaunchConfig* config() const { return &config_; }

private:
    CUlaunchConfig config_{};
    CUlaunchAttribute attributes_[2];
};

class Kernel {
public:
    // A cubin in the driver, of no context: those of a device share it.
    class Loaded {
    public:
        static Result<std::shared_ptr<const Loaded>> load(std::shared_ptr<const Driver> driver, const VariantCubin& cubin, const Device& device,
                                                          const Arch& arch);
        Loaded(std::shared_ptr<const Driver> driver, const Plan& loaded_plan, CUlibrary library)
            : plan(loaded_plan), driver_(std::move(driver)), library_(library) {}
        ~Loaded();
        Loaded(const Loaded&) = delete;
        Loaded& operator=(const Loaded&) = delete;

        const Plan plan;
        CUkernel kernel = nullptr;

    private:
        std::shared_ptr<const Driver> driver_;
        CUlibrary library_;
    };

    // Loads every variant and forces the driver's lazy load in `context`, without disturbing a stream capture of any
    // thread.
    static Result<std::unique_ptr<const Kernel>> load(std::shared_ptr<const Driver> driver, const Problem& problem,
                                                      const DeviceContext& context, const Device& device,
                                                      const Arch& arch, const std::vector<VariantCubin>& cubins);
    // The same kernel for another context of its device.
    Result<std::unique_ptr<const Kernel>> load_in(const DeviceContext& context) const;

    const Driver& driver() const { return *driver_; }
    const Problem& problem() const { return problem_; }
    const Device& device() const { return device_; }
    bool overlaps() const { return overlaps_; }  // with the kernel before it
    const RowLimits& row_limits() const { return row_limits_; }
    const Loaded& variant(Variant variant) const { return *by_variant_[static_cast<std::size_t>(variant)]; }

private:
    Kernel(std::shared_ptr<const Driver> driver, const Problem& problem, const Device& device, const Arch& arch);

    // The rest of both: loads the cubins beside what is loaded already.
    static Result<std::unique_ptr<const Kernel>> finish(std::unique_ptr<Kernel> kernel, const DeviceContext& context,
                                                        const std::vector<VariantCubin>& cubins);
    Outcome choose_variants();

    std::shared_ptr<const Driver> driver_;
    Problem problem_;
    Device device_;
    Arch arch_;
    bool overlaps_ = false;
    RowLimits row_limits_;
    std::vector<std::shared_ptr<const Loaded>> loaded_;
    std::array<const Loaded*, kVariants> by_variant_{};  // every variant, those that do not exist by the nearest that does
};

}  // namespace nq
