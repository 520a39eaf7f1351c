#include "tensor.h"

#include "errors.h"
#include "files.h"
#include "npy.h"
#include "safetensors.h"

#include <fmt/core.h>
#include <unistd.h>

namespace nq::cli {
namespace {

// A colon may be part of a file name: what exists as a whole is a file.
void split_argument(const std::string& argument, std::string& file, std::string& name) {
    file = argument;
    const std::size_t colon = argument.rfind(':');
    if (colon == std::string::npos || ::access(argument.c_str(), F_OK) == 0) return;
    file = argument.substr(0, colon);
    name = argument.substr(colon + 1);
}

Result<Tensor> read_tensor(const std::string& file, std::string& name) {
    const auto mapped = MappedFile::open(file);
    if (!mapped) return mapped.error();
    if (is_npy(mapped->bytes())) {
        if (!name.empty()) return usage_error(fmt::format("a .npy file holds one array: drop ':{}'", name));
        return parse_npy(mapped->bytes());
    }
    const auto entries = parse_safetensors(mapped->bytes());
    if (!entries) {
        return usage_error(fmt::format("it is no .npy file, and no .safetensors file: {}", entries.error().message));
    }
    return read_safetensor(*entries, mapped->bytes(), name);
}

}  // namespace

std::string shape_text(const std::vector<std::uint64_t>& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
    return text + "]";
}

bool checked_bytes(const std::vector<std::uint64_t>& shape, std::uint64_t element_bytes, std::uint64_t& total) {
    total = element_bytes;
    for (const std::uint64_t extent : shape) {
        if (__builtin_mul_overflow(total, extent, &total)) return false;
    }
    return true;
}

Result<TensorSource> load_tensor(const std::string& argument) {
    TensorSource source;
    split_argument(argument, source.file, source.name);
    auto tensor = read_tensor(source.file, source.name);
    if (!tensor) {
        Error error = tensor.error();
        error.message = fmt::format("{}: {}", source.file, error.message);
        return error;
    }
    source.tensor = std::move(*tensor);
    return source;
}

}  // namespace nq::cli
