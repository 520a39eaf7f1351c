// The extern "C" boundary: NULL checks, struct sizes, and the way from Result to status and text. No logic of its own.
#include "api/last_error.h"
#include "jit/embedded.h"
#include "plan/plan.h"
#include "problem/arch.h"
#include "problem/problem.h"
#include "problem/struct_size.h"
#include "reference/reference.h"
#include "runtime/context.h"
#include "runtime/launch.h"
#include "runtime/precompile.h"
#include "runtime/prepare.h"
#include "runtime/tensors.h"

#include <normquant/geometry.h>
#include <normquant/normquant.h>
#include <normquant/scale_layout.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace nq {

namespace {

thread_local LastError* made = nullptr;
thread_local bool owner_gone = false;

}  // namespace

LastError& last_error() {
    if (owner_gone) {
        // In a destructor of the thread or the program that comes later: this one is never destroyed.
        if (made == nullptr) made = new LastError;
        return *made;
    }
    thread_local struct Owner {
        LastError error;
        ~Owner() {
            made = nullptr;
            owner_gone = true;
        }
    } owner;
    made = &owner.error;
    return owner.error;
}

LastError* last_error_if_any() { return made; }

namespace {

// The handles are opaque: nq_context is a Context, nq_kernel a Kernel.
nq_context* to_c(Context* context) { return reinterpret_cast<nq_context*>(context); }
Context* from_c(nq_context* context) { return reinterpret_cast<Context*>(context); }
const Context* from_c(const nq_context* context) { return reinterpret_cast<const Context*>(context); }
nq_kernel* to_c(const Kernel* kernel) { return reinterpret_cast<nq_kernel*>(const_cast<Kernel*>(kernel)); }
const Kernel* from_c(const nq_kernel* kernel) { return reinterpret_cast<const Kernel*>(kernel); }

Error null_argument(const char* name) {
    return Error{NQ_ERR_INVALID_ARGUMENT, fmt::format("{} is NULL; accepted: a valid pointer", name), {}};
}

Outcome check_rows(std::int64_t rows) {
    if (rows >= 0 && rows <= kMaxRows) return Unit{};
    return Error{NQ_ERR_INVALID_ARGUMENT, fmt::format("rows is {}; accepted: 0 to {}", rows, kMaxRows), {}};
}

HostTensors host_tensors(const Problem& problem, const nq_tensors& t) {
    const Layout layout(problem, t);
    HostTensors host;
    host.rows = t.rows;
    host.eps = t.eps;
    host.keep_padding = (t.flags & NQ_TENSORS_KEEP_PADDING) != 0;
    host.x = static_cast<const unsigned char*>(t.x);
    host.x_stride = layout.x_stride;
    host.batch_rows = t.batch_rows;
    host.x_batch_stride = layout.x_batch_stride;
    host.weight = static_cast<const unsigned char*>(t.weight);
    host.global_scale = t.global_scale;
    host.fp4 = static_cast<unsigned char*>(t.fp4);
    host.fp4_stride = layout.fp4_stride;
    host.scales = static_cast<unsigned char*>(t.scales);
    host.scales_linear = static_cast<unsigned char*>(t.scales_linear);
    host.scales_stride = layout.scales_stride;
    host.residual = static_cast<unsigned char*>(t.residual);
    host.residual_stride = layout.residual_stride;
    host.residual_out = static_cast<unsigned char*>(layout.residual_out);
    host.residual_out_stride = layout.residual_out_stride;
    host.y_out = static_cast<unsigned char*>(t.y_out);
    host.y_out_stride = layout.y_out_stride;
    host.device_rows = t.device_rows;
    host.sum_of_squares = t.sum_of_squares;
    host.rstd = t.rstd;
    return host;
}

// The problem, and a size for which the rows are checked.
template <class SizeOf>
nq_status byte_query(const nq_problem* problem, std::int64_t rows, std::size_t* bytes, SizeOf size_of) {
    return guarded([&]() -> Outcome {
        if (bytes == nullptr) return null_argument("bytes");
        const Result<Problem> checked = problem_from_c(problem);
        if (!checked) return checked.error();
        if (Outcome in_range = check_rows(rows); !in_range) return in_range;
        *bytes = size_of(*checked, rows);
        return Unit{};
    });
}

Result<Arch> arch_from_c(const char* arch) {
    if (arch == nullptr) return null_argument("arch");
    return parse_arch(arch);
}

Outcome check_variant(std::uint32_t variant) {
    if (variant < kVariants) return Unit{};
    return Error{NQ_ERR_INVALID_ARGUMENT, fmt::format("variant is {}; accepted: enum nq_variant, 0 to {}", variant, kVariants - 1), {}};
}

Result<Plan> find_plan(const Problem& problem, const Arch& arch, Variant variant, std::uint32_t threads_per_row) {
    if (threads_per_row != 0) return plan_of(problem, arch, {.threads_per_row = threads_per_row, .variant = variant});
    for (const Plan& plan : plans_for(problem, arch)) {
        if (plan.variant == variant) return plan;
    }
    return Error{
        NQ_ERR_UNSUPPORTED_PROBLEM,
        fmt::format("variant {} does not exist for \"{}\" on {}", name(variant), canonical_text(problem), arch.name()),
        {}};
}

}  // namespace
}  // namespace nq

using namespace nq;

extern "C" {

uint32_t nq_version(void) { return NQ_VERSION; }

const char* nq_kernel_sources_digest(void) { return embedded_digest(); }

const char* nq_status_name(nq_status status) {
    switch (status) {
#define NQ_NAME(status) \
    case status:        \
        return #status;
        NQ_NAME(NQ_OK)
        NQ_NAME(NQ_ERR_INVALID_ARGUMENT)
        NQ_NAME(NQ_ERR_MISALIGNED)
        NQ_NAME(NQ_ERR_STRUCT_SIZE)
        NQ_NAME(NQ_ERR_UNSUPPORTED_PROBLEM)
        NQ_NAME(NQ_ERR_UNSUPPORTED_DEVICE)
        NQ_NAME(NQ_ERR_NVRTC_MISSING)
        NQ_NAME(NQ_ERR_COMPILE_FAILED)
        NQ_NAME(NQ_ERR_NOT_PREPARED)
        NQ_NAME(NQ_ERR_DRIVER_MISSING)
        NQ_NAME(NQ_ERR_DRIVER_TOO_OLD)
        NQ_NAME(NQ_ERR_NO_CONTEXT)
        NQ_NAME(NQ_ERR_DRIVER)
        NQ_NAME(NQ_ERR_CACHE_UNTRUSTED)
        NQ_NAME(NQ_ERR_CACHE_IO)
        NQ_NAME(NQ_ERR_OUT_OF_MEMORY)
        NQ_NAME(NQ_ERR_FORKED)
        NQ_NAME(NQ_ERR_INTERNAL)
#undef NQ_NAME
    }
    return "unknown status";
}

const char* nq_last_error(void) {
    const LastError* last = last_error_if_any();
    return last != nullptr ? last->message.c_str() : "";
}

const char* nq_last_error_detail(void) {
    const LastError* last = last_error_if_any();
    return last != nullptr ? last->detail.c_str() : "";
}

nq_status nq_problem_check(const nq_problem* problem) {
    return guarded([&]() -> Outcome {
        Result<Problem> checked = problem_from_c(problem);
        if (!checked) return std::move(checked).error();
        return Unit{};
    });
}

nq_status nq_fp4_bytes(const nq_problem* problem, int64_t rows, size_t* bytes) {
    return byte_query(problem, rows, bytes, fp4_bytes);
}

nq_status nq_scale_bytes(const nq_problem* problem, int64_t rows, size_t* bytes) {
    return byte_query(problem, rows, bytes, scale_bytes);
}

nq_status nq_scale_offset(const nq_problem* problem, int64_t row, uint32_t block, size_t* offset) {
    return guarded([&]() -> Outcome {
        if (offset == nullptr) return null_argument("offset");
        const Result<Problem> checked = problem_from_c(problem);
        if (!checked) return checked.error();
        if (row < 0 || row >= kMaxRows) {
            return Error{NQ_ERR_INVALID_ARGUMENT, fmt::format("row is {}; accepted: 0 to {}", row, kMaxRows - 1), {}};
        }
        const std::uint32_t blocks = checked->blocks();
        if (block >= blocks) {
            return Error{NQ_ERR_INVALID_ARGUMENT, fmt::format("block is {}; accepted: 0 to {}", block, blocks - 1), {}};
        }
        *offset = normquant::scale_offset(static_cast<std::uint64_t>(row), block, blocks,
                                          checked->swizzled());
        return Unit{};
    });
}

nq_status nq_required_alignment(const nq_problem* problem, const char* tensor, size_t* alignment) {
    return guarded([&]() -> Outcome {
        if (tensor == nullptr) return null_argument("tensor");
        if (alignment == nullptr) return null_argument("alignment");
        const Result<Problem> checked = problem_from_c(problem);
        if (!checked) return checked.error();
        const auto required = required_alignment(*checked, tensor);
        if (!required) {
            return Error{
                NQ_ERR_INVALID_ARGUMENT,
                fmt::format("tensor is \"{}\"; accepted: x, weight, global_scale, fp4, scales, scales_linear, residual, "
                            "residual_out, y_out, device_rows, sum_of_squares, rstd",
                            tensor),
                {}};
        }
        *alignment = *required;
        return Unit{};
    });
}

nq_status nq_supported(const nq_problem* problem, const char* arch) {
    return guarded([&]() -> Outcome {
        const Result<Problem> checked = problem_from_c(problem);
        if (!checked) return checked.error();
        Result<Arch> target = arch_from_c(arch);
        if (!target) return std::move(target).error();
        return Unit{};
    });
}

nq_status nq_plan_query(const nq_problem* problem, const char* arch, uint32_t variant, uint32_t threads_per_row,
                        nq_plan* plan) {
    return guarded([&]() -> Outcome {
        if (plan == nullptr) return null_argument("plan");
        if (Outcome size = check_struct_size("nq_plan", plan, sizeof *plan); !size) return size;
        const Result<Problem> checked = problem_from_c(problem);
        if (!checked) return checked.error();
        const Result<Arch> target = arch_from_c(arch);
        if (!target) return target.error();
        if (Outcome known = check_variant(variant); !known) return known;
        const Result<Plan> found = find_plan(*checked, *target, static_cast<Variant>(variant), threads_per_row);
        if (!found) return found.error();

        const std::uint32_t hidden = checked->hidden, threads = found->threads_per_row;
        plan->tree_threads = normquant::tree_threads(hidden);
        plan->threads_per_row = threads;
        plan->rows_per_block = found->rows_per_block();
        plan->block_threads = found->block_threads;
        plan->granules_per_thread = normquant::granules_per_thread(hidden, threads);
        plan->row_in_registers = normquant::row_in_registers(hidden, threads) ? 1 : 0;
        plan->load_bytes = found->load_bytes;
        plan->blocks_per_row = found->blocks_per_row;
        plan->row_buffers = found->row_buffers;
        return Unit{};
    });
}

nq_status nq_reference(const nq_problem* problem, const nq_tensors* tensors, uint32_t threads) {
    return guarded([&]() -> Outcome {
        const Result<Problem> checked = problem_from_c(problem);
        if (!checked) return checked.error();
        if (Outcome valid = check_tensors(*checked, tensors, Memory::host); !valid) return valid;
        return reference(*checked, host_tensors(*checked, *tensors), threads);
    });
}

nq_status nq_context_create(const nq_context_options* options, nq_context** context) {
    return guarded([&]() -> Outcome {
        if (context == nullptr) return null_argument("context");
        *context = nullptr;
        const Result<Environment> environment = read_environment();
        if (!environment) return environment.error();
        Result<ContextConfig> config = make_config(options, *environment);
        if (!config) return std::move(config).error();
        *context = to_c(new Context(std::move(*config)));
        return Unit{};
    });
}

void nq_context_destroy(nq_context* context) { delete from_c(context); }

nq_status nq_context_counters(const nq_context* context, nq_counters* counters) {
    return guarded([&]() -> Outcome {
        if (context == nullptr) return null_argument("context");
        if (counters == nullptr) return null_argument("counters");
        if (Outcome size = check_struct_size("nq_counters", counters, sizeof *counters); !size) return size;
        const CounterTotals now = from_c(context)->counters();
#define NQ_COPY(name) counters->name = now.name;
        NQ_COUNTERS(NQ_COPY)
#undef NQ_COPY
        return Unit{};
    });
}

nq_status nq_context_seal(nq_context* context) {
    return guarded([&]() -> Outcome {
        if (context == nullptr) return null_argument("context");
        from_c(context)->seal();
        return Unit{};
    });
}

const char* nq_context_cache_dir(const nq_context* context) {
    return context != nullptr ? from_c(context)->cache_dir().c_str() : "";
}

nq_status nq_prepare(nq_context* context, const nq_problem* problem, const nq_prepare_options* options,
                     nq_kernel** kernel) {
    return guarded([&]() -> Outcome {
        if (context == nullptr) return null_argument("context");
        if (kernel == nullptr) return null_argument("kernel");
        *kernel = nullptr;
        const Result<Problem> checked = problem_from_c(problem);
        if (!checked) return checked.error();
        nq_prepare_options chosen = NQ_PREPARE_OPTIONS_INIT;
        if (options != nullptr) {
            if (Outcome size = check_struct_size("nq_prepare_options", options, sizeof *options); !size) return size;
            chosen = *options;
        }
        if (Outcome known = check_variant(chosen.variant); !known) return known;
        if (chosen.threads_per_row == 0 && (chosen.variant != 0 || chosen.cluster_size > 1)) {
            return Error{NQ_ERR_INVALID_ARGUMENT,
                         fmt::format("variant is {} and cluster_size {}, which say more of threads_per_row; that is 0, for which accepted are 0 and 0 or 1",
                                     chosen.variant, chosen.cluster_size), {}};
        }
        const PlanOverride override = {chosen.threads_per_row, static_cast<Variant>(chosen.variant), chosen.cluster_size,
                                       chosen.max_shared_bytes, chosen.max_cluster_size};
        const Result<const Kernel*> prepared = prepare(*from_c(context), *checked, override, chosen.stream);
        if (!prepared) return prepared.error();
        *kernel = to_c(*prepared);
        return Unit{};
    });
}

nq_status nq_precompile(nq_context* context, const nq_problem* problems, size_t problem_count, const char* const* archs,
                        size_t arch_count, uint32_t threads, nq_precompile_callback callback, void* payload) {
    return guarded([&]() -> Outcome {
        if (context == nullptr) return null_argument("context");
        if (problems == nullptr && problem_count != 0) return null_argument("problems");
        if (archs == nullptr && arch_count != 0) return null_argument("archs");
        return precompile(
            *from_c(context), problems, problem_count, {archs, arch_count}, threads,
            [&](const nq_precompile_event& event) { return callback == nullptr || callback(&event, payload) == 0; });
    });
}

nq_status nq_launch(const nq_kernel* kernel, const nq_tensors* tensors, struct CUstream_st* stream) {
    return guarded([&]() -> Outcome {
        if (kernel == nullptr) return null_argument("kernel");
        return launch(*from_c(kernel), tensors, stream);
    });
}

nq_status nq_run(nq_context* context, const nq_problem* problem, const nq_tensors* tensors,
                 struct CUstream_st* stream) {
    return guarded([&]() -> Outcome {
        if (context == nullptr) return null_argument("context");
        const Result<Problem> checked = problem_from_c(problem);
        if (!checked) return checked.error();
        // What no kernel would take need not cost a compile.
        if (Outcome valid = check_tensors(*checked, tensors, Memory::device); !valid) return valid;
        if (tensors->rows == 0) return Unit{};
        const Result<const Kernel*> kernel = prepare_for_run(*from_c(context), *checked, stream);
        if (!kernel) return kernel.error();
        return launch(**kernel, tensors, stream);
    });
}

}  // extern "C"
