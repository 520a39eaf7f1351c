// One test's world: both fakes in their initial state, a cache directory, one context on device 0 that is current.
#pragma once

#include "fake_cuda.h"
#include "fake_nvrtc.h"
#include "support/catch.h"
#include "support/temp_directory.h"

#include <normquant/normquant.h>

#include <memory>
#include <string>
#include <vector>

namespace nq::test {

struct DestroyContext {
    void operator()(nq_context* context) const { nq_context_destroy(context); }
};
using ContextPtr = std::unique_ptr<nq_context, DestroyContext>;

constexpr std::size_t kKernels = 3;  // of make_problem() on sm_90: throughput, latency and split

class Fixture {
public:
    Fixture();

    nq_context_options options() const;
    ContextPtr create() const { return create(options()); }
    ContextPtr create(const nq_context_options& options) const;

    FakeCuda& cuda;
    FakeNvrtc& nvrtc;
    TempDirectory directory;
    std::string cache_dir;
    CUcontext context;
    CUstream stream;
};

// bf16 NVFP4 rows with linear scales.
nq_problem make_problem(std::uint32_t hidden = 4096);

// Aligned addresses that no test reads or writes.
nq_tensors make_tensors(std::int64_t rows);

nq_counters counters_of(const nq_context* context);

inline std::string last_error() { return nq_last_error(); }
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace nq::test
