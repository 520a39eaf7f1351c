// The scale byte of a block and the factor k that turns the block's weighted values into the range of FP4.
#pragma once

#include <normquant/intrinsics.cuh>

namespace normquant {

struct BlockScale {
    u32 byte;
    float k;        // code = E2M1(p * k)
    bool ordinary;  // k is right as it is, and all of the block's |p * k| are below 7
};

constexpr u32 kOneSixth = 0x3e2aaaabu;  // RN(1/6)

// A k that overflowed becomes +-FLT_MAX, so that a zero element gets a zero code; NaN stays.
NQ_DEVICE float clamp_finite(float k) {
    const float largest = as_float(0x7f7fffffu);
    return max_nan(min_nan(k, largest), -largest);
}

// E4M3 by one fma, as e2m1x8_scalar: the sum's unit is the distance between the E4M3 values around |v|.
NQ_DEVICE u32 e4m3_software(float v) {
    const float a = min(abs(v), 448.0f);
    const u32 p = bits(max(a, 0.015625f)) & 0x7f800000u;  // 2^-6 is the least normal
    const u32 b = bits(fma(as_float(p), 1048576.0f, a));
    const u32 code = (b + (b >> 20) - 1128u) & 0x7fu;
    return v != v ? 0x7fu : code | (bits(v) >> 31 << 7);
}

NQ_DEVICE float e4m3_to_float(u32 byte) {
    const float magnitude = mul(as_float((byte & 0x7fu) << 20), as_float(0x7b800000u));  // times 2^120: exact
    if ((byte & 0x7fu) == 0x7fu) return as_float(0x7fffffffu);
    return as_float(bits(magnitude) | (byte & 0x80u) << 24);
}

// ceil(log2(t)) + 127 from the bits of t >= 0: adding all fraction bits carries into the exponent unless t is a power of two.
NQ_DEVICE u32 ue8m0(float t) {
    const u32 b = bits(t);
    if (b > 0x7f7fffffu) return 255;  // Inf, NaN
    if (b <= 0x00400000u) return 0;   // t <= 2^-127
    return (b + 0x007fffffu) >> 23;
}

// block_max: max |p| over the block, NaN if any p is. k of a scale that is not ordinary still has to go through special_k.
template <class Config>
NQ_DEVICE BlockScale block_scale(const Config& config, float block_max, float rstd, float global_scale) {
    const float m = mul(block_max, rstd);  // the block's largest |y|
    BlockScale scale;
    if (config.scale_format == kE4m3) {
        const float t = mul(mul(m, global_scale), as_float(kOneSixth));
        scale.byte = config.native_e4m3 ? convert_e4m3(t) : e4m3_software(t);
        scale.k = mul(rstd, mul(global_scale, reciprocal(config.native_e4m3 ? convert_from_e4m3(scale.byte) : e4m3_to_float(scale.byte))));
        // Normal and below the largest: t was rounded to it by 1/16 of it at most, so that |p * k| <= 6 * (1 + 1/16) and some ulps.
        scale.ordinary = scale.byte - 8 < 0x76u && scale.k <= as_float(0x7f7fffffu);
    } else {
        scale.byte = ue8m0(mul(m, as_float(kOneSixth)));
        // 2^(127 - byte); byte is at most 253 for a finite t, so the power is normal.
        scale.k = mul(rstd, as_float((254u - scale.byte) << 23));
        // t <= the scale, so that |p * k| <= 6 and some ulps.
        scale.ordinary = scale.byte - 1 < 254u && scale.k <= as_float(0x7f7fffffu);
    }
    return scale;
}

template <class Config>
NQ_DEVICE float special_k(const Config& config, const BlockScale& scale) {
    if (config.scale_format == kE4m3) return (scale.byte & 0x7fu) == 0 ? 0.0f : clamp_finite(scale.k);
    return scale.byte == 0 ? 0.0f : scale.byte == 255 ? as_float(0x7fffffffu) : clamp_finite(scale.k);
}

}  // namespace normquant
