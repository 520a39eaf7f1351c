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
    std::string ptx;
    std::string log;  // warnings of a successful compile; "" when there were none
    std::uint64_t nanoseconds = 0;
};

// Options that are passed to every NVRTC; part of the request key.
std::vector<std::string> base_options(const Arch& arch);
// Options that an unknowing NVRTC would refuse; part of the compiler id.
std::vector<std::string> gated_options(NvrtcVersion version);
// Both, in the order in which they are passed.
std::vector<std::string> compile_options(const Arch& arch, NvrtcVersion version);

// COMPILE_FAILED carries the log in Error::detail.
// extra_options: for tests (-Xptxas=-v); such a cubin must not be cached.
Result<Compiled> compile(const Nvrtc& nvrtc, const std::string& source, const Arch& arch,
                         const std::vector<std::string>& extra_options = {});

}  // namespace nq
