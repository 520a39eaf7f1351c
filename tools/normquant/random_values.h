// Inputs that commands make up themselves.
#pragma once

#include <cstdint>
#include <vector>

namespace nq::cli {

// SplitMix64: the same inputs on every machine.
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    std::uint64_t bits() {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-23f - 1.0f; }  // [-1, 1)

private:
    std::uint64_t state_;
};

// As a tensor of this nq_dtype.
std::vector<unsigned char> encode(const std::vector<float>& values, std::uint32_t dtype);

}  // namespace nq::cli
