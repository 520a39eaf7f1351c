// The cubin of one variant: from the disk cache, else from NVRTC. Needs no GPU and no driver.
#pragma once

#include "cache/key.h"
#include "cuda/nvrtc.h"
#include "plan/plan.h"
#include "problem/arch.h"
#include "problem/problem.h"
#include "support/result.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nq {

class Context;

struct CubinRequest {
    Plan plan;
    Arch arch;
    std::string source;
    KeyFields fields;  // what the key is made of
    RequestKey key{};
};

CubinRequest make_request(const Problem& problem, const Plan& plan, const Arch& arch);

struct Cubin {
    std::vector<unsigned char> bytes;
    bool cached = false;
    std::uint64_t compile_ns = 0;
};

using SharedCubin = std::shared_ptr<const Cubin>;

// What the cache has of it, whichever NVRTC made it. nullptr when there is none.
SharedCubin find_cubin(Context& context, const CubinRequest& request);

// What the cache has of it from this NVRTC, else a new one, which is put there.
Result<SharedCubin> obtain_cubin(Context& context, const CubinRequest& request, const Nvrtc& nvrtc);

}  // namespace nq
