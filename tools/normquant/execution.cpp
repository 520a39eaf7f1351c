#include "execution.h"

#include "errors.h"

#include <fmt/core.h>

#include <algorithm>

namespace nq::cli {
namespace {

// Neither all zero nor a likely result: a byte that the kernel does not write shows.
constexpr unsigned char kUnwritten = 0xa5;

Result<Outputs> allocate_outputs(const Call& call) {
    std::size_t fp4 = 0;
    std::size_t scales = 0;
    if (const Outcome sized = check(nq_fp4_bytes(&call.problem, call.rows, &fp4)); !sized) return sized.error();
    if (const Outcome sized = check(nq_scale_bytes(&call.problem, call.rows, &scales)); !sized) return sized.error();
    return Outputs{std::vector<unsigned char>(fp4, kUnwritten), std::vector<unsigned char>(scales, kUnwritten)};
}

nq_tensors describe(const Call& call) {
    nq_tensors tensors = NQ_TENSORS_INIT;
    tensors.rows = call.rows;
    tensors.eps = call.eps;
    return tensors;
}

std::optional<std::string> difference(const char* name, const std::vector<unsigned char>& reference,
                                      const std::vector<unsigned char>& other) {
    if (reference.size() != other.size()) {
        return fmt::format("{}: {} bytes where the reference has {}", name, other.size(), reference.size());
    }
    std::size_t count = 0;
    std::size_t first = 0;
    for (std::size_t i = reference.size(); i-- > 0;) {
        if (reference[i] == other[i]) continue;
        ++count;
        first = i;
    }
    if (count == 0) return std::nullopt;
    return fmt::format("{}: {} of {} bytes differ, the first at {}: 0x{:02x} where the reference has 0x{:02x}", name,
                       count, reference.size(), first, other[first], reference[first]);
}

// Launches follow each other without a pause, so that the time is the device's and not that of the host's calls.
Result<double> seconds_per_launch(Device& device, const nq_kernel* kernel, const nq_tensors& tensors) {
    auto timer = device.timer();
    if (!timer) return timer.error();
    std::vector<double> seconds;
    for (unsigned batch = 0; batch <= kTimedBatches; ++batch) {
        if (const Outcome started = timer->start(); !started) return started.error();
        for (unsigned i = 0; i < kLaunchesPerBatch; ++i) {
            const Outcome launched = check(nq_launch(kernel, &tensors, device.stream()));
            if (!launched) return launched.error();
        }
        const auto elapsed = timer->stop();
        if (!elapsed) return elapsed.error();
        if (batch > 0) seconds.push_back(*elapsed / kLaunchesPerBatch);  // the first warms up
    }
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    return *middle;
}

}  // namespace

Result<Outputs> run_reference(const Call& call, std::vector<float>* rstd) {
    auto outputs = allocate_outputs(call);
    if (!outputs) return outputs;
    nq_tensors tensors = describe(call);
    tensors.x = call.x->data();
    tensors.weight = call.weight->data();
    tensors.global_scale = call.global_scale ? &*call.global_scale : nullptr;
    tensors.fp4 = outputs->fp4.data();
    tensors.scales = outputs->scales.data();
    if (rstd != nullptr) {
        rstd->resize(static_cast<std::size_t>(call.rows));
        tensors.rstd = rstd->data();
    }
    if (const Outcome computed = check(nq_reference(&call.problem, &tensors, 0)); !computed) return computed.error();
    return outputs;
}

Result<GpuOutputs> run_on_gpu(Device& device, nq_context* context, const Call& call, bool timed) {
    auto host = allocate_outputs(call);
    if (!host) return host.error();
    GpuOutputs outputs{std::move(*host), 0};
    if (call.rows == 0) return outputs;

    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.stream = device.stream();
    nq_kernel* kernel = nullptr;
    if (const Outcome prepared = check(nq_prepare(context, &call.problem, &options, &kernel)); !prepared) {
        return prepared.error();
    }

    const auto x = device.upload(*call.x);
    if (!x) return x.error();
    const auto weight = device.upload(*call.weight);
    if (!weight) return weight.error();
    const auto fp4 = device.upload(outputs.fp4);
    if (!fp4) return fp4.error();
    const auto scales = device.upload(outputs.scales);
    if (!scales) return scales.error();
    nq_tensors tensors = describe(call);
    std::optional<DeviceBuffer> global_scale;
    if (call.global_scale) {
        const auto* bytes = reinterpret_cast<const unsigned char*>(&*call.global_scale);
        auto buffer = device.upload({bytes, sizeof(float)});
        if (!buffer) return buffer.error();
        global_scale.emplace(std::move(*buffer));
        tensors.global_scale = static_cast<const float*>(global_scale->pointer());
    }
    tensors.x = x->pointer();
    tensors.weight = weight->pointer();
    tensors.fp4 = fp4->pointer();
    tensors.scales = scales->pointer();

    if (const Outcome launched = check(nq_launch(kernel, &tensors, device.stream())); !launched)
        return launched.error();
    if (const Outcome done = device.synchronize(); !done) return done.error();
    if (const Outcome copied = device.download(*fp4, outputs.fp4); !copied) return copied.error();
    if (const Outcome copied = device.download(*scales, outputs.scales); !copied) return copied.error();
    if (timed) {
        const auto seconds = seconds_per_launch(device, kernel, tensors);
        if (!seconds) return seconds.error();
        outputs.seconds = *seconds;
    }
    return outputs;
}

std::uint64_t traffic_bytes(const Call& call, const Outputs& outputs) {
    return call.x->size() + call.weight->size() + outputs.fp4.size() + outputs.scales.size();
}

std::optional<std::string> difference(const Outputs& reference, const Outputs& other) {
    auto codes = difference("fp4", reference.fp4, other.fp4);
    auto scales = difference("scales", reference.scales, other.scales);
    if (codes && scales) return *codes + "; " + *scales;
    return codes ? codes : scales;
}

}  // namespace nq::cli
