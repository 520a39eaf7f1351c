#include "runtime/tensors.h"

#include "problem/struct_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace nq {
namespace {

constexpr std::size_t kVectorBytes = 16;  // x, weight, residual and y_out move in 128-bit pieces
constexpr std::size_t kGranuleCodes = 8;  // bytes of 16 codes
constexpr std::size_t kFloatBytes = sizeof(float);
constexpr std::size_t kElementBytes = 2;  // of x, residual and y_out

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

Outcome check_pointer(const Pointer& p, std::int64_t rows, Memory memory) {
    if (p.need == Need::excluded && p.address != nullptr) {
        return refuse(p.field, fmt::format("{}", p.address), fmt::format("NULL {}", p.excluded_when));
    }
    if (p.need == Need::required && p.address == nullptr && rows > 0) {
        return refuse(p.field, "NULL", memory == Memory::device ? "a device pointer" : "a host pointer");
    }
    if (memory == Memory::device && reinterpret_cast<std::uintptr_t>(p.address) % p.alignment != 0) {
        return refuse(p.field, fmt::format("{}", p.address),
                      fmt::format("addresses that are multiples of {} bytes", p.alignment), NQ_ERR_MISALIGNED);
    }
    return Unit{};
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

Outcome check_stride(const Stride& s, std::int64_t rows, Memory memory) {
    if (s.value == 0) return Unit{};
    if (s.need == Need::excluded) return refuse(s.field, fmt::format("{}", s.value), "0 for a tensor that is NULL");
    const auto step = static_cast<std::int64_t>(memory == Memory::device ? s.alignment / s.unit : 1);
    const auto refused = [&](nq_status status) {
        return refuse(
            s.field, fmt::format("{}", s.value),
            fmt::format("0, or multiples of {} from {} with which all rows are within 2^63 bytes", step, s.width),
            status);
    };
    if (s.value < s.width) return refused(NQ_ERR_INVALID_ARGUMENT);
    if (s.value % step != 0) return refused(NQ_ERR_MISALIGNED);
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(s.value, static_cast<std::int64_t>(s.unit), &bytes) ||
        __builtin_mul_overflow(bytes, std::max<std::int64_t>(rows, 1), &bytes)) {
        return refused(NQ_ERR_INVALID_ARGUMENT);
    }
    return Unit{};
}

// Equal addresses are certain to overlap. Ranges are not compared: rows with a stride may interleave on purpose.
Outcome check_distinct(const nq_tensors& t) {
    const std::pair<const char*, const void*> outputs[] = {
        {"fp4", t.fp4}, {"scales", t.scales}, {"residual", t.residual}, {"y_out", t.y_out}};
    const std::pair<const char*, const void*> inputs[] = {
        {"x", t.x}, {"weight", t.weight}, {"global_scale", t.global_scale}};
    for (auto output = std::begin(outputs); output != std::end(outputs); ++output) {
        if (output->second == nullptr) continue;
        const auto clash = [&](const std::pair<const char*, const void*>& other) {
            return refuse(output->first, fmt::format("{}, the same as nq_tensors.{}", output->second, other.first),
                          "memory that no other tensor uses");
        };
        for (const auto& input : inputs) {
            if (input.second == output->second) return clash(input);
        }
        for (auto other = std::begin(outputs); other != output; ++other) {
            if (other->second == output->second) return clash(*other);
        }
    }
    return Unit{};
}

}  // namespace

std::optional<std::size_t> required_alignment(const Problem& problem, std::string_view tensor) {
    if (tensor == "x" || tensor == "weight" || tensor == "residual" || tensor == "y_out") return kVectorBytes;
    if (tensor == "fp4") return kGranuleCodes;
    if (tensor == "scales") return problem.scale_layout == ScaleLayout::swizzled ? kVectorBytes : 1;
    if (tensor == "global_scale" || tensor == "sum_of_squares" || tensor == "rstd") return kFloatBytes;
    return std::nullopt;
}

Outcome check_tensors(const Problem& problem, const nq_tensors* tensors, Memory memory) {
    if (tensors == nullptr) {
        return Error{NQ_ERR_INVALID_ARGUMENT, "tensors is NULL; accepted: a pointer to an nq_tensors", {}};
    }
    if (Outcome size = check_struct_size("nq_tensors", tensors, sizeof(nq_tensors)); !size) return size;
    const nq_tensors& t = *tensors;

    if ((t.flags & ~NQ_TENSORS_KEEP_PADDING) != 0) {
        return refuse("flags", fmt::format("{:#x}", t.flags), "0, NQ_TENSORS_KEEP_PADDING (0x1)");
    }
    if (t.rows < 0 || t.rows > kMaxRows)
        return refuse("rows", fmt::format("{}", t.rows), fmt::format("0 to {}", kMaxRows));
    if (!std::isfinite(t.eps) || t.eps < 0) return refuse("eps", fmt::format("{}", t.eps), "finite values >= 0");
    if (t.reserved != 0) return refuse("reserved", fmt::format("{}", t.reserved), "0");

    const std::int64_t hidden = problem.hidden;
    const bool adds = problem.op == Op::add_rmsnorm;
    const Need global_scale = problem.scale_format == ScaleFormat::e4m3 ? Need::optional : Need::excluded;
    const Need residual = adds ? Need::required : Need::excluded;
    const Need y_out = problem.y_out ? Need::required : Need::excluded;
    const Need inner = memory == Memory::host ? Need::optional : Need::excluded;
    const std::size_t scales_alignment = problem.scale_layout == ScaleLayout::swizzled ? kVectorBytes : 1;

    const Pointer pointers[] = {
        {"x", t.x, kVectorBytes, Need::required, ""},
        {"weight", t.weight, kVectorBytes, Need::required, ""},
        {"global_scale", t.global_scale, kFloatBytes, global_scale, "with NQ_SCALE_UE8M0"},
        {"fp4", t.fp4, kGranuleCodes, Need::required, ""},
        {"scales", t.scales, scales_alignment, Need::required, ""},
        {"residual", t.residual, kVectorBytes, residual, "without NQ_OP_ADD_RMSNORM"},
        {"y_out", t.y_out, kVectorBytes, y_out, "without NQ_PROBLEM_Y_OUT"},
        {"sum_of_squares", t.sum_of_squares, kFloatBytes, inner, "but for nq_reference"},
        {"rstd", t.rstd, kFloatBytes, inner, "but for nq_reference"},
    };
    for (const Pointer& pointer : pointers) {
        if (Outcome valid = check_pointer(pointer, t.rows, memory); !valid) return valid;
    }
    const Stride strides[] = {
        {"x_stride", t.x_stride, hidden, kElementBytes, kVectorBytes, Need::optional},
        {"fp4_stride", t.fp4_stride, hidden / 2, 1, kGranuleCodes, Need::optional},
        {"residual_stride", t.residual_stride, hidden, kElementBytes, kVectorBytes, residual},
        {"y_out_stride", t.y_out_stride, hidden, kElementBytes, kVectorBytes, y_out},
    };
    for (const Stride& stride : strides) {
        if (Outcome valid = check_stride(stride, t.rows, memory); !valid) return valid;
    }
    if (t.rows == 0) return Unit{};
    return check_distinct(t);
}

}  // namespace nq
