// The number formats of the CPU reference, each conversion written the way its definition reads. Integer arithmetic on
// the bits: no result depends on the rounding mode, on flush-to-zero or on FMA hardware.
#pragma once

#include <cstdint>

namespace nq::numerics {

// 16-bit inputs. To 16 bits: round-to-nearest-even, subnormals kept, overflow gives infinity, every NaN gives 0x7FFF.
float from_fp16(std::uint16_t bits);
float from_bf16(std::uint16_t bits);
std::uint16_t to_fp16(float value);
std::uint16_t to_bf16(float value);

// E2M1 (FP4): 0, .5, 1, 1.5, 2, 3, 4, 6; ties to the even code, saturating; bit 3 is the sign, kept for zero; NaN ->
// 0x7.
std::uint8_t to_e2m1(float value);
float from_e2m1(std::uint8_t code);

// E4M3: round-to-nearest-even, saturating (also infinity) to 448 = 0x7E; bit 7 is the sign; NaN -> 0x7F.
std::uint8_t to_e4m3(float value);
float from_e4m3(std::uint8_t code);

// UE8M0: ceil(log2(value)) + 127, at least 0; infinity and NaN -> 255.
std::uint8_t to_ue8m0(float value);
float from_ue8m0(std::uint8_t code);

// 1 / sqrt(value), correctly rounded. 0 -> infinity, infinity -> 0, NaN and negative values -> NaN.
float rsqrt(float value);

// value * 2^exponent with one rounding.
float scale_by_power_of_two(float value, int exponent);

}  // namespace nq::numerics
