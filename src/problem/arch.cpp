#include "problem/arch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace nq {
namespace {

constexpr int kNoFamily = -1;

struct ArchRow {
    int major;
    int minor;
    NvrtcVersion since;  // oldest NVRTC that compiles for it, as far as this library is meant to work with it
    bool a;              // has an architecture-specific target, sm_90a
    int family;          // minor of the target whose `f` form covers this device, or kNoFamily
    bool e4m3_convert;
    bool u16x2_min;
    bool loads_256;
    bool packed_f32;

    int number() const { return major * 10 + minor; }
};

// Families are listed, not derived from the major number: NVIDIA may add a 10.x that sm_100f does not cover.
constexpr std::array<ArchRow, 11> kArchs = {{
    {8, 0, {12, 4}, false, kNoFamily, false, false, false, false},
    {8, 6, {12, 4}, false, kNoFamily, false, false, false, false},
    {8, 7, {12, 4}, false, kNoFamily, false, false, false, false},
    {8, 8, {13, 0}, false, kNoFamily, false, false, false, false},
    {8, 9, {12, 4}, false, kNoFamily, true, false, false, false},
    {9, 0, {12, 4}, true, kNoFamily, true, true, false, false},
    {10, 0, {12, 8}, true, 0, true, true, true, true},
    {10, 3, {12, 9}, true, 0, true, true, true, true},
    {11, 0, {13, 0}, true, 0, true, true, true, false},
    {12, 0, {12, 8}, true, 0, true, true, true, false},
    {12, 1, {12, 9}, true, 0, true, true, true, false},
}};
constexpr NvrtcVersion kFamilyTargetsSince{12, 9};
constexpr NvrtcVersion kNewestKnown{13, 0};

const ArchRow* find(int major, int minor) {
    const auto* row = std::find_if(kArchs.begin(), kArchs.end(),
                                   [&](const ArchRow& r) { return r.major == major && r.minor == minor; });
    return row == kArchs.end() ? nullptr : row;
}

std::string text(NvrtcVersion version) { return fmt::format("{}.{}", version.major, version.minor); }

Error unsupported(std::string message) { return Error{NQ_ERR_UNSUPPORTED_DEVICE, std::move(message)}; }

}  // namespace

std::vector<Arch> all_targets() {
    std::vector<Arch> targets;
    for (const ArchRow& row : kArchs) {
        targets.push_back({row.major, row.minor, 0});
        if (row.a) targets.push_back({row.major, row.minor, 'a'});
        if (row.family != kNoFamily) targets.push_back({row.major, row.minor, 'f'});
    }
    return targets;
}

std::string Arch::name() const { return fmt::format("sm_{}{}{}", major, minor, suffix ? std::string(1, suffix) : ""); }

Result<Arch> parse_arch(std::string_view name) {
    std::vector<std::string> accepted;
    for (const Arch& target : all_targets()) {
        accepted.push_back(target.name());
        if (accepted.back() == name) return target;
    }
    return Error{NQ_ERR_INVALID_ARGUMENT, fmt::format("arch is \"{}\"; accepted: {}", name, fmt::join(accepted, ", "))};
}

ArchFeatures features(const Arch& arch) {
    const ArchRow* row = find(arch.major, arch.minor);
    if (row == nullptr) return {};
    return {.fp4_convert = row->family != kNoFamily && arch.suffix != 0,
            .e4m3_convert = row->e4m3_convert,
            .u16x2_min = row->u16x2_min,
            .loads_256 = row->loads_256,
            .packed_f32 = row->packed_f32,
            .staged_bytes = arch.major < 9 ? 0u : arch.major < 12 ? 227u << 10 : 99u << 10,
            .copy_to_cta = arch.major >= 10,
            .overlap = arch.major >= 9,
            .cluster_blocks = arch.major < 9 ? 1u : 16u};
}

std::optional<NvrtcVersion> oldest_nvrtc(const Arch& target) {
    const ArchRow* row = find(target.major, target.minor);
    if (row == nullptr) return std::nullopt;
    return target.suffix == 'f' ? std::max(row->since, kFamilyTargetsSince) : row->since;
}

bool runs_on(const Arch& target, ComputeCapability device) {
    if (target.major != device.major) return false;
    switch (target.suffix) {
        case 0:
            return device.minor >= target.minor;
        case 'a':
            return device.minor == target.minor;
        case 'f': {
            const ArchRow* from = find(target.major, target.minor);
            const ArchRow* to = find(device.major, device.minor);
            return from != nullptr && to != nullptr && from->family != kNoFamily && from->family == to->family &&
                   device.minor >= target.minor;
        }
        default:
            return false;
    }
}

Result<Arch> target_for(ComputeCapability device, std::optional<NvrtcVersion> nvrtc, const std::vector<int>& listed) {
    const std::string gpu = fmt::format("GPU compute capability {}.{}", device.major, device.minor);
    if (device.major < 8 || device.minor < 0) return unsupported(gpu + " is not supported; accepted: 8.0 and newer");

    const ArchRow* exact = find(device.major, device.minor);
    if (exact == nullptr && device.major != 8) {
        return unsupported(fmt::format("{} is not known to this normquant: it needs a newer one, and NVRTC > {}", gpu,
                                       text(kNewestKnown)));
    }

    const auto compiles = [&](const ArchRow& row) {
        return !nvrtc || (*nvrtc >= row.since &&
                          (listed.empty() || std::find(listed.begin(), listed.end(), row.number()) != listed.end()));
    };
    if (exact != nullptr && exact->family != kNoFamily) {
        const ArchRow* base = find(exact->major, exact->family);
        if ((!nvrtc || *nvrtc >= kFamilyTargetsSince) && compiles(*base)) return Arch{base->major, base->minor, 'f'};
        if (compiles(*exact)) return Arch{exact->major, exact->minor, 'a'};
    }
    // Plain targets run on later minors of their major: the nearest one.
    const ArchRow* best = nullptr;
    std::optional<NvrtcVersion> needed;
    for (const ArchRow& row : kArchs) {
        if (!runs_on({row.major, row.minor, 0}, device)) continue;
        if (!needed || row.since < *needed) needed = row.since;
        if (compiles(row)) best = &row;
    }
    if (best != nullptr) return Arch{best->major, best->minor, 0};

    if (*nvrtc < *needed) {
        return unsupported(fmt::format("{} needs NVRTC >= {}; found: {}", gpu, text(*needed), text(*nvrtc)));
    }
    return unsupported(fmt::format("{} needs an NVRTC that compiles for sm_{}{}; NVRTC {} only does for {}", gpu,
                                   device.major, device.minor, text(*nvrtc), fmt::join(listed, ", ")));
}

std::vector<Arch> lookup_targets(ComputeCapability device) {
    std::vector<Arch> targets;
    const auto add = [&](const Arch& target) {
        if (std::find(targets.begin(), targets.end(), target) == targets.end()) targets.push_back(target);
    };
    if (Result<Arch> best = target_for(device, std::nullopt, {})) add(*best);
    if (const ArchRow* exact = find(device.major, device.minor)) {
        if (exact->a) add({exact->major, exact->minor, 'a'});
        add({exact->major, exact->minor, 0});
        // What an NVRTC older than this device was asked for.
        if (exact->family != kNoFamily) add({exact->major, exact->family, 0});
    }
    return targets;
}

}  // namespace nq
