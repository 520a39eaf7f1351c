// Number formats: the reference's conversions against their definitions, and the kernel's software conversions against
// the reference. The default run strides over the 2^32 inputs and looks closely around every boundary; [nightly] visits
// them all.
#include "reference/numerics.h"

#include "support/catch.h"

#include <normquant/fp4.cuh>
#include <normquant/scale.cuh>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

using namespace nq;

namespace {

__extension__ using uint128 = unsigned __int128;

constexpr std::uint64_t kAllFloats = std::uint64_t{1} << 32;
constexpr std::uint64_t kNone = ~std::uint64_t{0};

// The first index in 0, stride, 2*stride ... below count for which matches(index) is false, or kNone.
template <class Matches>
std::uint64_t first_mismatch(std::uint64_t count, std::uint64_t stride, const Matches& matches) {
    constexpr std::uint64_t kChunk = 1 << 16;
    const std::uint64_t steps = (count + stride - 1) / stride;
    std::atomic<std::uint64_t> next{0};
    std::atomic<std::uint64_t> found{kNone};
    const auto work = [&] {
        for (std::uint64_t first; (first = next.fetch_add(kChunk)) < steps && found.load() == kNone;) {
            for (std::uint64_t step = first; step < std::min(steps, first + kChunk); ++step) {
                if (matches(step * stride)) continue;
                std::uint64_t seen = found.load();
                while (step * stride < seen && !found.compare_exchange_weak(seen, step * stride)) {
                }
                return;
            }
        }
    };
    {
        std::vector<std::jthread> helpers;
        for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) helpers.emplace_back(work);
        work();
    }
    return found.load();
}

float as_float(std::uint64_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits)); }

// Hardware arithmetic gives one NaN only, and the software E2M1 paths are written for it.
float canonical(float value) { return std::isnan(value) ? as_float(0x7fffffff) : value; }

std::vector<float> values_of(float (*decode)(std::uint8_t), unsigned codes) {
    std::vector<float> values;
    for (unsigned code = 0; code < codes; ++code) values.push_back(decode(static_cast<std::uint8_t>(code)));
    return values;
}

// The definition of rounding: the nearest value, of two the one with the even code, beyond the last one the last one.
unsigned nearest(const std::vector<float>& values, float magnitude) {
    if (magnitude >= values.back()) return static_cast<unsigned>(values.size()) - 1;
    unsigned best = 0;
    for (unsigned code = 1; code < values.size(); ++code) {
        const double distance = std::fabs(static_cast<double>(magnitude) - values[code]);
        const double least = std::fabs(static_cast<double>(magnitude) - values[best]);
        if (distance < least || (distance == least && code % 2 == 0)) best = code;
    }
    return best;
}

// Bit patterns around everything at which a conversion may change its mind: midpoints and values of the format, powers
// of two, and the ends of binary32. Both signs.
std::vector<std::uint32_t> boundaries(const std::vector<float>& values) {
    std::vector<float> centers = {0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()};
    for (std::size_t i = 0; i + 1 < values.size(); ++i) {
        centers.push_back(values[i]);
        centers.push_back((values[i] + values[i + 1]) / 2);
    }
    centers.push_back(values.back());
    centers.push_back(values.back() * 2);
    for (int exponent = -149; exponent < 128; ++exponent) centers.push_back(std::ldexp(1.0f, exponent));
    std::vector<std::uint32_t> patterns;
    for (const float center : centers) {
        for (int offset = -20; offset <= 20; ++offset) {
            const std::uint32_t bits = std::bit_cast<std::uint32_t>(center) + static_cast<std::uint32_t>(offset);
            patterns.push_back(bits & 0x7fffffffu);
            patterns.push_back(bits | 0x80000000u);
        }
    }
    return patterns;
}

const std::vector<float> kE2m1 = values_of(numerics::from_e2m1, 8);
const std::vector<float> kE4m3 = values_of(numerics::from_e4m3, 127);

bool e2m1_matches(const float (&q)[8]) {
    std::uint32_t expected = 0;
    for (unsigned i = 0; i < 8; ++i) expected |= static_cast<std::uint32_t>(numerics::to_e2m1(q[i])) << 4 * i;
    float saturated[8];
    std::ranges::transform(q, saturated, normquant::saturate);
    if (normquant::e2m1x8_scalar(saturated) != expected || normquant::e2m1x8_packed(saturated) != expected) return false;
    // What a block with an ordinary scale has is not saturated before.
    const bool ordinary = std::ranges::all_of(q, [](float v) { return std::abs(v) < 7.0f; });
    if (ordinary && (normquant::e2m1x8_scalar(q) != expected || normquant::e2m1x8_packed(q) != expected)) return false;
    return normquant::convert_e2m1x8(q) == expected;
}

// Eight inputs of different magnitude and sign at a time; index 0 ... 2^29 - 1 covers every float once.
bool e2m1_octet_matches(std::uint64_t index) {
    float q[8];
    for (std::uint64_t i = 0; i < 8; ++i) q[i] = canonical(as_float(index + (i << 29)));
    return e2m1_matches(q);
}

bool e4m3_matches(std::uint64_t bits) {
    const std::uint8_t expected = numerics::to_e4m3(as_float(bits));
    return normquant::e4m3_software(as_float(bits)) == expected && normquant::convert_e4m3(as_float(bits)) == expected;
}

// A block's maximum is never negative, but a NaN may have either sign.
bool ue8m0_matches(std::uint64_t bits) {
    const float value = as_float(bits);
    if (std::signbit(value) && !std::isnan(value)) return true;
    return normquant::ue8m0(value) == numerics::to_ue8m0(value);
}

// Is `result` 1/sqrt(value), rounded to nearest? Compares squares of the midpoints beside it with 1/value, in integers.
bool is_reciprocal_sqrt(float value, float result) {
    int value_exponent;
    const auto m = static_cast<std::uint64_t>(std::ldexp(std::frexp(static_cast<double>(value), &value_exponent), 24));
    int result_exponent;
    const auto r =
        static_cast<std::uint64_t>(std::ldexp(std::frexp(static_cast<double>(result), &result_exponent), 24));
    // value = m * 2^(value_exponent - 24), result = r * 2^(result_exponent - 24), and with midpoints counted in
    // quarters of an ulp: (4r - below)^2 * m < 2^s < (4r + 2)^2 * m
    const std::uint64_t below = r == 1u << 23 ? 1 : 2;  // the ulp under a power of two is half as wide
    const int s = 4 + 3 * 24 - value_exponent - 2 * result_exponent;
    if (s < 0 || s > 127) return false;
    const uint128 one = uint128{1} << s;
    return uint128{4 * r - below} * (4 * r - below) * m < one && one < uint128{4 * r + 2} * (4 * r + 2) * m;
}

bool rsqrt_matches(float value) {
    const float result = numerics::rsqrt(value);
    return is_reciprocal_sqrt(value, result) && normquant::reciprocal_sqrt(value) == result;
}
// 0 ... 2^23 - 2: all subnormals; then all floats of [1, 4).
constexpr std::uint64_t kRsqrtInputs = (1 << 23) - 1 + (1 << 24);
bool rsqrt_index_matches(std::uint64_t index) {
    constexpr std::uint64_t kSubnormals = (1 << 23) - 1;
    return rsqrt_matches(as_float(index < kSubnormals ? index + 1 : index - kSubnormals + 0x3f800000));
}

}  // namespace

TEST_CASE("E2M1 and E4M3 values") {
    CHECK(kE2m1 == std::vector<float>{0, .5f, 1, 1.5f, 2, 3, 4, 6});
    for (unsigned code = 0; code < 8; ++code) {
        const float negative = numerics::from_e2m1(static_cast<std::uint8_t>(code | 8));
        CHECK(std::bit_cast<std::uint32_t>(negative) == (std::bit_cast<std::uint32_t>(kE2m1[code]) | 0x80000000u));
    }
    for (unsigned code = 0; code < 256; ++code) {
        CAPTURE(code);
        const float value = numerics::from_e4m3(static_cast<std::uint8_t>(code));
        const float kernel = normquant::e4m3_to_float(code);
        if ((code & 0x7f) == 0x7f) {
            CHECK(std::isnan(value));
            CHECK(std::isnan(kernel));
            continue;
        }
        const unsigned field = code >> 3 & 15;
        const double magnitude =
            field == 0 ? (code & 7) / 512.0 : std::ldexp(1 + (code & 7) / 8.0, static_cast<int>(field) - 7);
        CHECK(static_cast<double>(value) == (code < 128 ? magnitude : -magnitude));
        CHECK(std::bit_cast<std::uint32_t>(kernel) == std::bit_cast<std::uint32_t>(value));
    }
    CHECK(numerics::from_e4m3(0x01) == 0.001953125f);
    CHECK(numerics::from_e4m3(0x7e) == 448.0f);
}

TEST_CASE("UE8M0 values are exact, also the subnormal one") {
    CHECK(numerics::from_ue8m0(0) == 0x1p-127f);
    CHECK(numerics::from_ue8m0(1) == 0x1p-126f);
    CHECK(numerics::from_ue8m0(127) == 1.0f);
    CHECK(numerics::from_ue8m0(254) == 0x1p127f);
    CHECK(std::isnan(numerics::from_ue8m0(255)));
    for (unsigned code = 0; code < 255; ++code) {
        CHECK(numerics::to_ue8m0(numerics::from_ue8m0(static_cast<std::uint8_t>(code))) == code);
    }
}

TEST_CASE("E2M1 ties go to the even code, one ulp beside them to the nearest") {
    struct Row {
        float value;
        unsigned tie, below, above;
    };
    for (const Row& row : {Row{.25f, 0, 0, 1}, Row{.75f, 2, 1, 2}, Row{1.25f, 2, 2, 3}, Row{1.75f, 4, 3, 4},
                           Row{2.5f, 4, 4, 5}, Row{3.5f, 6, 5, 6}, Row{5.0f, 6, 6, 7}}) {
        CAPTURE(row.value);
        CHECK(numerics::to_e2m1(row.value) == row.tie);
        CHECK(numerics::to_e2m1(std::nextafter(row.value, 0.0f)) == row.below);
        CHECK(numerics::to_e2m1(std::nextafter(row.value, 9.0f)) == row.above);
        CHECK(numerics::to_e2m1(-row.value) == (row.tie | 8));
        CHECK(numerics::to_e2m1(std::nextafter(-row.value, 0.0f)) == (row.below | 8));
        CHECK(numerics::to_e2m1(std::nextafter(-row.value, -9.0f)) == (row.above | 8));
    }
}

TEST_CASE("special values of the conversions") {
    const float infinity = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(numerics::to_e2m1(0.0f) == 0x0);
    CHECK(numerics::to_e2m1(-0.0f) == 0x8);
    CHECK(numerics::to_e2m1(-1e-40f) == 0x8);
    CHECK(numerics::to_e2m1(infinity) == 0x7);
    CHECK(numerics::to_e2m1(-infinity) == 0xf);
    CHECK(numerics::to_e2m1(nan) == 0x7);
    CHECK(numerics::to_e2m1(-nan) == 0x7);

    for (const float value : {447.0f, 448.0f, 464.0f, 465.0f, 480.0f, 1e9f, infinity}) {
        CAPTURE(value);
        CHECK(numerics::to_e4m3(value) == 0x7e);
        CHECK(numerics::to_e4m3(-value) == 0xfe);
    }
    CHECK(numerics::to_e4m3(0.0f) == 0x00);
    CHECK(numerics::to_e4m3(-0.0f) == 0x80);
    CHECK(numerics::to_e4m3(0x1p-10f) == 0x00);  // a tie with zero
    CHECK(numerics::to_e4m3(std::nextafter(0x1p-10f, 1.0f)) == 0x01);
    CHECK(numerics::to_e4m3(nan) == 0x7f);
    CHECK(numerics::to_e4m3(-nan) == 0x7f);

    CHECK(numerics::to_ue8m0(0.0f) == 0);
    CHECK(numerics::to_ue8m0(0x1p-149f) == 0);
    CHECK(numerics::to_ue8m0(0x1p-127f) == 0);
    CHECK(numerics::to_ue8m0(std::nextafter(0x1p-127f, 1.0f)) == 1);
    CHECK(numerics::to_ue8m0(0x1p-126f) == 1);
    CHECK(numerics::to_ue8m0(std::nextafter(1.0f, 0.0f)) == 127);
    CHECK(numerics::to_ue8m0(1.0f) == 127);
    CHECK(numerics::to_ue8m0(std::nextafter(1.0f, 2.0f)) == 128);
    CHECK(numerics::to_ue8m0(infinity) == 255);
    CHECK(numerics::to_ue8m0(nan) == 255);

    CHECK(numerics::to_fp16(nan) == 0x7fff);
    CHECK(numerics::to_bf16(-nan) == 0x7fff);
    CHECK(numerics::to_fp16(65504.0f) == 0x7bff);
    CHECK(numerics::to_fp16(std::nextafter(65520.0f, 0.0f)) == 0x7bff);
    CHECK(numerics::to_fp16(65520.0f) == 0x7c00);
    CHECK(numerics::to_fp16(-1e30f) == 0xfc00);
    CHECK(numerics::to_fp16(0x1p-25f) == 0x0000);  // a tie with zero
    CHECK(numerics::to_fp16(0x1.8p-24f) == 0x0002);
    CHECK(numerics::to_fp16(-0.0f) == 0x8000);
    CHECK(numerics::to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
    CHECK(numerics::to_bf16(0x1p-149f) == 0x0000);
    CHECK(numerics::to_bf16(0x1p-133f) == 0x0001);

    CHECK(numerics::rsqrt(0.0f) == infinity);
    CHECK(numerics::rsqrt(infinity) == 0.0f);
    CHECK(numerics::rsqrt(4.0f) == 0.5f);
    CHECK(std::isnan(numerics::rsqrt(nan)));
    CHECK(std::isnan(numerics::rsqrt(-1.0f)));

    CHECK(numerics::scale_by_power_of_two(0x1.000002p0f, -127) == 0x1p-127f);  // one rounding, into the subnormals
    CHECK(numerics::scale_by_power_of_two(3.0f, 127) == infinity);
}

TEST_CASE("every 16-bit value decodes as IEEE says and encodes back to itself") {
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
        const auto h = static_cast<std::uint16_t>(bits);
        const float half = numerics::from_fp16(h);
        const float brain = numerics::from_bf16(h);
        const unsigned field = bits >> 10 & 31;
        const double magnitude =
            field == 0 ? std::ldexp(bits & 1023, -24) : std::ldexp(1024 + (bits & 1023), static_cast<int>(field) - 25);
        const bool half_nan = (bits & 0x7fff) > 0x7c00;
        const bool brain_nan = (bits & 0x7fff) > 0x7f80;
        bool ok = half_nan                    ? std::isnan(half)
                  : (bits & 0x7fff) == 0x7c00 ? std::isinf(half)
                                              : std::fabs(static_cast<double>(half)) == magnitude;
        ok = ok && numerics::to_fp16(half) == (half_nan ? 0x7fff : h) &&
             numerics::to_bf16(brain) == (brain_nan ? 0x7fff : h);
        ok = ok && (half_nan ? std::isnan(normquant::half_to_float(bits))
                             : std::bit_cast<std::uint32_t>(normquant::half_to_float(bits)) ==
                                   std::bit_cast<std::uint32_t>(half));
        if (!ok) FAIL("16-bit pattern " << bits);
    }
}

TEST_CASE("rounding to 16 bits: the nearer neighbour, of two the even one") {
    const auto matches = [](std::uint64_t bits) {
        const float value = as_float(bits);
        if (std::isnan(value)) return true;
        const std::uint32_t b = static_cast<std::uint32_t>(bits);
        // bfloat16 is a truncation: adding half an ulp, less one bit where the result is even, carries where it must.
        const auto brain = static_cast<std::uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
        if (numerics::to_bf16(value) != (std::isinf(value) ? b >> 16 : brain)) return false;
        const std::uint16_t half = numerics::to_fp16(value);
        const std::uint16_t magnitude = half & 0x7fff;
        if ((half >> 15) != (b >> 31)) return false;
        if (magnitude == 0x7c00) return std::fabs(value) >= 65520.0f;
        const double exact = std::fabs(static_cast<double>(value));
        const double error = std::fabs(exact - numerics::from_fp16(magnitude));
        for (const int step : {-1, 1}) {
            const int other = magnitude + step;
            if (other < 0) continue;
            const double beside = other == 0x7c00 ? 65536.0 : numerics::from_fp16(static_cast<std::uint16_t>(other));
            const double distance = std::fabs(exact - beside);
            if (distance < error || (distance == error && magnitude % 2 == 1)) return false;
        }
        return true;
    };
    CHECK(first_mismatch(kAllFloats, 1021, matches) == kNone);
}

TEST_CASE("the reference's E2M1 and E4M3 are the nearest value") {
    const auto e2m1 = [](std::uint64_t bits) {
        const float value = as_float(bits);
        return std::isnan(value) || (numerics::to_e2m1(value) & 7u) == nearest(kE2m1, std::fabs(value));
    };
    const auto e4m3 = [](std::uint64_t bits) {
        const float value = as_float(bits);
        return std::isnan(value) || (numerics::to_e4m3(value) & 127u) == nearest(kE4m3, std::fabs(value));
    };
    CHECK(first_mismatch(kAllFloats, 2039, e2m1) == kNone);
    CHECK(first_mismatch(kAllFloats, 32749, e4m3) == kNone);
    for (const std::uint32_t bits : boundaries(kE2m1)) {
        if (!e2m1(bits)) FAIL("E2M1 of bits " << bits);
    }
    for (const std::uint32_t bits : boundaries(kE4m3)) {
        if (!e4m3(bits)) FAIL("E4M3 of bits " << bits);
    }
}

TEST_CASE("the kernel's E2M1 conversions, strided and at boundaries") {
    CHECK(first_mismatch(kAllFloats / 8, 509, e2m1_octet_matches) == kNone);
    const std::vector<std::uint32_t> patterns = boundaries(kE2m1);
    std::mt19937 random(1);
    for (const std::uint32_t bits : patterns) {  // each at a random place among random neighbours
        float q[8];
        for (float& value : q) value = canonical(as_float(patterns[random() % patterns.size()]));
        q[random() % 8] = canonical(as_float(bits));
        if (!e2m1_matches(q)) FAIL("octet with bits " << bits);
    }
}

TEST_CASE("the kernel's E2M1 conversions give equal codes for every bf16 value at every place") {
    for (std::uint64_t high = 0; high < 0x10000; ++high) {
        for (unsigned place = 0; place < 8; ++place) {
            float q[8] = {0.25f, -0.75f, 1.25f, -6.0f, 2.5f, -3.5f, 5.0f, -0.0f};
            q[place] = canonical(as_float(high << 16));
            if (!e2m1_matches(q)) FAIL("bf16 pattern " << high << " at place " << place);
        }
    }
}

TEST_CASE("the kernel's E4M3 and UE8M0 conversions, strided and at boundaries") {
    CHECK(first_mismatch(kAllFloats, 251, e4m3_matches) == kNone);
    CHECK(first_mismatch(kAllFloats, 251, ue8m0_matches) == kNone);
    for (const std::uint32_t bits : boundaries(kE4m3)) {
        if (!e4m3_matches(bits)) FAIL("E4M3 of bits " << bits);
        if (!ue8m0_matches(bits)) FAIL("UE8M0 of bits " << bits);
    }
}

TEST_CASE("1/sqrt is correctly rounded, strided") {
    CHECK(first_mismatch(kRsqrtInputs, 61, rsqrt_index_matches) == kNone);
    for (const std::uint32_t bits : boundaries({1.0f, 3.0f})) {
        if (bits == 0 || bits >= 0x7f800000u) continue;
        if (!rsqrt_matches(as_float(bits))) FAIL("1/sqrt of bits " << bits);
    }
}

TEST_CASE("the kernel's E2M1 conversions, all 2^32 inputs", "[.][nightly]") {
    CHECK(first_mismatch(kAllFloats / 8, 1, e2m1_octet_matches) == kNone);
}

TEST_CASE("the kernel's E4M3 conversions, all 2^32 inputs", "[.][nightly]") {
    CHECK(first_mismatch(kAllFloats, 1, e4m3_matches) == kNone);
}

TEST_CASE("the kernel's UE8M0 conversion, all 2^32 inputs", "[.][nightly]") {
    CHECK(first_mismatch(kAllFloats, 1, ue8m0_matches) == kNone);
}

TEST_CASE("1/sqrt is correctly rounded, all mantissas of two binades and all subnormals", "[.][nightly]") {
    CHECK(first_mismatch(kRsqrtInputs, 1, rsqrt_index_matches) == kNone);
}
