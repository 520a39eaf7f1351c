// Target names (sm_90, sm_100f, sm_120a), what runs on what, and which target a device is compiled for.
// Everything is a table: arch numbers have no meaningful order (sm_103 is a datacenter part, sm_110 is not).
#pragma once

#include "support/result.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nq {

struct ComputeCapability {
    int major = 0;
    int minor = 0;
    friend bool operator==(const ComputeCapability&, const ComputeCapability&) = default;
};

struct NvrtcVersion {
    int major = 0;
    int minor = 0;
    friend auto operator<=>(const NvrtcVersion&, const NvrtcVersion&) = default;
};

struct Arch {
    int major = 0;
    int minor = 0;
    char suffix = 0;  // 0, 'a' or 'f'

    std::string name() const;  // "sm_100f"
    friend bool operator==(const Arch&, const Arch&) = default;
};

Result<Arch> parse_arch(std::string_view name);
std::vector<Arch> all_targets();  // whose names parse_arch accepts

// The instructions a target has; constants of the generated unit.
struct ArchFeatures {
    bool fp4_convert = false;     // cvt.rn.satfinite.e2m1x2.f32
    bool e4m3_convert = false;    // cvt.rn.satfinite.e4m3x2.f32
    bool u16x2_min = false;       // min.u16x2, which makes the packed bf16x2 conversion cheap
    bool loads_256 = false;       // ld.global.v8.b32
    bool packed_f32 = false;      // mul.rn.f32x2 and fma.rn.f32x2, each one instruction
    std::uint32_t staged_bytes = 0;  // shared memory that a block may have where there are bulk copies, sm_90 and later; else 0
    bool copy_to_cta = false;        // cp.async.bulk names the block's own shared memory as such
    bool overlap = false;            // griddepcontrol: a launch may begin before the one before it has ended
    std::uint32_t cluster_blocks = 1;  // that a cluster may have; whether a device has room for one is its driver's answer
};
ArchFeatures features(const Arch& arch);

// The oldest NVRTC that compiles for the target; nullopt for a target that is not known.
std::optional<NvrtcVersion> oldest_nvrtc(const Arch& target);

// Does a cubin for `target` load on a device of this compute capability?
bool runs_on(const Arch& target, ComputeCapability device);

// The target to compile for. `listed`: base numbers that this NVRTC supports (80, 90, 100, ...), empty when unknown.
// nullopt version: no NVRTC at hand; answers as one >= 12.9 would.
Result<Arch> target_for(ComputeCapability device, std::optional<NvrtcVersion> nvrtc, const std::vector<int>& listed);

// Targets to look for in a cache, best first: target_for, the exact `a`, the plain one.
std::vector<Arch> lookup_targets(ComputeCapability device);

}  // namespace nq
