// Prefill from C++: the norms of a layer, prepared once and launched for a whole prompt, with the bytes of the CPU reference.
//
//   prefill sm_90 sm_100f    where there is no GPU, as in a build of an image: compiles their kernels into the cache
//   prefill                  on the GPU: takes them from there, or compiles them
#include "gpu.hpp"

#include <span>

namespace {

constexpr std::int64_t kRows = 1024;  // tokens

// In front of attention, and of the feed-forward part, where what attention adds joins the residual; that one may begin while the kernel
// before it ends.
constexpr auto kAttention = nqpp::Problem(4096).with(nqpp::ScaleLayout::swizzled);
constexpr auto kFeedForward = kAttention.with(nqpp::Op::add_rmsnorm).with_overlap();

int fill_cache(std::span<const char* const> archs) {
    auto context = nqpp::Context::create().value();
    const nqpp::Problem problems[] = {kAttention, kFeedForward};
    context.precompile(problems, archs, [](const nq_precompile_event& event) {
        std::printf("%llu of %llu, %s: %s\n", static_cast<unsigned long long>(event.done), static_cast<unsigned long long>(event.total),
                    event.arch, event.status == NQ_OK ? (event.cached ? "cached" : "compiled") : event.message);
    }).value();
    return 0;
}

int prefill() {
    const Device device;
    const Stream stream(device);
    auto context = nqpp::Context::create().value();
    const auto attention_kernel = context.prepare(kAttention, nqpp::PrepareOptions(stream.get())).value();
    const auto feed_forward_kernel = context.prepare(kFeedForward, nqpp::PrepareOptions(stream.get())).value();

    Norm attention(device, kAttention, kRows, 1), feed_forward(device, kFeedForward, kRows, 4);
    attention.upload(stream);
    feed_forward.upload(stream);
    attention_kernel.launch(attention.tensors(), stream.get()).value();
    auto tensors = feed_forward.tensors();
    tensors.flags = NQ_TENSORS_CONSTANT_WEIGHT;  // the kernel before it does not write this weight
    feed_forward_kernel.launch(tensors, stream.get()).value();

    const bool first = attention.matches_reference(stream, 0), second = feed_forward.matches_reference(stream, 0), right = first && second;
    std::printf("%d rows of %u twice: %s\n", static_cast<int>(kRows), kAttention.hidden, right ? "the bytes of the reference" : "WRONG");
    return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    return run_example([&] { return argc > 1 ? fill_cache({argv + 1, argv + argc}) : prefill(); });
}
