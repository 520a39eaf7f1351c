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

// Options that can change code; part of the compiler id where they depend on NVRTC's version.
std::vector<std::string> compile_options(const Arch& arch, NvrtcVersion version);

// extra_options: for tests (-Xptxas=-v); such a cubin must not be cached.
Result<Compiled> compile(const Nvrtc& nvrtc, const std::string& source, const Arch& arch,
                         const std::vector<std::string>& extra_options = {});

}  // namespace nq
