#include "runtime/tensors.h"

#include "problem/struct_size.h"
#include "runtime/overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace nq {
namespace {

constexpr std::size_t kVectorBytes = 16;  // x, weight, residual and y_out move in 128-bit pieces
constexpr std::size_t kGranuleCodes = 8;  // bytes of 16 codes
constexpr std::size_t kFloatBytes = sizeof(float);
constexpr std::size_t kElementBytes = 2;  // of x, residual and y_out
constexpr std::uint32_t kFlags = NQ_TENSORS_KEEP_PADDING | NQ_TENSORS_CONSTANT_WEIGHT;

Error refuse(const char* field, const std::string& value, const std::string& accepted,
             nq_status status = NQ_ERR_INVALID_ARGUMENT) {
    return Error{status, fmt::format("nq_tensors.{} is {}; accepted: {}", field, value, accepted), {}};
}

enum class Need { required, optional, excluded };

struct Pointer {
    const char* field;
    const void* address;
    std::size_t alignment;
    Need need;
    const char* excluded_when;
};

bool fits(const Pointer& p, std::int64_t rows, Memory memory) {
    if (p.address == nullptr) return p.need != Need::required || rows == 0;
    const bool aligned = reinterpret_cast<std::uintptr_t>(p.address) % p.alignment == 0;
    return p.need != Need::excluded && (memory == Memory::host || aligned);
}

Error refusal(const Pointer& p, Memory memory) {
    if (p.address == nullptr) return refuse(p.field, "NULL", memory == Memory::device ? "a device pointer" : "a host pointer");
    if (p.need == Need::excluded) return refuse(p.field, fmt::format("{}", p.address), fmt::format("NULL {}", p.excluded_when));
    return refuse(p.field, fmt::format("{}", p.address), fmt::format("addresses that are multiples of {} bytes", p.alignment),
                  NQ_ERR_MISALIGNED);
}

// A row stride in units of `unit` bytes; 0 stands for `width`.
struct Stride {
    const char* field;
    std::int64_t value;
    std::int64_t width;
    std::size_t unit;
    std::size_t alignment;
    Need need;
};

std::int64_t step(const Stride& s, Memory memory) {
    return static_cast<std::int64_t>(memory == Memory::device ? s.alignment / s.unit : 1);
}

bool fits(const Stride& s, std::int64_t rows, Memory memory) {
    if (s.value == 0) return true;
    std::int64_t bytes = 0;
    return s.need != Need::excluded && s.value >= s.width && s.value % step(s, memory) == 0 &&
           !__builtin_mul_overflow(s.value, static_cast<std::int64_t>(s.unit), &bytes) &&
           !__builtin_mul_overflow(bytes, std::max<std::int64_t>(rows, 1), &bytes);
}

Error refusal(const Stride& s, Memory memory) {
    if (s.need == Need::excluded) return refuse(s.field, fmt::format("{}", s.value), "0 without its tensor");
    return refuse(s.field, fmt::format("{}", s.value),
                  fmt::format("0, or multiples of {} from {} with which all rows are within 2^63 bytes", step(s, memory), s.width),
                  s.value >= s.width && s.value % step(s, memory) != 0 ? NQ_ERR_MISALIGNED : NQ_ERR_INVALID_ARGUMENT);
}

// Rows a batch and the distance between batches, which may be less than a batch takes: [batches][rows] may be a transposed view.
Outcome check_batches(const Problem& problem, const nq_tensors& t, std::int64_t x_stride, Memory memory) {
    if (!problem.batches && t.batch_rows != 0) {
        return refuse("batch_rows", fmt::format("{}", t.batch_rows), "0 without NQ_PROBLEM_BATCHES");
    }
    if (t.batch_rows < 0 || t.batch_rows > kMaxRows) {
        return refuse("batch_rows", fmt::format("{}", t.batch_rows), fmt::format("0 to {}", kMaxRows));
    }
    if (t.x_batch_stride == 0) return Unit{};
    if (t.batch_rows == 0) return refuse("x_batch_stride", fmt::format("{}", t.x_batch_stride), "0 without batch_rows");
    const std::int64_t step = memory == Memory::device ? kVectorBytes / kElementBytes : 1, batches = t.rows / t.batch_rows + 1;
    const auto refused = [&](nq_status status) {
        return refuse("x_batch_stride", fmt::format("{}", t.x_batch_stride),
                      fmt::format("0, or positive multiples of {} with which all batches are within 2^63 bytes", step), status);
    };
    std::int64_t batch_bytes = 0, row_bytes = 0;
    if (t.x_batch_stride < 0 || __builtin_mul_overflow(t.x_batch_stride, batches * std::int64_t{kElementBytes}, &batch_bytes) ||
        __builtin_mul_overflow(x_stride, t.batch_rows * std::int64_t{kElementBytes}, &row_bytes) ||
        __builtin_add_overflow(batch_bytes, row_bytes, &batch_bytes)) {
        return refused(NQ_ERR_INVALID_ARGUMENT);
    }
    if (t.x_batch_stride % step != 0) return refused(NQ_ERR_MISALIGNED);
    return Unit{};
}

struct Tensor {
    const char* field;
    MemoryRows memory;
};

// Those that there are.
class Tensors {
public:
    void add(const char* field, const void* address, std::uint64_t row_bytes, std::uint64_t stride, std::uint64_t rows) {
        if (address != nullptr) all_[count_++] = {field, {reinterpret_cast<std::uintptr_t>(address), row_bytes, stride, rows}};
    }
    const Tensor* begin() const { return all_; }
    const Tensor* end() const { return all_ + count_; }

private:
    Tensor all_[7];  // not initialized: every launch makes two
    std::size_t count_ = 0;
};

// Batches of x that are compared with what is written. One more would hardly be the first that overlaps.
constexpr std::int64_t kComparedBatches = 64;

// The most that may be touched.
Outcome check_overlap(const Problem& problem, const nq_tensors& t, const Layout& layout) {
    const auto rows = static_cast<std::uint64_t>(t.rows);
    const std::uint64_t row = std::uint64_t{problem.hidden} * kElementBytes;
    const std::uint64_t weight = std::uint64_t{problem.hidden} * (problem.weight_dtype == DType::fp32 ? 4 : 2);
    const auto bytes = [](std::int64_t elements) { return static_cast<std::uint64_t>(elements) * kElementBytes; };

    Tensors outputs;
    outputs.add("fp4", t.fp4, problem.hidden / 2, static_cast<std::uint64_t>(layout.fp4_stride), rows);
    if (problem.swizzled()) outputs.add("scales", layout.scales_swizzled, scale_bytes(problem, t.rows), 0, 1);
    outputs.add(problem.swizzled() ? "scales_linear" : "scales", layout.scales_linear, problem.blocks(),
                static_cast<std::uint64_t>(layout.scales_stride), rows);
    outputs.add(t.residual_out != nullptr ? "residual_out" : "residual", layout.residual_out, row, bytes(layout.residual_out_stride), rows);
    outputs.add("y_out", t.y_out, row, bytes(layout.y_out_stride), rows);
    outputs.add("sum_of_squares", t.sum_of_squares, kFloatBytes, kFloatBytes, rows);
    outputs.add("rstd", t.rstd, kFloatBytes, kFloatBytes, rows);

    Tensors inputs;
    const bool in_place = layout.residual_out == t.residual && layout.residual_out_stride == layout.residual_stride;
    if (!in_place) inputs.add("residual", t.residual, row, bytes(layout.residual_stride), rows);
    if (t.batch_rows == 0) inputs.add("x", t.x, row, bytes(layout.x_stride), rows);
    inputs.add("weight", t.weight, weight, 0, 1);
    inputs.add("global_scale", t.global_scale, kFloatBytes, 0, 1);
    inputs.add("device_rows", t.device_rows, sizeof(std::int32_t), 0, 1);
    const std::int64_t batches = t.batch_rows == 0 ? 0 : std::min((t.rows - 1) / t.batch_rows + 1, kComparedBatches);
    const auto x_batch = [&](std::int64_t batch) {
        const auto first = reinterpret_cast<std::uintptr_t>(t.x) + bytes(batch * layout.x_batch_stride);
        const std::int64_t in_batch = std::min(t.batch_rows, t.rows - batch * t.batch_rows);
        return Tensor{"x", {first, row, bytes(layout.x_stride), static_cast<std::uint64_t>(in_batch)}};
    };

    const auto refused = [](const Tensor& output, const Tensor& other) {
        return refuse(output.field,
                      fmt::format("{:#x}, which overlaps nq_tensors.{} at {:#x}", output.memory.first, other.field, other.memory.first),
                      "memory that no other tensor uses");
    };
    for (const Tensor* output = outputs.begin(); output != outputs.end(); ++output) {
        for (const Tensor* other = output + 1; other != outputs.end(); ++other) {
            if (certainly_overlap(output->memory, other->memory)) return refused(*output, *other);
        }
        for (const Tensor& input : inputs) {
            if (certainly_overlap(output->memory, input.memory)) return refused(*output, input);
        }
        for (std::int64_t batch = 0; batch < batches; ++batch) {
            if (const Tensor x = x_batch(batch); certainly_overlap(output->memory, x.memory)) return refused(*output, x);
        }
    }
    return Unit{};
}

}  // namespace

std::optional<std::size_t> required_alignment(const Problem& problem, std::string_view tensor) {
    for (const char* rows : {"x", "weight", "residual", "residual_out", "y_out"}) {
        if (tensor == rows) return kVectorBytes;
    }
    if (tensor == "fp4") return kGranuleCodes;
    if (tensor == "scales") return problem.swizzled() ? kVectorBytes : 1;
    if (tensor == "scales_linear") return 1;
    for (const char* word : {"global_scale", "device_rows", "sum_of_squares", "rstd"}) {
        if (tensor == word) return kFloatBytes;
    }
    return std::nullopt;
}

Outcome check_tensors(const Problem& problem, const nq_tensors* tensors, Memory memory) {
    if (tensors == nullptr) {
        return Error{NQ_ERR_INVALID_ARGUMENT, "tensors is NULL; accepted: a pointer to an nq_tensors", {}};
    }
    if (Outcome size = check_struct_size("nq_tensors", tensors, sizeof(nq_tensors)); !size) return size;
    const nq_tensors& t = *tensors;

    if ((t.flags & ~kFlags) != 0) {
        return refuse("flags", fmt::format("{:#x}", t.flags),
                      "any of NQ_TENSORS_KEEP_PADDING (0x1), NQ_TENSORS_CONSTANT_WEIGHT (0x2)");
    }
    if (t.rows < 0 || t.rows > kMaxRows)
        return refuse("rows", fmt::format("{}", t.rows), fmt::format("0 to {}", kMaxRows));
    if (!std::isfinite(t.eps) || t.eps < 0) return refuse("eps", fmt::format("{}", t.eps), "finite values >= 0");
    if (t.reserved != 0) return refuse("reserved", fmt::format("{}", t.reserved), "0");

    const std::int64_t hidden = problem.hidden;
    const Need global_scale = problem.scale_format == ScaleFormat::e4m3 ? Need::optional : Need::excluded;
    const Need residual = problem.adds() ? Need::required : Need::excluded;
    const Need residual_out = problem.adds() ? Need::optional : Need::excluded;
    const Need residual_out_stride = t.residual_out != nullptr ? Need::optional : Need::excluded;
    const Need scales_linear = problem.scale_layout == ScaleLayout::both ? Need::required : Need::excluded;
    const Need y_out = problem.y_out ? Need::required : Need::excluded;
    const Need device_rows = problem.device_rows ? Need::optional : Need::excluded;
    const Need inner = memory == Memory::host ? Need::optional : Need::excluded;
    const std::size_t scales_alignment = problem.swizzled() ? kVectorBytes : 1;

    std::optional<Error> refused;
    const auto check = [&](const auto& value) {
        if (fits(value, t.rows, memory)) return true;
        refused = refusal(value, memory);
        return false;
    };
    // No list, which every launch would fill anew.
    const bool fine =
        check(Pointer{"x", t.x, kVectorBytes, Need::required, ""}) &&
        check(Pointer{"weight", t.weight, kVectorBytes, Need::required, ""}) &&
        check(Pointer{"global_scale", t.global_scale, kFloatBytes, global_scale, "with NQ_SCALE_UE8M0"}) &&
        check(Pointer{"fp4", t.fp4, kGranuleCodes, Need::required, ""}) &&
        check(Pointer{"scales", t.scales, scales_alignment, Need::required, ""}) &&
        check(Pointer{"scales_linear", t.scales_linear, 1, scales_linear, "without NQ_LAYOUT_BOTH"}) &&
        check(Pointer{"residual", t.residual, kVectorBytes, residual, "without NQ_OP_ADD_RMSNORM"}) &&
        check(Pointer{"residual_out", t.residual_out, kVectorBytes, residual_out, "without NQ_OP_ADD_RMSNORM"}) &&
        check(Pointer{"y_out", t.y_out, kVectorBytes, y_out, "without NQ_PROBLEM_Y_OUT"}) &&
        check(Pointer{"device_rows", t.device_rows, sizeof(std::int32_t), device_rows, "without NQ_PROBLEM_DEVICE_ROWS"}) &&
        check(Pointer{"sum_of_squares", t.sum_of_squares, kFloatBytes, inner, "but for nq_reference"}) &&
        check(Pointer{"rstd", t.rstd, kFloatBytes, inner, "but for nq_reference"}) &&
        check(Stride{"x_stride", t.x_stride, hidden, kElementBytes, kVectorBytes, Need::optional}) &&
        check(Stride{"fp4_stride", t.fp4_stride, hidden / 2, 1, kGranuleCodes, Need::optional}) &&
        check(Stride{"residual_stride", t.residual_stride, hidden, kElementBytes, kVectorBytes, residual}) &&
        check(Stride{"residual_out_stride", t.residual_out_stride, hidden, kElementBytes, kVectorBytes, residual_out_stride}) &&
        check(Stride{"y_out_stride", t.y_out_stride, hidden, kElementBytes, kVectorBytes, y_out}) &&
        check(Stride{"scales_stride", t.scales_stride, problem.blocks(), 1, 1, problem.linear() ? Need::optional : Need::excluded});
    if (!fine) return *std::move(refused);
    const Layout layout(problem, t);
    if (Outcome valid = check_batches(problem, t, layout.x_stride, memory); !valid) return valid;
    if (t.rows == 0) return Unit{};
    return check_overlap(problem, t, layout);
}

}  // namespace nq
