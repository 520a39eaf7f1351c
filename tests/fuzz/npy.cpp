#include "npy.h"

#include "fuzz/fuzz.h"

#include <fmt/core.h>

namespace nq::fuzz {
namespace {

std::string file_of(std::string_view descr, std::string_view shape, std::size_t data_bytes, char version) {
    const std::string dictionary =
        fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}\n", descr, shape);
    std::string file = {'\x93', 'N', 'U', 'M', 'P', 'Y', version, '\0', static_cast<char>(dictionary.size()), '\0'};
    if (version > 1) file.append(2, '\0');
    return file + dictionary + std::string(data_bytes, 'd');
}

}  // namespace

bool accepts(Bytes input) {
    const auto tensor = cli::parse_npy(input);
    if (!tensor) {
        must(!tensor.error().message.empty(), "a refusal says why");
        return false;
    }
    must(cli::is_npy(input), "what is parsed has the magic");
    std::uint64_t bytes = 0;
    must(cli::checked_bytes(tensor->shape, tensor->element == cli::Element::fp32 ? 4 : 2, bytes) &&
             bytes == tensor->bytes.size(),
         "the data is as large as the shape says");
    must(text_of(input).ends_with(text_of(tensor->bytes)), "the data is the end of the file");
    return true;
}

std::vector<std::string> seeds() {
    return {file_of("<f2", "(2, 3)", 12, 1), file_of("<f4", "(4,)", 16, 2), file_of("<u2", "()", 2, 3),
            file_of("|V2", "(0, 7)", 0, 1)};
}

}  // namespace nq::fuzz
