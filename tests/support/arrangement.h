// How the tensors of a call lie in memory, and images of them for tests that look at every byte.
#pragma once

#include "support/numerics.h"

#include <cstddef>
#include <cstdint>

namespace nq::test {

struct Arrangement {
    // Between the rows' ends and the next rows: elements, a multiple of 8; bytes of FP4, a multiple of 8, and of linear scales.
    std::int64_t x_gap = 0, residual_gap = 0, y_gap = 0, fp4_gap = 0, scales_gap = 0;
    std::int64_t batch_rows = 0, batch_gap = 0;  // x in batches, elements between them
    bool separate_residual = false;              // the sum goes elsewhere
    bool keep_padding = false;
    bool constant_weight = false;
};

// Rows with gaps between them, and between batches of them; none behind the last.
class RowImage {
public:
    RowImage(std::size_t rows, std::size_t row_bytes, std::size_t gap, std::size_t batch_rows = 0, std::size_t batch_gap = 0);

    std::size_t bytes() const { return bytes_; }
    std::size_t bytes_without_gaps() const { return rows_ * row_bytes_; }
    std::int64_t stride() const { return static_cast<std::int64_t>(stride_); }
    std::int64_t batch_stride() const { return static_cast<std::int64_t>(batch_stride_); }
    // Leaves the gaps alone.
    void set(unsigned char* image, const Bytes& rows) const;
    // Throws std::runtime_error when a byte of a gap is not `gap`.
    Bytes get(const unsigned char* image, unsigned char gap, const char* name) const;

private:
    std::size_t offset(std::size_t row) const;
    std::size_t rows_, row_bytes_, stride_, batch_rows_, batch_stride_, bytes_;
};

}  // namespace nq::test
