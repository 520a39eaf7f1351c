#include "reference/numerics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace nq::numerics {
namespace {

__extension__ using uint128 = unsigned __int128;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

bool is_nan(std::uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }
std::uint32_t sign_of(float value) { return std::bit_cast<std::uint32_t>(value) >> 31; }

// |value| = significand * 2^exponent, also for subnormals. Infinity counts as 2^128.
struct Magnitude {
    std::uint32_t significand;
    int exponent;
};
Magnitude magnitude(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
    const std::uint32_t field = bits >> 23;
    const std::uint32_t fraction = bits & 0x7fffffu;
    if (field == 0) return {fraction, -149};
    return {fraction | 0x800000u, static_cast<int>(field) - 150};
}

// |value| in a binary format with `fraction_bits` stored fraction bits and least normal exponent `min_exponent`,
// rounded to nearest even as if the exponent were unbounded above. Codes of such a format count its values in order, so
// that a carry out of the fraction lands on the next exponent by itself.
std::uint32_t round_magnitude(float value, int fraction_bits, int min_exponent) {
    const Magnitude m = magnitude(value);
    if (m.significand == 0) return 0;
    const int exponent = std::max(m.exponent + static_cast<int>(std::bit_width(m.significand)) - 1, min_exponent);
    // Bits below the format's unit in the last place; at least 13, as no format here has more than 10 fraction bits.
    const int shift = exponent - fraction_bits - m.exponent;
    std::uint32_t units = 0;
    if (shift <= 24) {  // beyond that, the value is less than half a unit
        units = m.significand >> shift;
        const std::uint32_t rest = m.significand & ((1u << shift) - 1);
        const std::uint32_t half = 1u << (shift - 1);
        if (rest > half || (rest == half && units % 2 == 1)) ++units;
    }
    return (static_cast<std::uint32_t>(exponent - min_exponent) << fraction_bits) + units;
}

// The value of a code of such a format, without its special codes. For formats well inside binary32.
float decode_magnitude(std::uint32_t code, int fraction_bits, int min_exponent) {
    const std::uint32_t field = code >> fraction_bits;
    const std::uint32_t fraction = code & ((1u << fraction_bits) - 1);
    const std::uint32_t significand = field == 0 ? fraction : fraction + (1u << fraction_bits);
    const int exponent = min_exponent - fraction_bits + (field == 0 ? 0 : static_cast<int>(field) - 1);
    const float unit = std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);  // 2^exponent
    return static_cast<float>(significand) * unit;
}

struct Format16 {
    int fraction_bits;
    int min_exponent;
    std::uint32_t infinity;
};
constexpr Format16 kFp16{10, -14, 0x7c00};
constexpr Format16 kBf16{7, -126, 0x7f80};

std::uint16_t encode(float value, const Format16& format) {
    if (is_nan(std::bit_cast<std::uint32_t>(value))) return 0x7fff;
    const std::uint32_t code = round_magnitude(value, format.fraction_bits, format.min_exponent);
    return static_cast<std::uint16_t>(sign_of(value) << 15 | std::min(code, format.infinity));
}

}  // namespace

float from_fp16(std::uint16_t bits) {
    const std::uint32_t code = bits & 0x7fffu;
    const float value = code > kFp16.infinity    ? kNan
                        : code == kFp16.infinity ? kInfinity
                                                 : decode_magnitude(code, kFp16.fraction_bits, kFp16.min_exponent);
    return (bits & 0x8000u) != 0 ? -value : value;
}

// bfloat16 is the upper half of binary32.
float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

std::uint16_t to_fp16(float value) { return encode(value, kFp16); }
std::uint16_t to_bf16(float value) { return encode(value, kBf16); }

std::uint8_t to_e2m1(float value) {
    if (is_nan(std::bit_cast<std::uint32_t>(value))) return 0x7;
    return static_cast<std::uint8_t>(sign_of(value) << 3 | std::min(round_magnitude(value, 1, 0), 0x7u));
}

float from_e2m1(std::uint8_t code) {
    const float value = decode_magnitude(code & 0x7u, 1, 0);
    return (code & 0x8u) != 0 ? -value : value;
}

std::uint8_t to_e4m3(float value) {
    if (is_nan(std::bit_cast<std::uint32_t>(value))) return 0x7f;
    return static_cast<std::uint8_t>(sign_of(value) << 7 | std::min(round_magnitude(value, 3, -6), 0x7eu));
}

float from_e4m3(std::uint8_t code) {
    if ((code & 0x7fu) == 0x7fu) return kNan;
    const float value = decode_magnitude(code & 0x7fu, 3, -6);
    return (code & 0x80u) != 0 ? -value : value;
}

std::uint8_t to_ue8m0(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    if (is_nan(bits) || bits == 0x7f800000u) return 255;
    const Magnitude m = magnitude(value);
    if (m.significand == 0 || sign_of(value) != 0) return 0;
    // ceil(log2(significand)) is the width of significand - 1.
    const int log2 = m.exponent + static_cast<int>(std::bit_width(m.significand - 1));
    return static_cast<std::uint8_t>(std::max(log2 + 127, 0));
}

float from_ue8m0(std::uint8_t code) { return code == 255 ? kNan : std::ldexp(1.0f, code - 127); }

float rsqrt(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) == 0) return kInfinity;
    if (is_nan(bits) || sign_of(value) != 0) return kNan;
    if (bits == 0x7f800000u) return 0.0f;

    // value = m * 2^e with an even e and 2^23 <= m < 2^25.
    Magnitude v = magnitude(value);
    const int normalize = 24 - static_cast<int>(std::bit_width(v.significand));
    std::uint64_t m = std::uint64_t{v.significand} << normalize;
    int e = v.exponent - normalize;
    if (e % 2 != 0) {
        m *= 2;
        e -= 1;
    }
    // The first 25 bits of the result: the largest n with n <= 2^t / sqrt(m), that is n * n * m <= 2^(2t).
    const int t = m < (1u << 24) ? 36 : 37;
    std::uint64_t n = 0;
    for (std::uint64_t bit = 1u << 25; bit != 0; bit /= 2) {
        if (uint128{n + bit} * (n + bit) * m <= uint128{1} << (2 * t)) n += bit;
    }
    // The last of them decides: an odd n is above the midpoint of two floats, as n * n * m is no power of two for an
    // odd n.
    return std::ldexp(static_cast<float>((n + 1) / 2), 1 - t - e / 2);
}

float scale_by_power_of_two(float value, int exponent) {
    // Exact in double for every float and |exponent| <= 127.
    return static_cast<float>(std::ldexp(static_cast<double>(value), exponent));
}

}  // namespace nq::numerics
