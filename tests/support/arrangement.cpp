#include "support/arrangement.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace nq::test {

RowImage::RowImage(std::size_t rows, std::size_t row_bytes, std::size_t gap, std::size_t batch_rows, std::size_t batch_gap)
    : rows_(row_bytes == 0 ? 0 : rows),
      row_bytes_(row_bytes),
      stride_(row_bytes + gap),
      batch_rows_(batch_rows),
      batch_stride_(batch_rows * stride_ + batch_gap),
      bytes_(rows_ == 0 ? 0 : offset(rows_ - 1) + row_bytes) {}

std::size_t RowImage::offset(std::size_t row) const {
    if (batch_rows_ == 0) return row * stride_;
    return row / batch_rows_ * batch_stride_ + row % batch_rows_ * stride_;
}

void RowImage::set(unsigned char* image, const Bytes& rows) const {
    if (rows.size() != rows_ * row_bytes_) throw std::logic_error("rows of another size");
    for (std::size_t r = 0; r < rows_; ++r) std::memcpy(image + offset(r), &rows[r * row_bytes_], row_bytes_);
}

Bytes RowImage::get(const unsigned char* image, unsigned char gap, const char* name) const {
    Bytes all(image, image + bytes_), rows;
    rows.reserve(rows_ * row_bytes_);
    for (std::size_t r = 0; r < rows_; ++r) {
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(offset(r)), end = first + static_cast<std::ptrdiff_t>(row_bytes_);
        rows.insert(rows.end(), first, end);
        std::fill(first, end, gap);
    }
    if (std::any_of(all.begin(), all.end(), [&](unsigned char c) { return c != gap; }))
        throw std::runtime_error(std::string("a gap between the rows of ") + name + " was written");
    return rows;
}

}  // namespace nq::test
