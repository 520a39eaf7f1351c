#include "support/random_inputs.h"

#include <cmath>
#include <limits>

namespace nq::test {
namespace {

// splitmix64: the same numbers on every platform, unlike the standard distributions.
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t bits() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    std::uint64_t below(std::uint64_t n) { return bits() % n; }
    double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
    float normal() {  // sum of uniforms: close enough to a bell, and exact everywhere
        double sum = 0;
        for (int i = 0; i < 12; ++i) sum += uniform();
        return static_cast<float>(sum - 6.0);
    }

private:
    std::uint64_t state_;
};

Bytes random_bytes(Random& random, std::size_t count) {
    Bytes bytes(count);
    for (auto& b : bytes) b = static_cast<unsigned char>(random.bits());
    return bytes;
}

float value(Random& random, Distribution distribution) {
    switch (distribution) {
        case Distribution::outliers: return random.normal() * (random.below(200) == 0 ? 3000.0f : 1.0f);
        case Distribution::zeros: return random.below(4) == 0 ? random.normal() : random.below(2) ? 0.0f : -0.0f;
        // Few-bit values: quotients fall on the midpoints between codes.
        case Distribution::ties: return std::ldexp(static_cast<float>(static_cast<int>(random.below(49)) - 24), -2);
        case Distribution::subnormals: return std::ldexp(random.normal(), -24);
        default: return random.normal();
    }
}

}  // namespace

const char* name(Distribution distribution) {
    switch (distribution) {
        case Distribution::normal: return "normal";
        case Distribution::outliers: return "outliers";
        case Distribution::zeros: return "zeros";
        case Distribution::ties: return "ties";
        case Distribution::subnormals: return "subnormals";
        case Distribution::random_bits: return "random bits";
        case Distribution::nan_inf: return "NaN and Inf";
    }
    return "?";
}

Inputs random_inputs(const Problem& problem, std::int64_t rows, Distribution distribution, std::uint64_t seed) {
    Random random(seed * 1000003 + static_cast<std::uint64_t>(distribution) * 7919 + problem.hidden);
    Inputs inputs;
    inputs.rows = rows;
    const std::size_t elements = static_cast<std::size_t>(rows) * problem.hidden;
    if (distribution == Distribution::random_bits) {
        inputs.x = random_bytes(random, 2 * elements);
        inputs.weight = random_bytes(random, problem.hidden * (problem.weight_dtype == DType::fp32 ? 4u : 2u));
    } else {
        std::vector<float> x(elements), weight(problem.hidden);
        for (auto& v : x) v = value(random, distribution);
        if (distribution == Distribution::nan_inf) {
            // Some rows stay clean: rows must not influence each other.
            for (std::int64_t r = 0; r < rows; r += 2) {
                float& v = x[static_cast<std::size_t>(r) * problem.hidden + random.below(problem.hidden)];
                v = r % 4 ? std::numeric_limits<float>::infinity() * (random.below(2) ? 1.0f : -1.0f)
                          : std::numeric_limits<float>::quiet_NaN();
            }
        }
        for (auto& v : weight) v = distribution == Distribution::ties ? 1.0f : 1.0f + 0.25f * random.normal();
        if (distribution == Distribution::zeros) {
            // A block of zero weights, and with eps = 0 rows whose norm does not exist.
            for (std::uint32_t i = 0; i < problem.block_size; ++i) weight[i] = 0.0f;
            if (seed % 2) inputs.eps = 0.0f;
        }
        inputs.x = encode(problem.dtype, x);
        inputs.weight = encode(problem.weight_dtype, weight);
    }
    if (problem.adds()) {
        std::vector<float> residual(elements);
        for (auto& v : residual) v = 4.0f * value(random, distribution);
        inputs.residual = distribution == Distribution::random_bits ? random_bytes(random, 2 * elements) : encode(problem.dtype, residual);
    }
    if (problem.scale_format == ScaleFormat::e4m3 && seed % 4 != 0) {
        constexpr float kScales[] = {448.0f, 3.7f, -2.0f};
        inputs.global_scale = kScales[seed % 4 - 1];
    }
    return inputs;
}

}  // namespace nq::test
