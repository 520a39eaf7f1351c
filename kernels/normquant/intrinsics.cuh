// Single instructions the numbers depend on, each with a C++ twin so that the kernel also compiles for the host emulator.
// Arithmetic is explicit round-to-nearest without contraction or flushing; a NaN result is 0x7fffffff, as the hardware gives.
#pragma once

#include <normquant/types.cuh>

#if !defined(__CUDACC_RTC__)
#include <bit>
#include <cmath>
#endif

namespace normquant {

#if defined(__CUDACC_RTC__)

NQ_DEVICE u32 bits(float v) { return __float_as_uint(v); }
NQ_DEVICE float as_float(u32 v) { return __uint_as_float(v); }

NQ_DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
NQ_DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }
NQ_DEVICE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
// Two values side by side, in one instruction where the target has packed fp32 arithmetic.
NQ_DEVICE void mul_f32x2(float* d, const float* a, const float* b) {
    asm("{\n\t.reg .b64 a, b, d;\n\t"
        "mov.b64 a, {%2, %3};\n\t"
        "mov.b64 b, {%4, %5};\n\t"
        "mul.rn.f32x2 d, a, b;\n\t"
        "mov.b64 {%0, %1}, d;\n\t}"
        : "=f"(d[0]), "=f"(d[1]) : "f"(a[0]), "f"(a[1]), "f"(b[0]), "f"(b[1]));
}
NQ_DEVICE void fma_f32x2(float* d, const float* a, const float* b, const float* c) {
    asm("{\n\t.reg .b64 a, b, c, d;\n\t"
        "mov.b64 a, {%2, %3};\n\t"
        "mov.b64 b, {%4, %5};\n\t"
        "mov.b64 c, {%6, %7};\n\t"
        "fma.rn.f32x2 d, a, b, c;\n\t"
        "mov.b64 {%0, %1}, d;\n\t}"
        : "=f"(d[0]), "=f"(d[1]) : "f"(a[0]), "f"(a[1]), "f"(b[0]), "f"(b[1]), "f"(c[0]), "f"(c[1]));
}
// RN(1/v) for |v| in [2^-9, 448] whose last significant bits are 0: one Newton step from an estimate within an ulp rounds correctly
// unless v's fraction is all ones (Markstein). __frcp_rn would carry a call for the operands that cannot occur.
NQ_DEVICE float reciprocal(float v) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(v));
    return __fmaf_rn(y, __fmaf_rn(-v, y, 1.0f), y);
}
NQ_DEVICE float reciprocal_sqrt(float v) { return __frsqrt_rn(v); }

NQ_DEVICE float abs(float v) { float d; asm("abs.f32 %0, %1;" : "=f"(d) : "f"(v)); return d; }
NQ_DEVICE float copy_sign(float magnitude, float sign) { return as_float((bits(magnitude) & 0x7fffffffu) | (bits(sign) & 0x80000000u)); }
// Number wins over NaN.
NQ_DEVICE float min(float a, float b) { float d; asm("min.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b)); return d; }
NQ_DEVICE float max(float a, float b) { float d; asm("max.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b)); return d; }
// NaN wins.
NQ_DEVICE float min_nan(float a, float b) { float d; asm("min.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b)); return d; }
NQ_DEVICE float max_nan(float a, float b) { float d; asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b)); return d; }

NQ_DEVICE float half_to_float(u32 h) { float d; asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(static_cast<u16>(h))); return d; }

template <u32 kSelector>
NQ_DEVICE u32 permute_bytes(u32 a, u32 b) { return __byte_perm(a, b, kSelector); }
// 0xff where the selected byte has its top bit, else 0. __byte_perm has no such mode.
template <u32 kSelector>
NQ_DEVICE u32 permute_signs(u32 a, u32 b) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "n"(kSelector | 0x8888u));
    return d;
}
NQ_DEVICE u32 funnel_right(u32 low, u32 high, u32 shift) { return __funnelshift_r(low, high, shift); }
NQ_DEVICE u32 funnel_left(u32 low, u32 high, u32 shift) { return __funnelshift_l(low, high, shift); }

NQ_DEVICE u32 min_u16x2(u32 a, u32 b) { u32 d; asm("min.u16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)); return d; }
NQ_DEVICE u32 min_bf16x2(u32 a, u32 b) { u32 d; asm("min.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)); return d; }
NQ_DEVICE u32 fma_bf16x2(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// RN16(RN(a + b)) of two values side by side. One rounding to 16 bits gives the same: fp32 has more than twice their precision.
NQ_DEVICE u32 add_16x2(u32 dtype, u32 a, u32 b) {
    if (dtype == kBf16) return fma_bf16x2(a, 0x3f803f80u, b);
    u32 d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
// RN16 of two values, the first in the low half.
NQ_DEVICE u32 round_16x2(u32 dtype, float low, float high) {
    u32 d;
    if (dtype == kBf16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    }
    return d;
}

// Eight fp32 to eight E2M1 codes, element 0 in the lowest nibble.
NQ_DEVICE u32 convert_e2m1x8(const float* q) {
    u32 d;
    asm("{\n\t.reg .b8 a, b, c, d;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 a, %2, %1;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 b, %4, %3;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 c, %6, %5;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 d, %8, %7;\n\t"
        "mov.b32 %0, {a, b, c, d};\n\t}"
        : "=r"(d)
        : "f"(q[0]), "f"(q[1]), "f"(q[2]), "f"(q[3]), "f"(q[4]), "f"(q[5]), "f"(q[6]), "f"(q[7]));
    return d;
}

NQ_DEVICE u32 convert_e4m3(float v) {
    u16 d;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(0.0f), "f"(v));
    return d;
}
NQ_DEVICE float convert_from_e4m3(u32 byte) {
    float d;
    asm("{\n\t.reg .b32 pair;\n\t.reg .b16 low, high;\n\t"
        "cvt.rn.f16x2.e4m3x2 pair, %1;\n\t"
        "mov.b32 {low, high}, pair;\n\t"
        "cvt.f32.f16 %0, low;\n\t}"
        : "=f"(d) : "h"(static_cast<u16>(byte)));
    return d;
}

#else  // the emulator's twins

NQ_DEVICE u32 bits(float v) { return std::bit_cast<u32>(v); }
NQ_DEVICE float as_float(u32 v) { return std::bit_cast<float>(v); }

NQ_DEVICE float canonical(float v) { return v != v ? as_float(0x7fffffffu) : v; }
NQ_DEVICE float add(float a, float b) { return canonical(a + b); }
NQ_DEVICE float mul(float a, float b) { return canonical(a * b); }
NQ_DEVICE float fma(float a, float b, float c) { return canonical(std::fma(a, b, c)); }
NQ_DEVICE void mul_f32x2(float* d, const float* a, const float* b) {
    for (u32 i = 0; i < 2; ++i) d[i] = mul(a[i], b[i]);
}
NQ_DEVICE void fma_f32x2(float* d, const float* a, const float* b, const float* c) {
    for (u32 i = 0; i < 2; ++i) d[i] = fma(a[i], b[i], c[i]);
}
NQ_DEVICE float reciprocal(float v) { return canonical(1.0f / v); }

__extension__ typedef unsigned __int128 u128;

// 1/sqrt rounded once: a double estimate, then its float neighbourhood judged exactly in 128-bit integers.
NQ_DEVICE float reciprocal_sqrt(float v) {
    if (!(v >= 0.0f)) return as_float(0x7fffffffu);
    if (v == 0.0f) return as_float(0x7f800000u);
    if (v == as_float(0x7f800000u)) return 0.0f;
    int exponent;
    double m = std::frexp(static_cast<double>(v), &exponent);  // v = m * 2^exponent, m in [0.5, 1)
    if (exponent & 1) { m *= 2.0; --exponent; }                // m in [0.5, 2), exponent even
    // r = round(1/sqrt(m)) to 24 bits, 1/sqrt(m) in (0.70, 1.42): an ulp is 2^-24 below 1 and 2^-23 from 1 on.
    const u64 mantissa = static_cast<u64>(std::ldexp(m, 24));  // m is a float: 24 or 25 bits, exact
    const int ulp = m > 1.0 ? 24 : 23;
    u64 r = static_cast<u64>(std::ldexp(1.0 / std::sqrt(m), ulp));
    // Midpoint test: 1/sqrt(m) >= (2r+1)/2^(ulp+1)  <=>  2^(2ulp+2+24) >= mantissa * (2r+1)^2. Equality cannot occur.
    const auto above = [&](u64 odd) {
        return (static_cast<u128>(1) << (2 * ulp + 26)) > static_cast<u128>(odd) * odd * mantissa;
    };
    while (above(2 * r + 1)) ++r;
    while (r > 0 && !above(2 * r - 1)) --r;
    return static_cast<float>(std::ldexp(static_cast<double>(r), -ulp - exponent / 2));
}

NQ_DEVICE float abs(float v) { return as_float(bits(v) & 0x7fffffffu); }
NQ_DEVICE float copy_sign(float magnitude, float sign) { return as_float((bits(magnitude) & 0x7fffffffu) | (bits(sign) & 0x80000000u)); }
NQ_DEVICE float min(float a, float b) { return a != a ? canonical(b) : b != b ? a : a < b ? a : b; }
NQ_DEVICE float max(float a, float b) { return a != a ? canonical(b) : b != b ? a : a > b ? a : b; }
NQ_DEVICE float min_nan(float a, float b) { return a != a || b != b ? as_float(0x7fffffffu) : a < b ? a : b; }
NQ_DEVICE float max_nan(float a, float b) { return a != a || b != b ? as_float(0x7fffffffu) : a > b ? a : b; }

NQ_DEVICE float half_to_float(u32 h) {
    const u32 sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 0x3ffu;
    if (exponent == 31) return fraction ? as_float(0x7fffffffu) : as_float(sign | 0x7f800000u);
    const float magnitude = exponent ? std::ldexp(static_cast<float>(1024 + fraction), static_cast<int>(exponent) - 25)
                                     : std::ldexp(static_cast<float>(fraction), -24);
    return as_float(bits(magnitude) | sign);
}

template <u32 kSelector>
NQ_DEVICE u32 permute_bytes(u32 a, u32 b) {
    const u64 source = static_cast<u64>(b) << 32 | a;
    u32 result = 0;
    for (u32 i = 0; i < 4; ++i) result |= (static_cast<u32>(source >> ((kSelector >> 4 * i & 7u) * 8)) & 0xffu) << 8 * i;
    return result;
}
template <u32 kSelector>
NQ_DEVICE u32 permute_signs(u32 a, u32 b) {
    return (permute_bytes<kSelector>(a, b) >> 7 & 0x01010101u) * 0xffu;
}
NQ_DEVICE u32 funnel_right(u32 low, u32 high, u32 shift) {
    return static_cast<u32>((static_cast<u64>(high) << 32 | low) >> shift);
}
NQ_DEVICE u32 funnel_left(u32 low, u32 high, u32 shift) {
    return static_cast<u32>((static_cast<u64>(high) << 32 | low) << shift >> 32);
}

template <class F>
NQ_DEVICE u32 each_u16(u32 a, u32 b, F f) {
    return f(a & 0xffffu, b & 0xffffu) | f(a >> 16, b >> 16) << 16;
}
NQ_DEVICE u32 min_u16x2(u32 a, u32 b) {
    return each_u16(a, b, [](u32 x, u32 y) { return x < y ? x : y; });
}
NQ_DEVICE u32 min_bf16x2(u32 a, u32 b) {
    return each_u16(a, b, [](u32 x, u32 y) { return bits(min(as_float(x << 16), as_float(y << 16))) >> 16; });
}
NQ_DEVICE u32 round_to_bf16(double exact) {  // for values whose product and sum are exact in double
    if (exact != exact) return 0x7fffu;
    const float f = static_cast<float>(exact);
    u32 b = bits(f);
    // Round to odd in fp32 first, so that the second rounding is the only one.
    if (static_cast<double>(f) != exact) {
        if (std::fabs(static_cast<double>(f)) > std::fabs(exact)) --b;
        b |= 1u;
    }
    return (b + 0x7fffu + (b >> 16 & 1u)) >> 16;
}
NQ_DEVICE u32 fma_bf16x2(u32 a, u32 b, u32 c) {
    const auto one = [](u32 x, u32 y, u32 z) {
        return round_to_bf16(static_cast<double>(as_float(x << 16)) * static_cast<double>(as_float(y << 16)) +
                             static_cast<double>(as_float(z << 16)));
    };
    return one(a & 0xffffu, b & 0xffffu, c & 0xffffu) | one(a >> 16, b >> 16, c >> 16) << 16;
}

NQ_DEVICE u32 round_16(u32 dtype, float v) {
    if (v != v) return 0x7fffu;
    if (dtype == kBf16) return (bits(v) + 0x7fffu + (bits(v) >> 16 & 1u)) >> 16;
    const u32 sign = bits(v) >> 31 << 15;
    const float a = abs(v);
    if (a >= 65520.0f) return sign | 0x7c00u;
    const int exponent = a < as_float(0x38800000u) ? -14 : std::ilogb(a);  // 2^-14 is the least normal
    return sign | (static_cast<u32>(exponent + 14) * 1024 + static_cast<u32>(std::nearbyint(std::ldexp(a, 10 - exponent))));
}
NQ_DEVICE u32 round_16x2(u32 dtype, float low, float high) { return round_16(dtype, low) | round_16(dtype, high) << 16; }
NQ_DEVICE u32 add_16x2(u32 dtype, u32 a, u32 b) {
    const auto value = [dtype](u32 v) { return dtype == kBf16 ? as_float(v << 16) : half_to_float(v); };
    return each_u16(a, b, [&](u32 x, u32 y) { return round_16(dtype, add(value(x), value(y))); });
}

NQ_DEVICE u32 convert_e2m1x8(const float* q) {
    u32 word = 0;
    for (u32 i = 0; i < 8; ++i) {
        const float a = abs(q[i]);
        // Number of midpoints passed; at a midpoint the even code wins, so odd codes are entered only beyond it.
        const u32 code = q[i] != q[i] ? 7u
                                      : (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) +
                                            (a > 5.0f);
        word |= (code | (q[i] != q[i] ? 0u : bits(q[i]) >> 31 << 3)) << 4 * i;
    }
    return word;
}

NQ_DEVICE float convert_from_e4m3(u32 byte) {
    if ((byte & 0x7fu) == 0x7fu) return as_float(0x7fffffffu);
    const u32 exponent = byte >> 3 & 15u, fraction = byte & 7u;
    const float magnitude = exponent ? std::ldexp(static_cast<float>(8 + fraction), static_cast<int>(exponent) - 10)
                                     : std::ldexp(static_cast<float>(fraction), -9);
    return as_float(bits(magnitude) | (byte & 0x80u) << 24);
}

NQ_DEVICE u32 convert_e4m3(float v) {
    if (v != v) return 0x7fu;
    const u32 sign = bits(v) >> 31 << 7;
    const float a = abs(v);
    if (a >= 464.0f) return sign | 0x7eu;
    int exponent = a < as_float(0x3c800000u) ? -6 : std::ilogb(a);  // 2^-6 is the least normal
    const u32 steps = static_cast<u32>(std::nearbyint(std::ldexp(a, 3 - exponent)));  // in units of 2^(exponent-3)
    return sign | (static_cast<u32>(exponent + 6) * 8 + steps);
}

#endif

}  // namespace normquant
