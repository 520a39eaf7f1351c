// Source -> NVRTC -> cubin and log. Needs no GPU and no driver; may be called from any thread.
#pragma once

#include "cuda/nvrtc.h"
#include "support/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nq {

struct Compiled {
    std::vector<unsigned char> cubin;
    std::string log;  // warnings of a successful compile; "" when there were none
    std::uint64_t nanoseconds = 0;
    std::string ptx;  // where it was asked for
};

struct CompileExtras {
    std::vector<std::string> options;  // for tests: a cubin that was compiled with options of its own must not be cached
    bool ptx = false;                  // also hand over the PTX, which changes nothing
};

// Options that are passed to every NVRTC; part of the request key.
std::vector<std::string> base_options(const Arch& arch);
// Options that an unknowing NVRTC would refuse.
std::vector<std::string> gated_options(NvrtcVersion version);
// Which they are from which version on: part of the request key.
std::string gated_options_rule();
// Both, in the order in which they are passed.
std::vector<std::string> compile_options(const Arch& arch, NvrtcVersion version);

// COMPILE_FAILED carries the log in Error::detail. NVRTC_MISSING: half of it, the builtins.
Result<Compiled> compile(const Nvrtc& nvrtc, const std::string& source, const Arch& arch,
                         const CompileExtras& extras = {});

}  // namespace nq
