#include "file_samples.h"

#include "reference/numerics.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

namespace nq::test {

Blob npy(const std::string& dictionary, const Blob& data, unsigned char version) {
    Blob file = {0x93, 'N', 'U', 'M', 'P', 'Y', version, 0};
    for (unsigned i = 0; i < (version == 1 ? 2u : 4u); ++i) {
        file.push_back(static_cast<unsigned char>(dictionary.size() >> (8 * i)));
    }
    file.insert(file.end(), dictionary.begin(), dictionary.end());
    file.insert(file.end(), data.begin(), data.end());
    return file;
}

std::string npy_dictionary(const std::string& descr, const std::string& shape) {
    return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }  \n";
}

Blob safetensors(const std::string& header, const Blob& data) {
    Blob file;
    for (unsigned i = 0; i < 8; ++i)
        file.push_back(static_cast<unsigned char>(std::uint64_t{header.size()} >> (8 * i)));
    file.insert(file.end(), header.begin(), header.end());
    file.insert(file.end(), data.begin(), data.end());
    return file;
}

Blob values(cli::Element element, std::size_t count, unsigned seed) {
    std::minstd_rand random(seed + 1);
    Blob bytes;
    for (std::size_t i = 0; i < count; ++i) {
        const float value = static_cast<float>(static_cast<int>(random() % 8192) - 4096) / 1024.0f;
        unsigned char raw[4];
        std::size_t width = 4;
        if (element == cli::Element::fp32) {
            std::memcpy(raw, &value, 4);
        } else {
            const std::uint16_t half =
                element == cli::Element::fp16 ? numerics::to_fp16(value) : numerics::to_bf16(value);
            std::memcpy(raw, &half, 2);
            width = 2;
        }
        bytes.insert(bytes.end(), raw, raw + width);
    }
    return bytes;
}

void save(const std::string& path, const Blob& bytes) {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

Blob read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path);
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace nq::test
