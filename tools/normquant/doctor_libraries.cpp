// normquant doctor: NVRTC, the driver and the devices.
#include "device.h"
#include "doctor_checks.h"
#include "jit/compile.h"
#include "jit/cubin_info.h"
#include "plan/plan.h"
#include "runtime/cubin.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

namespace nq::cli {
namespace {

using NvrtcPtr = std::shared_ptr<const Nvrtc>;

std::string installing_nvrtc() {
    return fmt::format(
        "install NVRTC {} or newer (the PyPI package nvidia-cuda-nvrtc will do), or name its file in "
        "NORMQUANT_NVRTC",
        text(kOldestNvrtc));
}

void check_builtins(const Nvrtc& nvrtc, Findings& findings) {
    const std::string directory = std::filesystem::path(nvrtc.path).parent_path().string();
    constexpr std::string_view kPrefix = "libnvrtc-builtins.so";
    std::vector<std::string> there;
    for (std::string& name : names_in(system_files(), directory)) {
        if (name.starts_with(kPrefix)) there.push_back(std::move(name));
    }
    const std::string wanted = fmt::format("{}.{}", kPrefix, text(nvrtc.version));
    if (std::ranges::any_of(there, [&](const std::string& name) { return name.starts_with(wanted); })) {
        findings.ok("nvrtc builtins", fmt::format("{}/{}", directory, wanted));
        return;
    }
    findings.warning("nvrtc builtins",
                     there.empty() ? fmt::format("{} is not beside {}: compiles fail, unless the loader finds it",
                                                 wanted, nvrtc.path)
                                   : fmt::format("{} is not beside {}, where {} is: they belong to another version",
                                                 wanted, nvrtc.path, fmt::join(there, ", ")),
                     "install NVRTC whole: both files come from one package");
}

NvrtcPtr check_nvrtc(const ContextConfig& config, Findings& findings) {
    if (!config.jit) {
        findings.ok("nvrtc", "not looked for: NORMQUANT_JIT is off, only cached kernels are used");
        return nullptr;
    }
    std::vector<NvrtcFile> files;
    std::vector<std::string> faults;
    const auto take = [&](NvrtcFile file) {
        files.push_back(std::move(file));
        return false;
    };
    each_nvrtc(config.nvrtc, take, faults);
    for (const std::string& fault : faults) {
        findings.warning("nvrtc", fmt::format("passed over: {}", fault), "make it readable, or remove it");
    }
    const auto loaded = load_nvrtc(config.nvrtc);
    if (!loaded) {
        if (!config.nvrtc.path.empty()) {
            findings.problem("nvrtc", loaded.error().message, "correct NORMQUANT_NVRTC, or unset it to search");
        } else if (files.empty()) {
            findings.warning("nvrtc",
                             fmt::format("no kernel can be compiled, cached ones are used: {}", loaded.error().message),
                             installing_nvrtc());
        } else {
            findings.problem("nvrtc", loaded.error().message, installing_nvrtc());
        }
        return nullptr;
    }
    const Nvrtc& used = **loaded;
    findings.ok("nvrtc", fmt::format("{} at {}, found by {}; targets {}", text(used.version), used.path, used.origin,
                                     fmt::join(used.archs, " ")));
    check_builtins(used, findings);
    bool reached = false;
    for (const NvrtcFile& file : files) {
        if (file.path == used.path) {
            reached = true;
        } else if (reached) {
            findings.ok("nvrtc", fmt::format("also there, not used: {}, found by {}", file.path, file.origin));
        } else {
            findings.warning("nvrtc",
                             fmt::format("passed over, as it is not usable: {}, found by {}", file.path, file.origin),
                             "update or remove it, or name the one to use in NORMQUANT_NVRTC");
        }
    }
    return *loaded;
}

// The target of the device, as an NVRTC that is there would be asked for it.
Result<Arch> target_of(ComputeCapability capability, const NvrtcPtr& nvrtc) {
    return nvrtc ? target_for(capability, nvrtc->version, nvrtc->archs) : target_for(capability, std::nullopt, {});
}

void check_device(const DeviceFacts& device, const NvrtcPtr& nvrtc, std::optional<Arch>& target, Findings& findings) {
    const std::string what = fmt::format("{}: {}, compute capability {}.{}", device.ordinal, device.name,
                                         device.capability.major, device.capability.minor);
    const auto arch = target_of(device.capability, nvrtc);
    if (!arch) {
        findings.warning("device", fmt::format("{}, not supported: {}", what, arch.error().message),
                         nvrtc ? "a newer NVRTC may know it; the CPU reference computes the same bytes"
                               : "use another device; the CPU reference computes the same bytes");
        return;
    }
    if (!target) target = *arch;
    findings.ok("device", fmt::format("{}, target {}, FP4 conversion by {}", what, arch->name(),
                                      features(*arch).fp4_convert ? "instruction" : "software"));
}

// target: of the first device that is supported.
void check_driver(const ContextConfig& config, const NvrtcPtr& nvrtc, std::optional<Arch>& target, Findings& findings) {
    const auto driver = load_driver(config.libcuda);
    if (!driver) {
        if (driver.error().status == NQ_ERR_DRIVER_MISSING && config.libcuda.empty()) {
            findings.note("driver",
                          fmt::format("none: kernels can be compiled here, not run: {}", driver.error().message),
                          "to run them, install NVIDIA's driver");
        } else {
            findings.problem("driver", driver.error().message,
                             config.libcuda.empty() ? "update or repair NVIDIA's driver; nvidia-smi says more"
                                                    : "correct NORMQUANT_LIBCUDA, or unset it to search");
        }
        return;
    }
    const int version = (*driver)->version;
    findings.ok("driver", fmt::format("for CUDA {}.{} at {}", version / 1000, version % 1000 / 10, (*driver)->path));
    if (nvrtc && nvrtc->version.major > version / 1000) {
        findings.warning(
            "driver",
            fmt::format("it is for CUDA {}, and may refuse the kernels of NVRTC {}", version / 1000,
                        text(nvrtc->version)),
            fmt::format("update the driver, or name an NVRTC of CUDA {} in NORMQUANT_NVRTC", version / 1000));
    }
    const auto count = device_count(**driver);
    if (!count) {
        findings.problem("device", count.error().message, "nvidia-smi says more");
        return;
    }
    if (*count == 0) findings.note("device", "none that this process may use", "look at CUDA_VISIBLE_DEVICES");
    for (int ordinal = 0; ordinal < *count; ++ordinal) {
        if (const auto device = device_facts(**driver, ordinal)) {
            check_device(*device, nvrtc, target, findings);
        } else {
            findings.problem("device", device.error().message, "nvidia-smi says more");
        }
    }
}

std::optional<Arch> any_target(const Nvrtc& nvrtc) {
    for (const int base : nvrtc.archs) {
        if (const auto arch = target_for({base / 10, base % 10}, nvrtc.version, nvrtc.archs)) return *arch;
    }
    return std::nullopt;
}

void check_compile(const ContextConfig& config, const NvrtcPtr& nvrtc, std::optional<Arch> target, Findings& findings) {
    if (!nvrtc) {
        findings.problem("compile", config.jit ? "not possible without NVRTC" : "not possible: NORMQUANT_JIT is off",
                         config.jit ? "as for nvrtc, above" : "unset NORMQUANT_JIT, unless it is meant to be so");
        return;
    }
    if (!target) target = any_target(*nvrtc);
    if (!target) {
        findings.problem("compile", fmt::format("NVRTC {} supports no target of normquant", text(nvrtc->version)),
                         installing_nvrtc());
        return;
    }
    Problem problem;
    problem.hidden = 256;
    const CubinRequest request = make_request(problem, plans_for(problem, *target).front(), *target);
    const auto compiled = compile(*nvrtc, request.source, *target);
    if (!compiled) {
        const Error& error = compiled.error();
        findings.problem("compile", error.detail.empty() ? error.message : error.message + ": " + error.detail,
                         "install NVRTC whole, and look at NVRTC_APPEND_FLAGS");
        return;
    }
    findings.ok("compile", fmt::format("a kernel for {} in {:.0f} ms: {} bytes, {} registers", target->name(),
                                       static_cast<double>(compiled->nanoseconds) * 1e-6, compiled->cubin.size(),
                                       cubin_info(compiled->cubin).registers));
}

}  // namespace

void check_libraries(const ContextConfig& config, bool compile, Findings& findings) {
    const NvrtcPtr nvrtc = check_nvrtc(config, findings);
    std::optional<Arch> target;
    check_driver(config, nvrtc, target, findings);
    if (compile) check_compile(config, nvrtc, target, findings);
}

}  // namespace nq::cli
