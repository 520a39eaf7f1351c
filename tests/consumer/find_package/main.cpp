// quickstart.c in C++: the same rows, and the same text.
#include <normquant/normquant.hpp>

#include <bit>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr int kRows = 4, kHidden = 64;

std::uint16_t to_bf16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

int main() {
    // The header, the library that is loaded and the package are of one version.
    const std::uint32_t version = nq_version();
    const std::string text = std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
                             std::to_string(version % 100);
    if (version != NQ_VERSION || text != PACKAGE_VERSION) {
        std::fprintf(stderr, "library %s, header %d, package %s\n", text.c_str(), NQ_VERSION, PACKAGE_VERSION);
        return 1;
    }

    const nqpp::Problem problem(kHidden);
    std::vector<std::uint16_t> x(kRows * kHidden), weight(kHidden, to_bf16(1));
    for (int i = 0; i < kRows * kHidden; ++i) x[i] = to_bf16(static_cast<float>(i * 37 % 101 - 50) / 16);
    std::vector<unsigned char> fp4(nqpp::fp4_bytes(problem, kRows).value()),
        scales(nqpp::scale_bytes(problem, kRows).value());
    const float global_scale = 448.0f * 6.0f / 4.0f;
    nqpp::reference(
        problem, {.rows = kRows, .x = x, .weight = weight, .global_scale = global_scale, .fp4 = fp4, .scales = scales})
        .value();

    for (int row = 0; row < kRows; ++row) {
        std::printf("row %d: scales", row);
        for (int i = 0; i < kHidden / 16; ++i) std::printf(" %02x", scales[row * (kHidden / 16) + i]);
        std::printf(", first codes");
        for (int i = 0; i < 8; ++i) std::printf(" %02x", fp4[row * (kHidden / 2) + i]);
        std::printf("\n");
    }
}
