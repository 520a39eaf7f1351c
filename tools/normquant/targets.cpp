#include "targets.h"

#include "errors.h"
#include "problems.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <optional>

namespace nq::cli {
namespace {

struct Gpu {
    const char* name;
    ComputeCapability capability;
};

// As NVIDIA's table of compute capabilities has them; the first of each is what `all` goes through.
constexpr Gpu kGpus[] = {
    {"a100", {8, 0}},    {"a30", {8, 0}},
    {"a10", {8, 6}},     {"a16", {8, 6}},     {"a40", {8, 6}},     {"a6000", {8, 6}},   {"rtx3090", {8, 6}}, {"rtx3080", {8, 6}},
    {"orin", {8, 7}},
    {"l40s", {8, 9}},    {"l4", {8, 9}},      {"l40", {8, 9}},     {"rtx4090", {8, 9}}, {"rtx4080", {8, 9}}, {"rtx4070", {8, 9}},
    {"rtx6000ada", {8, 9}}, {"l20", {8, 9}},
    {"h100", {9, 0}},    {"h200", {9, 0}},    {"h20", {9, 0}},     {"h800", {9, 0}},    {"gh200", {9, 0}},
    {"b200", {10, 0}},   {"gb200", {10, 0}},  {"b100", {10, 0}},
    {"b300", {10, 3}},   {"gb300", {10, 3}},
    {"thor", {11, 0}},
    {"rtx5090", {12, 0}}, {"rtx5080", {12, 0}}, {"rtx5070", {12, 0}}, {"rtx5060", {12, 0}}, {"rtxpro6000", {12, 0}},
    {"gb10", {12, 1}},   {"dgxspark", {12, 1}},
};

// "RTX 5090", "rtx-5090" and "rtx_5090" are one name.
std::string plain(const std::string& name) {
    std::string letters;
    for (const char c : name) {
        if (std::isalnum(static_cast<unsigned char>(c)) != 0)
            letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    return letters;
}

std::optional<ComputeCapability> capability_of(const std::string& name) {
    const auto* gpu = std::ranges::find(kGpus, plain(name), &Gpu::name);
    return gpu != std::end(kGpus) ? std::optional(gpu->capability) : std::nullopt;
}

Result<Arch> target_of_gpu(ComputeCapability capability, const Nvrtc* nvrtc) {
    if (nvrtc == nullptr) return target_for(capability, std::nullopt, {});
    return target_for(capability, nvrtc->version, nvrtc->archs);
}

std::string gpu_names() {
    std::string names;
    for (const Gpu& gpu : kGpus) names += fmt::format("{}{}", names.empty() ? "" : ", ", gpu.name);
    return names;
}

void add_all(std::vector<Arch>& targets, const Nvrtc* nvrtc, std::vector<std::string>& left_out) {
    std::optional<ComputeCapability> last;
    for (const Gpu& gpu : kGpus) {
        if (last == gpu.capability) continue;
        last = gpu.capability;
        const auto target = target_of_gpu(gpu.capability, nvrtc);
        if (target) {
            add_once(targets, *target);
        } else {
            add_once(left_out, target.error().message);
        }
    }
}

}  // namespace

Result<std::vector<Arch>> targets_of(const std::vector<std::string>& names, const Nvrtc* nvrtc,
                                     std::vector<std::string>& left_out) {
    std::vector<Arch> targets;
    for (const std::string& name : names) {
        if (name == "all") {
            add_all(targets, nvrtc, left_out);
        } else if (const auto capability = capability_of(name)) {
            const auto target = target_of_gpu(*capability, nvrtc);
            if (!target) return Error{NQ_ERR_UNSUPPORTED_DEVICE, fmt::format("--arch {}: {}", name, target.error().message)};
            add_once(targets, *target);
        } else {
            const auto target = parse_arch(name);
            if (!target) {
                return usage_error(fmt::format("--arch: {}; GPUs: {}; or all", target.error().message, gpu_names()));
            }
            add_once(targets, *target);
        }
    }
    return targets;
}

std::vector<std::string> target_names() {
    std::vector<std::string> names;
    for (const Arch& target : all_targets()) names.push_back(target.name());
    return names;
}

std::vector<std::string> target_names_and_gpus() {
    std::vector<std::string> names = target_names();
    for (const Gpu& gpu : kGpus) names.push_back(gpu.name);
    names.push_back("all");
    return names;
}

}  // namespace nq::cli
