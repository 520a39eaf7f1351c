// Fixed-width types, function decorations, and the few constants every kernel header needs. NVRTC has no <cstdint>, and nothing
// here includes the toolkit: a kernel compiles with libnvrtc alone.
#pragma once

#if defined(__CUDACC_RTC__)
#define NQ_DEVICE __device__ __forceinline__
#define NQ_CONSTEXPR __host__ __device__ constexpr
#define NQ_UNROLL _Pragma("unroll")
#define NQ_UNROLL_TURNS _Pragma("unroll Config::kTurnUnroll")
#else
#define NQ_DEVICE inline
#define NQ_CONSTEXPR constexpr
#define NQ_UNROLL
#define NQ_UNROLL_TURNS
#endif

namespace normquant {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "LP64 or LLP64");

// Values of the C API's enumerations.
enum DType : u32 { kFp16 = 0, kBf16 = 1, kFp32 = 2 };
enum ScaleFormat : u32 { kE4m3 = 0, kUe8m0 = 1 };

// How a target turns fp32 into E2M1; all three give the same codes.
enum Fp4Path : u32 {
    kFp4Native = 0,  // cvt.rn.satfinite.e2m1x2.f32
    kFp4Packed = 1,  // two values at a time in bf16x2, where min.u16x2 is one instruction
    kFp4Scalar = 2,  // one fma a value
};

constexpr u32 kGranule = 16;  // elements: two 128-bit loads, one 64-bit FP4 store

}  // namespace normquant
