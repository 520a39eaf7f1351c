// normquant.hpp under strict warnings, as C++17 and C++20, with and without exceptions and RTTI, and without a CUDA header.
// Compiling it is the test.
#include <normquant/normquant.hpp>

#include <array>
#include <vector>

namespace {

// A new enumerator in C is a warning here, and so an error, until normquant.hpp has it too.
#define CASE(c, cpp)                                 \
    case c:                                          \
        static_assert(static_cast<int>(cpp) == (c)); \
        break
[[maybe_unused]] void mirrored(nq_op op, nq_dtype dtype, nq_scale_format format, nq_scale_layout layout, nq_jit jit, nq_log_level level,
                               nq_variant variant) {
    switch (op) {
        CASE(NQ_OP_RMSNORM, nqpp::Op::rmsnorm);
        CASE(NQ_OP_ADD_RMSNORM, nqpp::Op::add_rmsnorm);
    }
    switch (dtype) {
        CASE(NQ_FP16, nqpp::DType::fp16);
        CASE(NQ_BF16, nqpp::DType::bf16);
        CASE(NQ_FP32, nqpp::DType::fp32);
    }
    switch (format) {
        CASE(NQ_SCALE_E4M3, nqpp::ScaleFormat::e4m3);
        CASE(NQ_SCALE_UE8M0, nqpp::ScaleFormat::ue8m0);
    }
    switch (layout) {
        CASE(NQ_LAYOUT_LINEAR, nqpp::ScaleLayout::linear);
        CASE(NQ_LAYOUT_SWIZZLED, nqpp::ScaleLayout::swizzled);
        CASE(NQ_LAYOUT_BOTH, nqpp::ScaleLayout::both);
    }
    switch (jit) {
        CASE(NQ_JIT_DEFAULT, nqpp::Jit::environment);
        CASE(NQ_JIT_ON, nqpp::Jit::on);
        CASE(NQ_JIT_OFF, nqpp::Jit::off);
    }
    switch (level) {
        CASE(NQ_LOG_DEFAULT, nqpp::LogLevel::environment);
        CASE(NQ_LOG_DEBUG, nqpp::LogLevel::debug);
        CASE(NQ_LOG_INFO, nqpp::LogLevel::info);
        CASE(NQ_LOG_WARN, nqpp::LogLevel::warn);
        CASE(NQ_LOG_ERROR, nqpp::LogLevel::error);
        CASE(NQ_LOG_OFF, nqpp::LogLevel::off);
    }
    switch (variant) {
        CASE(NQ_VARIANT_THROUGHPUT, nqpp::Variant::throughput);
        CASE(NQ_VARIANT_LATENCY, nqpp::Variant::latency);
        CASE(NQ_VARIANT_THROUGHPUT_32B, nqpp::Variant::throughput_32b);
        CASE(NQ_VARIANT_LATENCY_32B, nqpp::Variant::latency_32b);
        CASE(NQ_VARIANT_SPLIT, nqpp::Variant::split);
    }
}

// Constant expressions.
constexpr nqpp::Problem kPlain(7168);
constexpr nqpp::Problem kAll = nqpp::Problem::mxfp4(4096)
                                   .with(nqpp::Op::add_rmsnorm)
                                   .with(nqpp::DType::fp16)
                                   .with(nqpp::ScaleLayout::both)
                                   .with_weight_bias_one()
                                   .with_y_out()
                                   .with_overlap()
                                   .with_device_rows()
                                   .with_batches();
static_assert(kAll.op == NQ_OP_ADD_RMSNORM && kAll.hidden == 4096 && kAll.dtype == NQ_FP16 && kAll.weight_dtype == NQ_FP16 &&
              kAll.block_size == 32 && kAll.scale_format == NQ_SCALE_UE8M0 && kAll.scale_layout == NQ_LAYOUT_BOTH &&
              kAll.flags == (NQ_PROBLEM_WEIGHT_BIAS_ONE | NQ_PROBLEM_Y_OUT | NQ_PROBLEM_OVERLAP | NQ_PROBLEM_DEVICE_ROWS | NQ_PROBLEM_BATCHES));
// In either order.
static_assert(kPlain.with_weight(nqpp::DType::fp32).with(nqpp::DType::fp16).weight_dtype == NQ_FP32);
static_assert(kPlain.with(nqpp::DType::fp16).with_weight(nqpp::DType::fp32).weight_dtype == NQ_FP32);

static_assert(!std::is_copy_constructible_v<nqpp::Context> && !std::is_copy_assignable_v<nqpp::Context>);
static_assert(std::is_nothrow_move_constructible_v<nqpp::Context> && std::is_nothrow_move_assignable_v<nqpp::Context>);

}  // namespace

// Every function template once, in every dialect.
nq_status header_hpp(CUstream_st* stream);
nq_status header_hpp(CUstream_st* stream) {
    int compiles = 0;
    const auto count = [&compiles](const nq_compile_event&) { ++compiles; };
    const auto options = nqpp::ContextOptions()
                             .with(nqpp::Jit::on)
                             .with(nqpp::LogLevel::info)
                             .on_log([](nqpp::LogLevel, const char*) {})
                             .on_compile(count);
    nqpp::Result<nqpp::Context> context = nqpp::Context::create(options);
    if (!context) return context.status();

    const std::vector<nqpp::Problem> problems = {kPlain, kAll};
    const std::array<const char*, 2> archs = {"sm_90", "sm_100f"};
    const nq_problem of_c[] = {kPlain};
    if (!context->precompile(problems, archs, [](const nq_precompile_event&) { return nqpp::Next::stop; })) return NQ_ERR_INTERNAL;
    if (!context->precompile(of_c, archs, 2)) return NQ_ERR_INTERNAL;
#ifdef __cpp_lib_span
    if (!context->precompile(std::span(problems), std::span(archs))) return NQ_ERR_INTERNAL;
    if (!nqpp::reference(kPlain, nqpp::HostTensors{})) return NQ_ERR_INTERNAL;
#endif
    if (!nqpp::plan(kPlain, "sm_90", nqpp::Variant::latency) || !context->counters() || !context->seal()) return NQ_ERR_INTERNAL;
    const nqpp::Tensors tensors;
    if (!context->run(kPlain, tensors, stream)) return NQ_ERR_INTERNAL;
    const nqpp::Result<nqpp::Kernel> kernel = context->prepare(kPlain, nqpp::PrepareOptions(stream));
#ifdef __cpp_exceptions
    kernel.value().launch(tensors, stream).value();
    nqpp::check(kPlain).value();
    return nqpp::Context::create().value() ? NQ_OK : NQ_ERR_INTERNAL;
#else
    return kernel ? kernel->launch(tensors, stream).status() : kernel.status();
#endif
}
