// fp32 -> E2M1: nearest of 0, .5, 1, 1.5, 2, 3, 4, 6, ties to the even code, saturating, sign kept, NaN -> 7.
// Eight values become one word, element 0 in the lowest nibble. The software paths take magnitudes below 7, as all of a block with an
// ordinary scale are (scale.cuh); saturate() brings others there. They are exact for each of them.
#pragma once

#include <normquant/intrinsics.cuh>

namespace normquant {

// Into the range of the software paths; NaN becomes 6, whose code it shares. The only NaN that the hardware's arithmetic produces is
// positive.
NQ_DEVICE float saturate(float q) { return max(min(q, 6.0f), -6.0f); }

// One fma a value. With a = |q| and p = the power of two at or below max(a, 1), the sum p*(2^22+3) + a lies in a binade
// whose unit is the distance between the codes around a, so that its rounding is the one wanted; p*3 and the exponent then
// cancel in bits + (bits >> 22), whose low three bits are the code. The constants are even: ties go to even codes.
NQ_DEVICE u32 e2m1x8_scalar(const float* q) {
    u32 codes = 0, signs = 0;
    NQ_UNROLL
    for (u32 i = 0; i < 8; ++i) {
        const float a = abs(q[i]);
        const float p = as_float(bits(max(a, 1.0f)) & 0x7f800000u);
        const u32 b = bits(fma(p, 4194307.0f, a));
        codes = funnel_right(codes, b + (b >> 22), 4);  // the low nibble enters at the top
    }
    NQ_UNROLL
    for (u32 i = 8; i-- > 0;) signs = funnel_left(bits(q[i]), signs, 4);
    return (codes & 0x77777777u) | (signs & 0x88888888u);
}

// Two values at a time. Each q is cut to bf16 and rounded to odd (its lost bits are or-ed into the last one), which keeps every
// later rounding exact. In bf16 the unit of 192 + code is 1, and the code is the least of three lines, exact by a single rounding:
// 2a below 2, a + 2 from 2 to 4, a/2 + 4 from 4.
NQ_DEVICE u32 e2m1x8_packed(const float* q) {
    constexpr u32 kTwo = 0x40004000u, kOne = 0x3f803f80u, kHalf = 0x3f003f00u;
    constexpr u32 k192 = 0x43404340u, k194 = 0x43424342u, k196 = 0x43444344u;
    u32 high[4], codes = 0;
    NQ_UNROLL
    for (u32 i = 4; i-- > 0;) {  // values i and i + 4
        high[i] = permute_bytes<0x7632>(bits(q[i]), bits(q[i + 4]));
        const u32 low = permute_bytes<0x5410>(bits(q[i]), bits(q[i + 4]));
        const u32 a = (high[i] | min_u16x2(low, 0x00010001u)) & 0x7fff7fffu;
        const u32 code = min_bf16x2(min_bf16x2(fma_bf16x2(a, kTwo, k192), fma_bf16x2(a, kOne, k194)), fma_bf16x2(a, kHalf, k196));
        codes = codes * 16 + code;
    }
    const u32 even = permute_signs<0x7351>(high[0], high[2]);  // of the values 0, 2, 4, 6
    const u32 odd = permute_signs<0x7351>(high[1], high[3]);
    const u32 signs = (even & 0x0f0f0f0fu) | (odd & 0xf0f0f0f0u);
    return (codes - k192 * 0x1111u) | (signs & 0x88888888u);
}

// q holds 8 values.
template <class Config>
NQ_DEVICE u32 e2m1x8(const Config& config, const float* q) {
    if (config.fp4_path == kFp4Native) return convert_e2m1x8(q);
    if (config.fp4_path == kFp4Packed) return e2m1x8_packed(q);
    return e2m1x8_scalar(q);
}

}  // namespace normquant
