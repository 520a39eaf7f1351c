// Whether two tensors share bytes: rows of memory, compared exactly where that is cheap.
#pragma once

#include <cstdint>

namespace nq {

// Not empty: rows > 0, row_bytes > 0, stride >= row_bytes where there is more than one row. Within the address space.
struct MemoryRows {
    std::uintptr_t first;
    std::uint64_t row_bytes, stride, rows;

    constexpr std::uintptr_t end() const { return first + (rows - 1) * stride + row_bytes; }
    constexpr bool dense() const { return rows == 1 || stride == row_bytes; }
};

// The bytes [first, end) and rows: the first row that ends behind `first` decides.
constexpr bool meet(std::uintptr_t first, std::uintptr_t end, const MemoryRows& rows) {
    const std::uint64_t row = first < rows.first + rows.row_bytes ? 0 : (first - rows.first - rows.row_bytes) / rows.stride + 1;
    return row < rows.rows && rows.first + row * rows.stride < end;
}

// Never true for rows that do not; for two tensors whose rows lie at different distances it is false unless they begin at one address.
constexpr bool certainly_overlap(const MemoryRows& a, const MemoryRows& b) {
    if (a.first >= b.end() || b.first >= a.end()) return false;
    if (a.first == b.first) return true;
    if (a.dense()) return meet(a.first, a.end(), b);
    if (b.dense()) return meet(b.first, b.end(), a);
    if (a.stride != b.stride) return false;
    // The first row of the later one and the two rows of the other around it.
    const MemoryRows &early = a.first < b.first ? a : b, &late = a.first < b.first ? b : a;
    const std::uint64_t row = (late.first - early.first) / early.stride, behind = (late.first - early.first) % early.stride;
    return behind < early.row_bytes || (behind + late.row_bytes > early.stride && row + 1 < early.rows);
}

}  // namespace nq
