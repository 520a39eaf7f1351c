#include "runtime/tensors.h"

#include "problem/struct_size.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <utility>

namespace nq {
namespace {

constexpr std::size_t kVectorBytes = 16;  // x, weight, residual and y_out move in 128-bit pieces
constexpr std::size_t kGranuleCodes = 8;  // bytes of 16 codes
constexpr std::size_t kFloatBytes = sizeof(float);

Error refuse(const char* field, const std::string& value, const std::string& accepted,
             nq_status status = NQ_ERR_INVALID_ARGUMENT) {
    return Error{status, fmt::format("nq_tensors.{} is {}; accepted: {}", field, value, accepted), {}};
}

enum class Need { required, optional, excluded };

struct Checker {
    std::int64_t rows;
    Memory memory;

    // `excluded_by` says why a tensor that the problem has no use for must not be there.
    Outcome pointer(const char* field, const void* address, std::size_t alignment, Need need,
                    const char* excluded_by) const {
        if (need == Need::excluded && address != nullptr) {
            return refuse(field, fmt::format("{}", address), fmt::format("NULL {}", excluded_by));
        }
        if (need == Need::required && address == nullptr && rows > 0) {
            return refuse(field, "NULL", memory == Memory::device ? "a device pointer" : "a host pointer");
        }
        if (memory == Memory::device && reinterpret_cast<std::uintptr_t>(address) % alignment != 0) {
            return refuse(field, fmt::format("{}", address),
                          fmt::format("addresses that are multiples of {} bytes", alignment), NQ_ERR_MISALIGNED);
        }
        return Unit{};
    }

    // A row stride in units of `unit` bytes; 0 stands for `width`.
    Outcome stride(const char* field, std::int64_t stride, std::int64_t width, std::size_t unit, std::size_t alignment,
                   bool excluded) const {
        if (stride == 0) return Unit{};
        if (excluded) return refuse(field, fmt::format("{}", stride), "0 for a tensor that is NULL");
        const auto step = static_cast<std::int64_t>(alignment / unit);
        const auto accepted = [&] {
            return fmt::format("0, or multiples of {} {} from {} whose last row is within 2^63 bytes", step,
                               unit == 1 ? "bytes" : "elements", width);
        };
        if (stride < width) return refuse(field, fmt::format("{}", stride), accepted());
        if (memory == Memory::device && stride % step != 0) {
            return refuse(field, fmt::format("{}", stride), accepted(), NQ_ERR_MISALIGNED);
        }
        std::int64_t bytes = 0;
        if (__builtin_mul_overflow(stride, static_cast<std::int64_t>(unit), &bytes) ||
            __builtin_mul_overflow(bytes, rows > 0 ? rows : 1, &bytes)) {
            return refuse(field, fmt::format("{}", stride), accepted());
        }
        return Unit{};
    }
};

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

    const Checker check{t.rows, memory};
    const std::int64_t hidden = problem.hidden;
    constexpr std::size_t kElement = 2;  // x, residual and y_out are 16-bit
    const bool has_residual = problem.op == Op::add_rmsnorm, is_host = memory == Memory::host;
    const std::size_t scales_alignment = problem.scale_layout == ScaleLayout::swizzled ? kVectorBytes : 1;
    const Need global_scale = problem.scale_format == ScaleFormat::e4m3 ? Need::optional : Need::excluded;
    const Need residual = has_residual ? Need::required : Need::excluded;
    const Need y_out = problem.y_out ? Need::required : Need::excluded;
    const Need inner = is_host ? Need::optional : Need::excluded;

    Outcome outcome = Unit{};
    const auto all_ok = [&](Outcome next) {
        outcome = std::move(next);
        return outcome.ok();
    };
    all_ok(check.pointer("x", t.x, kVectorBytes, Need::required, "")) &&
        all_ok(check.stride("x_stride", t.x_stride, hidden, kElement, kVectorBytes, false)) &&
        all_ok(check.pointer("weight", t.weight, kVectorBytes, Need::required, "")) &&
        all_ok(check.pointer("global_scale", t.global_scale, kFloatBytes, global_scale, "with NQ_SCALE_UE8M0")) &&
        all_ok(check.pointer("fp4", t.fp4, kGranuleCodes, Need::required, "")) &&
        all_ok(check.stride("fp4_stride", t.fp4_stride, hidden / 2, 1, kGranuleCodes, false)) &&
        all_ok(check.pointer("scales", t.scales, scales_alignment, Need::required, "")) &&
        all_ok(check.pointer("residual", t.residual, kVectorBytes, residual, "without NQ_OP_ADD_RMSNORM")) &&
        all_ok(check.stride("residual_stride", t.residual_stride, hidden, kElement, kVectorBytes, !has_residual)) &&
        all_ok(check.pointer("y_out", t.y_out, kVectorBytes, y_out, "without NQ_PROBLEM_Y_OUT")) &&
        all_ok(check.stride("y_out_stride", t.y_out_stride, hidden, kElement, kVectorBytes, !problem.y_out)) &&
        all_ok(check.pointer("sum_of_squares", t.sum_of_squares, kFloatBytes, inner, "but for nq_reference")) &&
        all_ok(check.pointer("rstd", t.rstd, kFloatBytes, inner, "but for nq_reference")) &&
        (t.rows == 0 || all_ok(check_distinct(t)));
    return outcome;
}

}  // namespace nq
