#include "gpu/device_tensors.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace nq::test {
namespace {

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

template <class T>
Bytes bytes_of(const T& value) {
    Bytes bytes(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
}

void require(bool condition, const char* otherwise) {
    if (!condition) throw std::runtime_error(otherwise);
}

std::string difference(const char* name, const Bytes& got, const Bytes& expected) {
    if (got.size() != expected.size()) return std::string(name) + " has another size";
    const auto at = std::mismatch(got.begin(), got.end(), expected.begin()).first;
    return at == got.end() ? "" : std::string(name) + " differs, first at byte " + std::to_string(at - got.begin());
}

}  // namespace

DeviceTensors::DeviceTensors(const Gpu& gpu, const Problem& problem, const Inputs& inputs, const Arrangement& arrangement, std::size_t offset)
    : gpu_(gpu),
      problem_(problem),
      inputs_(inputs),
      arrangement_(arrangement),
      x_(rows(x_image(inputs.rows), offset)),
      residual_(rows({size(inputs.rows), problem.adds() ? 2 * std::size_t{problem.hidden} : 0, 2 * size(arrangement.residual_gap)})),
      residual_out_(rows({size(inputs.rows), arrangement.separate_residual ? 2 * std::size_t{problem.hidden} : 0, 2 * size(arrangement.residual_gap) + 16})),
      y_out_(rows({size(inputs.rows), problem.y_out ? 2 * std::size_t{problem.hidden} : 0, 2 * size(arrangement.y_gap)})),
      fp4_(rows({size(inputs.rows), problem.hidden / 2, size(arrangement.fp4_gap)})),
      scales_linear_(rows({size(inputs.rows), problem.linear() ? problem.blocks() : 0, size(arrangement.scales_gap)})),
      scales_swizzled_(rows({1, problem.swizzled() ? scale_bytes(problem, inputs.rows) : 0, 0})),
      weight_(rows({1, inputs.weight.size(), 0})),
      global_scale_(rows({1, 4, 0})),
      device_rows_(rows({1, 4, 0})) {
    write();
}

DeviceTensors::Rows DeviceTensors::rows(const RowImage& image, std::size_t offset) const {
    return {image, DeviceBuffer(gpu_, image.bytes(), offset)};
}

RowImage DeviceTensors::x_image(std::int64_t rows) const {
    const std::size_t row = 2 * std::size_t{problem_.hidden};
    return {size(rows), row, 2 * size(arrangement_.x_gap), size(arrangement_.batch_rows), 2 * size(arrangement_.batch_gap)};
}

void DeviceTensors::Rows::set(const Bytes& rows) const {
    Bytes bytes(image.bytes(), kGap);
    image.set(bytes.data(), rows);
    buffer.upload(bytes);
}

Bytes DeviceTensors::Rows::get(unsigned char gap, const char* name) const { return image.get(buffer.download().data(), gap, name); }

void DeviceTensors::write(std::optional<std::int32_t> device_rows) const {
    written_rows_ = std::clamp<std::int64_t>(device_rows.value_or(inputs_.rows), 0, inputs_.rows);
    const RowImage live = x_image(written_rows_);
    Bytes x(live.bytes(), kGap);
    live.set(x.data(), Bytes(inputs_.x.begin(), inputs_.x.begin() + static_cast<std::ptrdiff_t>(live.bytes_without_gaps())));
    x_.buffer.upload(x);
    weight_.set(inputs_.weight);
    residual_.set(inputs_.residual);
    if (inputs_.global_scale) global_scale_.set(bytes_of(*inputs_.global_scale));
    if (device_rows) device_rows_.set(bytes_of(*device_rows));
    for (const Rows* output : {&residual_out_, &y_out_, &fp4_, &scales_linear_, &scales_swizzled_}) output->buffer.fill(kGarbage);
    // The legacy stream, of which other streams may know nothing.
    gpu_.check(gpu_.driver().cuStreamSynchronize(nullptr), "uploads");
}

nq_tensors DeviceTensors::tensors() const {
    nq_tensors t = NQ_TENSORS_INIT;
    t.flags = (arrangement_.keep_padding ? NQ_TENSORS_KEEP_PADDING : 0u) | (arrangement_.constant_weight ? NQ_TENSORS_CONSTANT_WEIGHT : 0u);
    t.rows = inputs_.rows;
    t.eps = inputs_.eps;
    t.x = x_.buffer.data();
    t.x_stride = x_.image.stride() / 2;
    t.batch_rows = arrangement_.batch_rows;
    if (t.batch_rows != 0) t.x_batch_stride = x_.image.batch_stride() / 2;
    t.weight = weight_.buffer.data();
    t.global_scale = inputs_.global_scale ? static_cast<const float*>(global_scale_.buffer.data()) : nullptr;
    t.device_rows = inputs_.device_rows ? static_cast<const std::int32_t*>(device_rows_.buffer.data()) : nullptr;
    t.fp4 = fp4_.buffer.data();
    t.fp4_stride = fp4_.image.stride();
    t.scales = (problem_.swizzled() ? scales_swizzled_ : scales_linear_).buffer.data();
    if (problem_.linear()) t.scales_stride = scales_linear_.image.stride();
    if (problem_.scale_layout == ScaleLayout::both) t.scales_linear = scales_linear_.buffer.data();
    if (problem_.adds()) t.residual = residual_.buffer.data(), t.residual_stride = residual_.image.stride() / 2;
    if (arrangement_.separate_residual) t.residual_out = residual_out_.buffer.data(), t.residual_out_stride = residual_out_.image.stride() / 2;
    if (problem_.y_out) t.y_out = y_out_.buffer.data(), t.y_out_stride = y_out_.image.stride() / 2;
    return t;
}

Outputs DeviceTensors::outputs() const {
    for (const Rows* tensor : {&x_, &residual_, &residual_out_, &y_out_, &fp4_, &scales_linear_, &scales_swizzled_, &weight_})
        require(tensor->buffer.canaries_intact(), "memory beside a tensor was written");
    const RowImage live = x_image(written_rows_);
    const Bytes x = live.get(x_.buffer.download(0, live.bytes()).data(), kGap, "x");
    require(std::equal(x.begin(), x.end(), inputs_.x.begin()), "x was written");
    require(weight_.get(kGap, "weight") == inputs_.weight, "the weight was written");
    if (arrangement_.separate_residual) require(residual_.get(kGap, "residual") == inputs_.residual, "the residual was written");
    Outputs out;
    out.fp4 = fp4_.get(kGarbage, "fp4");
    out.scales = (problem_.swizzled() ? scales_swizzled_ : scales_linear_).get(kGarbage, "scales");
    if (problem_.scale_layout == ScaleLayout::both) out.scales_linear = scales_linear_.get(kGarbage, "scales_linear");
    if (problem_.adds()) out.residual = arrangement_.separate_residual ? residual_out_.get(kGarbage, "residual_out") : residual_.get(kGap, "residual");
    if (problem_.y_out) out.y_out = y_out_.get(kGarbage, "y_out");
    return out;
}

std::string difference(const Outputs& got, const Outputs& expected) {
    for (const auto& [name, output] : {std::pair("fp4", &Outputs::fp4), std::pair("scales", &Outputs::scales),
                                       std::pair("scales_linear", &Outputs::scales_linear), std::pair("residual", &Outputs::residual),
                                       std::pair("y_out", &Outputs::y_out)}) {
        if (std::string text = difference(name, got.*output, expected.*output); !text.empty()) return text;
    }
    return "";
}

}  // namespace nq::test
