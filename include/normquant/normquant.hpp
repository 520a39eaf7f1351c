// normquant for C++17 and later: owners, typed enums and errors as values over normquant.h, which documents what everything does.
//
// SPDX-License-Identifier: Apache-2.0
//
//   auto context = nqpp::Context::create();
//   if (!context) return fail(context.error().message);
//   auto kernel = context->prepare(nqpp::Problem(7168).with(nqpp::ScaleLayout::swizzled));
//   if (!kernel) return fail(kernel.error().message);
//   nqpp::Status launched = kernel->launch(tensors, stream);
//
// Nothing throws unless asked to: value() of a Status or Result throws nqpp::Exception instead of returning an error. It does not
// exist where exceptions are off. Every structure is the C one with its defaults, every function takes the C ones too.
#ifndef NORMQUANT_NORMQUANT_HPP
#define NORMQUANT_NORMQUANT_HPP

#include <normquant/normquant.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#if __has_include(<version>)
#include <version>
#endif
#ifdef __cpp_lib_span
#include <span>
#endif
#ifdef __cpp_exceptions
#include <stdexcept>
#endif

// Neither normquant nor nq: the kernel sources and the library have types of these names (DType, Context) there, and a program
// that has both, as the library's own tests, would define them twice. For another name: namespace norm = nqpp;
namespace nqpp {

enum class Op : std::uint32_t { rmsnorm = NQ_OP_RMSNORM, add_rmsnorm = NQ_OP_ADD_RMSNORM };
enum class DType : std::uint32_t { fp16 = NQ_FP16, bf16 = NQ_BF16, fp32 = NQ_FP32 };
enum class ScaleFormat : std::uint32_t { e4m3 = NQ_SCALE_E4M3, ue8m0 = NQ_SCALE_UE8M0 };
enum class ScaleLayout : std::uint32_t { linear = NQ_LAYOUT_LINEAR, swizzled = NQ_LAYOUT_SWIZZLED, both = NQ_LAYOUT_BOTH };
enum class Jit : std::uint32_t { environment = NQ_JIT_DEFAULT, on = NQ_JIT_ON, off = NQ_JIT_OFF };
enum class LogLevel : std::uint32_t {
    environment = NQ_LOG_DEFAULT,
    debug = NQ_LOG_DEBUG,
    info = NQ_LOG_INFO,
    warn = NQ_LOG_WARN,
    error = NQ_LOG_ERROR,
    off = NQ_LOG_OFF
};
enum class Variant : std::uint32_t {
    throughput = NQ_VARIANT_THROUGHPUT,
    latency = NQ_VARIANT_LATENCY,
    throughput_32b = NQ_VARIANT_THROUGHPUT_32B,
    latency_32b = NQ_VARIANT_LATENCY_32B,
    split = NQ_VARIANT_SPLIT
};

// ---- Errors ------------------------------------------------------------------------------------------------------------

struct Error {
    nq_status status = NQ_ERR_INTERNAL;
    std::string message;
    std::string detail;

    // Of the calling thread's last call, which returned `status`.
    static Error last(nq_status status) { return {status, nq_last_error(), nq_last_error_detail()}; }
};

#ifdef __cpp_exceptions
class Exception : public std::runtime_error {
public:
    explicit Exception(Error error) : std::runtime_error(error.message), error_(std::move(error)) {}
    const Error& error() const noexcept { return error_; }
    nq_status status() const noexcept { return error_.status; }

private:
    Error error_;
};
#endif

// What a launch returns: the nq_status alone. The text is still the library's, until the thread's next call.
class [[nodiscard]] Status {
public:
    constexpr explicit Status(nq_status status) noexcept : status_(status) {}
    constexpr bool ok() const noexcept { return status_ == NQ_OK; }
    constexpr explicit operator bool() const noexcept { return ok(); }
    constexpr nq_status status() const noexcept { return status_; }
    Error error() const { return Error::last(status_); }
#ifdef __cpp_exceptions
    void value() const {
        if (!ok()) throw Exception(error());
    }
#endif

private:
    nq_status status_;
};

// A value or an error with its text.
template <class T>
class [[nodiscard]] Result {
public:
    Result(T value) : value_(std::move(value)) {}
    Result(Error error) : error_(std::move(error)) {}

    bool ok() const noexcept { return value_.has_value(); }
    explicit operator bool() const noexcept { return ok(); }
    nq_status status() const noexcept { return ok() ? NQ_OK : error_.status; }
    const Error& error() const noexcept { return error_; }  // only if !ok()

    // Only if ok().
    T& operator*() & noexcept { return *value_; }
    const T& operator*() const& noexcept { return *value_; }
    T&& operator*() && noexcept { return *std::move(value_); }
    T* operator->() noexcept { return &*value_; }
    const T* operator->() const noexcept { return &*value_; }

#ifdef __cpp_exceptions
    const T& value() const& {
        if (!ok()) throw Exception(error_);
        return *value_;
    }
    T value() && {  // not by reference, which would not outlive the statement
        if (!ok()) throw Exception(std::move(error_));
        return *std::move(value_);
    }
#endif

private:
    std::optional<T> value_;
    Error error_;
};

template <>
class [[nodiscard]] Result<void> {
public:
    Result() noexcept = default;
    Result(Error error) : error_(std::move(error)) {}
    // At once: a later call of the thread replaces the text.
    Result(Status status) {
        if (!status) error_ = status.error();
    }

    bool ok() const noexcept { return !error_.has_value(); }
    explicit operator bool() const noexcept { return ok(); }
    nq_status status() const noexcept { return ok() ? NQ_OK : error_->status; }
    const Error& error() const noexcept { return *error_; }  // only if !ok()
#ifdef __cpp_exceptions
    void value() const {
        if (!ok()) throw Exception(*error_);
    }
#endif

private:
    std::optional<Error> error_;
};

// ---- Structures --------------------------------------------------------------------------------------------------------

namespace detail {

// The macros cast as C does.
#ifdef __GNUC__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#endif
inline constexpr nq_problem problem_init = NQ_PROBLEM_INIT;
inline constexpr nq_tensors tensors_init = NQ_TENSORS_INIT;
inline constexpr nq_context_options context_options_init = NQ_CONTEXT_OPTIONS_INIT;
inline constexpr nq_prepare_options prepare_options_init = NQ_PREPARE_OPTIONS_INIT;
inline constexpr nq_plan plan_init = NQ_PLAN_INIT;
inline constexpr nq_counters counters_init = NQ_COUNTERS_INIT;
#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif

// By reference: the argument beside it, the call, fills it.
template <class T>
Result<T> result(nq_status status, T& value) {
    if (status != NQ_OK) return Error::last(status);
    return std::move(value);
}

inline void* payload(const void* object) noexcept { return const_cast<void*>(object); }

}  // namespace detail

// Problem(4096) is NVFP4 of bf16 rows with linear scales, the same as NQ_PROBLEM_INIT.
struct Problem : nq_problem {
    constexpr explicit Problem(std::uint32_t elements) noexcept : nq_problem(detail::problem_init) { hidden = elements; }
    [[nodiscard]] static constexpr Problem mxfp4(std::uint32_t elements) noexcept {
        return Problem(elements).with(ScaleFormat::ue8m0).with_block_size(32);
    }

    [[nodiscard]] constexpr Problem with(Op value) const noexcept { return set(&nq_problem::op, static_cast<std::uint32_t>(value)); }
    [[nodiscard]] constexpr Problem with(ScaleFormat value) const noexcept {
        return set(&nq_problem::scale_format, static_cast<std::uint32_t>(value));
    }
    [[nodiscard]] constexpr Problem with(ScaleLayout value) const noexcept {
        return set(&nq_problem::scale_layout, static_cast<std::uint32_t>(value));
    }
    // Of the rows, and of the weight unless that is fp32.
    [[nodiscard]] constexpr Problem with(DType value) const noexcept {
        const Problem rows = set(&nq_problem::dtype, static_cast<std::uint32_t>(value));
        return weight_dtype == NQ_FP32 ? rows : rows.with_weight(value);
    }
    [[nodiscard]] constexpr Problem with_weight(DType value) const noexcept {
        return set(&nq_problem::weight_dtype, static_cast<std::uint32_t>(value));
    }
    [[nodiscard]] constexpr Problem with_block_size(std::uint32_t elements) const noexcept {
        return set(&nq_problem::block_size, elements);
    }
    [[nodiscard]] constexpr Problem with_weight_bias_one() const noexcept {
        return set(&nq_problem::flags, flags | NQ_PROBLEM_WEIGHT_BIAS_ONE);
    }
    [[nodiscard]] constexpr Problem with_y_out() const noexcept { return set(&nq_problem::flags, flags | NQ_PROBLEM_Y_OUT); }
    [[nodiscard]] constexpr Problem with_overlap() const noexcept { return set(&nq_problem::flags, flags | NQ_PROBLEM_OVERLAP); }
    [[nodiscard]] constexpr Problem with_device_rows() const noexcept { return set(&nq_problem::flags, flags | NQ_PROBLEM_DEVICE_ROWS); }
    [[nodiscard]] constexpr Problem with_batches() const noexcept { return set(&nq_problem::flags, flags | NQ_PROBLEM_BATCHES); }

private:
    constexpr Problem set(std::uint32_t nq_problem::*field, std::uint32_t value) const noexcept {
        Problem changed = *this;
        changed.*field = value;
        return changed;
    }
};
static_assert(sizeof(Problem) == sizeof(nq_problem), "arrays of them go to C");

struct Tensors : nq_tensors {
    constexpr Tensors() noexcept : nq_tensors(detail::tensors_init) {}
};

struct PrepareOptions : nq_prepare_options {
    constexpr PrepareOptions() noexcept : nq_prepare_options(detail::prepare_options_init) {}
    constexpr explicit PrepareOptions(CUstream_st* of) noexcept : PrepareOptions() { stream = of; }
};

struct ContextOptions : nq_context_options {
    constexpr ContextOptions() noexcept : nq_context_options(detail::context_options_init) {}

    [[nodiscard]] constexpr ContextOptions with(Jit value) const noexcept {
        ContextOptions changed = *this;
        changed.jit = static_cast<std::uint32_t>(value);
        return changed;
    }
    [[nodiscard]] constexpr ContextOptions with(LogLevel value) const noexcept {
        ContextOptions changed = *this;
        changed.log_level = static_cast<std::uint32_t>(value);
        return changed;
    }

    // callback(LogLevel, const char*). One with state is not copied: it must outlive the context. What it throws ends the program.
    template <class Callback>
    [[nodiscard]] ContextOptions on_log(Callback&& callback) const noexcept {
        using Function = void (*)(LogLevel, const char*);
        ContextOptions changed = *this;
        if constexpr (std::is_convertible_v<Callback, Function>) {
            changed.log_payload = reinterpret_cast<void*>(static_cast<Function>(callback));
            changed.log_callback = [](std::uint32_t level, const char* message, void* payload) noexcept {
                reinterpret_cast<Function>(payload)(static_cast<LogLevel>(level), message);
            };
        } else {
            static_assert(std::is_lvalue_reference_v<Callback>, "a callback with state must outlive the context: give it a name");
            changed.log_payload = detail::payload(std::addressof(callback));
            changed.log_callback = [](std::uint32_t level, const char* message, void* payload) noexcept {
                (*static_cast<std::remove_reference_t<Callback>*>(payload))(static_cast<LogLevel>(level), message);
            };
        }
        return changed;
    }

    // callback(const nq_compile_event&), likewise.
    template <class Callback>
    [[nodiscard]] ContextOptions on_compile(Callback&& callback) const noexcept {
        using Function = void (*)(const nq_compile_event&);
        ContextOptions changed = *this;
        if constexpr (std::is_convertible_v<Callback, Function>) {
            changed.compile_payload = reinterpret_cast<void*>(static_cast<Function>(callback));
            changed.compile_callback = [](const nq_compile_event* event, void* payload) noexcept {
                reinterpret_cast<Function>(payload)(*event);
            };
        } else {
            static_assert(std::is_lvalue_reference_v<Callback>, "a callback with state must outlive the context: give it a name");
            changed.compile_payload = detail::payload(std::addressof(callback));
            changed.compile_callback = [](const nq_compile_event* event, void* payload) noexcept {
                (*static_cast<std::remove_reference_t<Callback>*>(payload))(*event);
            };
        }
        return changed;
    }
};

// ---- Queries -----------------------------------------------------------------------------------------------------------

inline Result<void> check(const nq_problem& problem) { return Status(nq_problem_check(&problem)); }
inline Result<void> supported(const nq_problem& problem, const char* arch) { return Status(nq_supported(&problem, arch)); }

inline Result<std::size_t> fp4_bytes(const nq_problem& problem, std::int64_t rows) {
    std::size_t bytes = 0;
    return detail::result(nq_fp4_bytes(&problem, rows, &bytes), bytes);
}
inline Result<std::size_t> scale_bytes(const nq_problem& problem, std::int64_t rows) {
    std::size_t bytes = 0;
    return detail::result(nq_scale_bytes(&problem, rows, &bytes), bytes);
}
inline Result<std::size_t> scale_offset(const nq_problem& problem, std::int64_t row, std::uint32_t block) {
    std::size_t offset = 0;
    return detail::result(nq_scale_offset(&problem, row, block, &offset), offset);
}
inline Result<std::size_t> required_alignment(const nq_problem& problem, const char* tensor) {
    std::size_t alignment = 0;
    return detail::result(nq_required_alignment(&problem, tensor, &alignment), alignment);
}
inline Result<nq_plan> plan(const nq_problem& problem, const char* arch, Variant variant, std::uint32_t threads_per_row = 0) {
    nq_plan found = detail::plan_init;
    return detail::result(nq_plan_query(&problem, arch, static_cast<std::uint32_t>(variant), threads_per_row, &found), found);
}

// ---- Context and kernels -----------------------------------------------------------------------------------------------

// What a callback of Context::precompile may return.
enum class Next { go_on, stop };

// A handle to copy freely; its context owns the kernel. A default one launches nothing and says so.
class Kernel {
public:
    constexpr Kernel() noexcept = default;
    constexpr explicit Kernel(const nq_kernel* kernel) noexcept : kernel_(kernel) {}

    // Not noexcept, for which a compiler would guard the call.
    Status launch(const nq_tensors& tensors, CUstream_st* stream) const { return Status(nq_launch(kernel_, &tensors, stream)); }
    constexpr const nq_kernel* get() const noexcept { return kernel_; }

private:
    const nq_kernel* kernel_ = nullptr;
};
static_assert(sizeof(Kernel) == sizeof(void*) && sizeof(Status) == sizeof(nq_status) && std::is_trivially_copyable_v<Status> &&
                  std::is_trivially_copyable_v<Kernel>,
              "a launch costs what nq_launch costs");

// Owns an nq_context. An empty one, default or moved from, answers NQ_ERR_INVALID_ARGUMENT.
class Context {
public:
    Context() noexcept = default;
    explicit Context(nq_context* owned) noexcept : context_(owned) {}

    static Result<Context> create(const nq_context_options& options = ContextOptions()) {
        nq_context* created = nullptr;
        const nq_status status = nq_context_create(&options, &created);
        if (status != NQ_OK) return Error::last(status);
        return Context(created);
    }

    Result<Kernel> prepare(const nq_problem& problem, const nq_prepare_options& options = PrepareOptions()) {
        nq_kernel* kernel = nullptr;
        const nq_status status = nq_prepare(get(), &problem, &options, &kernel);
        if (status != NQ_OK) return Error::last(status);
        return Kernel(kernel);
    }

    Status run(const nq_problem& problem, const nq_tensors& tensors, CUstream_st* stream) {
        return Status(nq_run(get(), &problem, &tensors, stream));
    }

    // problems: a vector, array, std::span or the like of Problem or nq_problem; archs: of const char*.
    // progress(const nq_precompile_event&) returns nothing or Next. What it throws ends the program.
    template <class Problems, class Archs>
    Result<void> precompile(const Problems& problems, const Archs& archs, std::uint32_t threads = 0) {
        const auto silent = [](const nq_precompile_event&) {};
        return precompile(problems, archs, silent, threads);
    }
    template <class Problems, class Archs, class Progress,
              class = std::enable_if_t<!std::is_arithmetic_v<std::remove_reference_t<Progress>>>>
    Result<void> precompile(const Problems& problems, const Archs& archs, Progress&& progress, std::uint32_t threads = 0) {
        static_assert(sizeof(*std::data(problems)) == sizeof(nq_problem));
        const auto callback = [](const nq_precompile_event* event, void* payload) noexcept -> int {
            auto& call = *static_cast<std::remove_reference_t<Progress>*>(payload);
            if constexpr (std::is_void_v<decltype(call(*event))>) {
                call(*event);
                return 0;
            } else {
                const Next next = call(*event);
                return next == Next::stop ? 1 : 0;
            }
        };
        return Status(nq_precompile(get(), std::data(problems), std::size(problems), std::data(archs), std::size(archs), threads, callback,
                                    detail::payload(std::addressof(progress))));
    }

    Result<void> seal() { return Status(nq_context_seal(get())); }
    Result<nq_counters> counters() const {
        nq_counters counters = detail::counters_init;
        return detail::result(nq_context_counters(get(), &counters), counters);
    }
    const char* cache_dir() const noexcept { return nq_context_cache_dir(get()); }

    explicit operator bool() const noexcept { return context_ != nullptr; }
    nq_context* get() const noexcept { return context_.get(); }

private:
    struct Destroy {
        void operator()(nq_context* context) const noexcept { nq_context_destroy(context); }
    };
    std::unique_ptr<nq_context, Destroy> context_;
};

// ---- The CPU reference -------------------------------------------------------------------------------------------------

inline Result<void> reference(const nq_problem& problem, const nq_tensors& tensors, std::uint32_t threads = 0) {
    return Status(nq_reference(&problem, &tensors, threads));
}

#ifdef __cpp_lib_span

// The memory of a vector, array, span or the like, of whatever element type.
class HostInput {
public:
    constexpr HostInput() noexcept = default;
    template <class Range>
        requires(!std::is_same_v<Range, HostInput> && requires(const Range& range) { std::span(range); })
    HostInput(const Range& range) noexcept : bytes_(std::as_bytes(std::span(range))) {}
    const void* data() const noexcept { return bytes_.empty() ? nullptr : bytes_.data(); }
    std::size_t size() const noexcept { return bytes_.size(); }

private:
    std::span<const std::byte> bytes_;
};

class HostOutput {
public:
    constexpr HostOutput() noexcept = default;
    template <class Range>
        requires(!std::is_same_v<std::remove_cvref_t<Range>, HostOutput> &&
                 requires(Range& range) { std::as_writable_bytes(std::span(range)); })
    HostOutput(Range&& range) noexcept : bytes_(std::as_writable_bytes(std::span(range))) {}
    void* data() const noexcept { return bytes_.empty() ? nullptr : bytes_.data(); }
    std::size_t size() const noexcept { return bytes_.size(); }

private:
    std::span<std::byte> bytes_;
};

// nq_tensors for contiguous rows on the host, with sizes that are checked. Empty is NULL.
struct HostTensors {
    std::int64_t rows = 0;
    float eps = detail::tensors_init.eps;
    std::uint32_t flags = 0;
    HostInput x = {}, weight = {};
    std::optional<float> global_scale = {};
    HostOutput fp4 = {}, scales = {}, scales_linear = {}, residual = {}, residual_out = {}, y_out = {};
    std::span<float> sum_of_squares = {}, rstd = {};
};

inline Result<void> reference(const nq_problem& problem, const HostTensors& host, std::uint32_t threads = 0) {
    const Result<std::size_t> fp4 = fp4_bytes(problem, host.rows);
    if (!fp4) return fp4.error();
    const Result<std::size_t> scales = scale_bytes(problem, host.rows);
    if (!scales) return scales.error();

    const std::size_t rows = static_cast<std::size_t>(host.rows), elements = rows * problem.hidden, row_bytes = elements * 2;
    const std::size_t weight_bytes = problem.hidden * std::size_t{problem.weight_dtype == NQ_FP32 ? 4u : 2u};
    const struct {
        const char* name;
        std::size_t size, needed;
        bool required;  // else absent is for the library to judge
    } arrays[] = {
        {"x", host.x.size(), row_bytes, true},
        {"weight", host.weight.size(), rows != 0 ? weight_bytes : 0, true},
        {"fp4", host.fp4.size(), *fp4, true},
        {"scales", host.scales.size(), *scales, true},
        {"scales_linear", host.scales_linear.size(), elements / problem.block_size, false},
        {"residual", host.residual.size(), row_bytes, false},
        {"residual_out", host.residual_out.size(), row_bytes, false},
        {"y_out", host.y_out.size(), row_bytes, false},
        {"sum_of_squares", host.sum_of_squares.size_bytes(), rows * sizeof(float), false},
        {"rstd", host.rstd.size_bytes(), rows * sizeof(float), false},
    };
    for (const auto& array : arrays) {
        if (array.size >= array.needed || (array.size == 0 && !array.required)) continue;
        return Error{NQ_ERR_INVALID_ARGUMENT,
                     std::string(array.name) + " has " + std::to_string(array.size) + " bytes; accepted: " +
                         std::to_string(array.needed) + " or more",
                     {}};
    }

    Tensors tensors;
    tensors.rows = host.rows;
    tensors.eps = host.eps;
    tensors.flags = host.flags;
    tensors.x = host.x.data();
    tensors.weight = host.weight.data();
    tensors.global_scale = host.global_scale ? &*host.global_scale : nullptr;
    tensors.fp4 = host.fp4.data();
    tensors.scales = host.scales.data();
    tensors.scales_linear = host.scales_linear.data();
    tensors.residual = host.residual.data();
    tensors.residual_out = host.residual_out.data();
    tensors.y_out = host.y_out.data();
    tensors.sum_of_squares = host.sum_of_squares.data();
    tensors.rstd = host.rstd.data();
    return reference(problem, tensors, threads);
}

#endif  // __cpp_lib_span

}  // namespace nqpp

#endif  // NORMQUANT_NORMQUANT_HPP
