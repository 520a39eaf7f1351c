#include "runtime/launch.h"

#include "runtime/choose.h"
#include "runtime/tensors.h"

#include <normquant/params.h>

#include <fmt/format.h>

namespace nq {
namespace {

bool is_aligned32(const nq_tensors& tensors, const Layout& layout) {
    const auto bits = reinterpret_cast<std::uintptr_t>(tensors.x) | reinterpret_cast<std::uintptr_t>(tensors.weight) |
                      static_cast<std::uintptr_t>(layout.x_stride * 2) | static_cast<std::uintptr_t>(layout.x_batch_stride * 2);
    return bits % 32 == 0;
}

}  // namespace

Outcome launch(const Kernel& kernel, const nq_tensors* tensors, CUstream stream) {
    const Problem& problem = kernel.problem();
    if (Outcome checked = check_tensors(problem, tensors, Memory::device); !checked) return checked;
    const nq_tensors& t = *tensors;
    if (const ForkMark& owner = kernel.driver().loaded_by; !owner.in_process()) {
        return Error{
            NQ_ERR_FORKED,
            fmt::format("the kernel was prepared in process {}; a forked child cannot launch it", owner.process()),
            {}};
    }
    if (t.rows == 0) return Unit{};

    const Layout layout(problem, t);
    const bool zero_padding = problem.swizzled() && (t.flags & NQ_TENSORS_KEEP_PADDING) == 0;
    const Kernel::Loaded& variant = kernel.variant(choose_variant(t.rows, kernel.row_limits(), is_aligned32(t, layout)));

    normquant::Params params{};
    params.x = t.x;
    params.weight = t.weight;
    params.global_scale = t.global_scale;
    params.device_rows = t.device_rows;
    params.fp4 = t.fp4;
    params.scale_swizzled = layout.scales_swizzled;
    params.scale_linear = layout.scales_linear;
    params.residual = t.residual;
    params.residual_out = layout.residual_out;
    params.y_out = t.y_out;
    params.x_stride = layout.x_stride;
    params.x_batch_stride = layout.x_batch_stride;
    params.residual_stride = layout.residual_stride;
    params.residual_out_stride = layout.residual_out_stride;
    params.y_out_stride = layout.y_out_stride;
    params.fp4_stride = layout.fp4_stride;
    params.scale_stride = layout.scales_stride;
    params.rows = static_cast<std::uint32_t>(t.rows);
    params.batch_rows = static_cast<std::uint32_t>(t.batch_rows);
    params.eps = t.eps;
    params.zero_padding = zero_padding;
    params.constant_weight = (t.flags & NQ_TENSORS_CONSTANT_WEIGHT) != 0;
    void* arguments[] = {&params};
    const LaunchShape shape = launch_shape(variant.plan, problem, {t.rows, t.device_rows != nullptr, zero_padding},
                                           static_cast<std::uint32_t>(kernel.device().multiprocessors));
    const Launch launch(shape, variant.plan, stream, kernel.overlaps());

    // The driver documents this cast: a CUkernel stands for its function in the context of the launch.
    const CUresult result =
        kernel.driver().cuLaunchKernelEx(launch.config(), reinterpret_cast<CUfunction>(variant.kernel), arguments, nullptr);
    if (result != CUDA_SUCCESS) {
        return kernel.driver().error(
            result, fmt::format("cuLaunchKernelEx of \"{}\", {}, {} rows, grid {} x {}, block {}", canonical_text(problem),
                                canonical_text(variant.plan), t.rows, launch.config()->gridDimX, launch.config()->gridDimY,
                                launch.config()->blockDimX));
    }
    return Unit{};
}

}  // namespace nq
