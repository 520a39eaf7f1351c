// The cubin of one variant: from the disk cache, else from NVRTC. Needs no GPU and no driver.
#pragma once

#include "cache/cache.h"
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
    Problem asked;
    std::string problem;  // canonical text of what the code depends on
    Plan plan;
    Arch arch;
    std::string source;
    KeyFields fields;  // what the key is made of
    RequestKey key{};
    bool in_run = false;  // nq_run waits for it
};

CubinRequest make_request(const Problem& problem, const Plan& plan, const Arch& arch);

// Was it made from this library's kernel sources, by its rules? If not, it is of another version, and no request ever has its key.
bool of_these_sources(const Entry& entry);

struct Cubin {
    std::vector<unsigned char> bytes;
    CompilerId compiler{};
    bool cached = false;
    std::uint64_t compile_ns = 0;
    Outcome stored = Unit{};  // of a new one: why it could not be put into the cache
};

using SharedCubin = std::shared_ptr<const Cubin>;

// What makes entries, as far as their bytes depend on it. Known without loading the library. The environment is read
// each time, as NVRTC itself does.
CompilerId compiler_of(const NvrtcFile& nvrtc, const std::string& environment = nvrtc_environment());

// What the cache has of it; in the read-write root, from this compiler, or from any. nullptr when there is none.
SharedCubin find_cubin(Context& context, const CubinRequest& request, const std::optional<CompilerId>& compiler);

// What the cache has of it from this NVRTC, else a new one, which is put there. A compile that failed is not tried again
// by this process. Layers::skip passes by what others have compiled.
Result<SharedCubin> obtain_cubin(Context& context, const CubinRequest& request, const Nvrtc& nvrtc,
                                 Cache::Layers layers = Cache::Layers::search);

// NOT_PREPARED or whatever else kept a kernel from being compiled, with what was looked for and where.
Error missing_cubins(Context& context, Error reason, const std::vector<CubinRequest>& requests);

}  // namespace nq
