// Input files as read-only views, and output files that appear whole or not at all.
#pragma once

#include "support/result.h"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace nq::cli {

using Bytes = std::span<const unsigned char>;

class MappedFile {
public:
    // Errors leave out the path: the caller names it.
    static Result<MappedFile> open(const std::string& path);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&&) = delete;
    ~MappedFile();

    Bytes bytes() const { return {data_, size_}; }

private:
    MappedFile(const unsigned char* data, std::size_t size) : data_(data), size_(size) {}
    const unsigned char* data_ = nullptr;
    std::size_t size_ = 0;
};

// Can it be created, or written to, as far as one can tell without doing so?
Outcome check_output_dir(const std::string& path);
// Creates the directory and its parents where they are missing.
Outcome create_output_dir(const std::string& path);

// Writes beside the target, then renames over it: a reader, or a crash, finds the old file or the new one.
Outcome write_file(const std::string& path, std::string_view head, Bytes body);

}  // namespace nq::cli
