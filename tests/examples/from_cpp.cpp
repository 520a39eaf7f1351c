#include <normquant/normquant.hpp>

nqpp::Result<void> norm(nqpp::Context& context, const nqpp::Tensors& tensors, CUstream_st* stream) {
    const auto kernel = context.prepare(nqpp::Problem(7168).with(nqpp::ScaleLayout::swizzled));
    if (!kernel) return kernel.error();
    return kernel->launch(tensors, stream);
}
