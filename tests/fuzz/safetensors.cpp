#include "safetensors.h"

#include "fuzz/fuzz.h"

namespace nq::fuzz {
namespace {

std::string file_of(std::string_view header, std::size_t data_bytes) {
    std::string file;
    for (unsigned i = 0; i < 8; ++i) file.push_back(static_cast<char>(std::uint64_t{header.size()} >> (8 * i)));
    return file.append(header).append(data_bytes, 'd');
}

}  // namespace

bool accepts(Bytes input) {
    const auto entries = cli::parse_safetensors(input);
    if (!entries) {
        must(!entries.error().message.empty(), "a refusal says why");
        return false;
    }
    for (const cli::SafetensorsEntry& entry : *entries) {
        must(entry.begin >= 8 && entry.begin <= entry.end && entry.end <= input.size(),
             "a tensor lies inside the file");
        std::string name = entry.name;
        const auto tensor = cli::read_safetensor(*entries, input, name);
        if (!tensor || name.empty()) continue;
        std::uint64_t bytes = 0;
        must(cli::checked_bytes(tensor->shape, tensor->element == cli::Element::fp32 ? 4 : 2, bytes) &&
                 bytes == tensor->bytes.size(),
             "the data is as large as the shape says");
    }
    for (std::string name : {"", "absent"}) {
        const auto tensor = cli::read_safetensor(*entries, input, name);
        must(tensor || !tensor.error().message.empty(), "a refusal says why");
    }
    return true;
}

std::vector<std::string> seeds() {
    return {
        file_of(R"({"x":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]}})", 12),
        file_of(
            R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
            R"("b":{"dtype":"F32","shape":[1,2],"data_offsets":[2,10]},"c":{"dtype":"F4","shape":[4],"data_offsets":[10,12]}})",
            12),
        file_of(
            R"({"e":{"dtype":"F6_E2M3","shape":[0,5],"data_offsets":[0,0]},"u":{"dtype":"NEW","shape":[9],"data_offsets":[0,1]}} )",
            1),
        file_of("{}", 0),
    };
}

}  // namespace nq::fuzz
