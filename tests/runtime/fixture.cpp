#include "fixture.h"

#include <dlfcn.h>

#include <stdexcept>

namespace nq::test {
namespace {

// The same object that the library gets when it opens the path.
template <class Function>
Function symbol(const char* path, const char* name) {
    void* handle = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void* address = handle != nullptr ? ::dlsym(handle, name) : nullptr;
    if (address == nullptr) throw std::runtime_error(::dlerror());
    return reinterpret_cast<Function>(address);
}

FakeCuda& fresh_cuda() {
    symbol<decltype(&nq_fake_cuda_reset)>(NORMQUANT_FAKE_CUDA, "nq_fake_cuda_reset")();
    return *symbol<decltype(&nq_fake_cuda)>(NORMQUANT_FAKE_CUDA, "nq_fake_cuda")();
}

FakeNvrtc& fresh_nvrtc() {
    symbol<decltype(&nq_fake_nvrtc_reset)>(NORMQUANT_FAKE_NVRTC, "nq_fake_nvrtc_reset")();
    return *symbol<decltype(&nq_fake_nvrtc)>(NORMQUANT_FAKE_NVRTC, "nq_fake_nvrtc")();
}

}  // namespace

Fixture::Fixture()
    : cuda(fresh_cuda()),
      nvrtc(fresh_nvrtc()),
      cache_dir(directory / "cache"),
      context(cuda.add_context(0)),
      stream(cuda.add_stream(context)) {
    cuda.current.push_back(context);
}

nq_context_options Fixture::options() const {
    nq_context_options options = NQ_CONTEXT_OPTIONS_INIT;
    options.jit = NQ_JIT_ON;
    options.cache_dir = cache_dir.c_str();
    options.nvrtc = NORMQUANT_FAKE_NVRTC;
    options.libcuda = NORMQUANT_FAKE_CUDA;
    options.log_level = NQ_LOG_OFF;
    return options;
}

ContextPtr Fixture::create(const nq_context_options& options) const {
    nq_context* created = nullptr;
    const nq_status status = nq_context_create(&options, &created);
    INFO(nq_last_error());
    REQUIRE(status == NQ_OK);
    return ContextPtr(created);
}

nq_problem make_problem(std::uint32_t hidden) {
    nq_problem problem = NQ_PROBLEM_INIT;
    problem.hidden = hidden;
    return problem;
}

nq_tensors make_tensors(std::int64_t rows) {
    nq_tensors tensors = NQ_TENSORS_INIT;
    tensors.rows = rows;
    tensors.x = reinterpret_cast<const void*>(0x100000000000);
    tensors.weight = reinterpret_cast<const void*>(0x200000000000);
    tensors.fp4 = reinterpret_cast<void*>(0x300000000000);
    tensors.scales = reinterpret_cast<void*>(0x400000000000);
    return tensors;
}

nq_counters counters_of(const nq_context* context) {
    nq_counters counters = NQ_COUNTERS_INIT;
    REQUIRE(nq_context_counters(context, &counters) == NQ_OK);
    return counters;
}

}  // namespace nq::test
