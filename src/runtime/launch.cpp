#include "runtime/launch.h"

#include "runtime/choose.h"
#include "runtime/tensors.h"

#include <normquant/params.h>

#include <fmt/format.h>

namespace nq {
namespace {

bool is_aligned32(const nq_tensors& tensors, std::int64_t x_stride) {
    const auto bits = reinterpret_cast<std::uintptr_t>(tensors.x) | reinterpret_cast<std::uintptr_t>(tensors.weight) |
                      static_cast<std::uintptr_t>(x_stride * 2);
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

    const std::int64_t stride = x_stride(problem, t);
    const bool zero_padding = problem.scale_layout == ScaleLayout::swizzled && (t.flags & NQ_TENSORS_KEEP_PADDING) == 0;
    const Kernel::Loaded& variant =
        kernel.variant(choose_variant(t.rows, kernel.split_blocks(), kernel.device().multiprocessors, is_aligned32(t, stride)));

    normquant::Params params{t.x,    t.weight, t.global_scale, t.fp4, t.scales, stride, fp4_stride(problem, t),
                             t.rows, t.eps,    zero_padding};
    void* arguments[] = {&params};
    const Launch launch(launch_shape(variant.plan, problem, t.rows, zero_padding, static_cast<std::uint32_t>(kernel.device().multiprocessors)),
                        variant.plan, stream);

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
