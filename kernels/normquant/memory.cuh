// Global memory: 128- and 256-bit loads, FP4 and scale stores; 128-bit accesses of shared memory. Global loads are volatile asm so that a
// row that is read twice is read twice, and so that all loads of a thread are issued before their first use, in the order written.
#pragma once

#include <normquant/intrinsics.cuh>
#include <normquant/params.h>

namespace normquant {

#if defined(__CUDACC_RTC__)

NQ_DEVICE void load_128(u32* d, const void* address) {
    asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "l"(address));
}
NQ_DEVICE void load_256(u32* d, const void* address) {
    asm volatile("ld.global.nc.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]), "=r"(d[7])
                 : "l"(address));
}
// Of what is written while this kernel runs: by itself, or by one that it overlaps with.
NQ_DEVICE void load_written_128(u32* d, const void* address) {
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "l"(address)
                 : "memory");
}
NQ_DEVICE void load_written_256(u32* d, const void* address) {
    asm volatile("ld.global.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]), "=r"(d[7])
                 : "l"(address)
                 : "memory");
}
NQ_DEVICE u32 load_32(const void* address) {
    u32 d;
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(d) : "l"(address));
    return d;
}
NQ_DEVICE u32 load_written_32(const void* address) {
    u32 d;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(d) : "l"(address) : "memory");
    return d;
}
NQ_DEVICE void prefetch(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }
// The value's origin is hidden from the compiler: what was derived from it before is computed again, not kept in registers.
NQ_DEVICE void forget_origin(u32& v) { asm volatile("" : "+r"(v)); }
NQ_DEVICE void store_128(void* address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
NQ_DEVICE void store_64(void* address, u32 a, u32 b) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(a), "r"(b) : "memory");
}
NQ_DEVICE void store_32(void* address, u32 v) { asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(v) : "memory"); }
NQ_DEVICE void store_8(void* address, u32 v) { asm volatile("st.global.b8 [%0], %1;" ::"l"(address), "r"(v) : "memory"); }

NQ_DEVICE void load_shared_128(u32* d, const void* address) {
    const uint4 v = *static_cast<const uint4*>(address);
    d[0] = v.x, d[1] = v.y, d[2] = v.z, d[3] = v.w;
}
NQ_DEVICE void store_shared_128(void* address, const u32* v) { *static_cast<uint4*>(address) = make_uint4(v[0], v[1], v[2], v[3]); }

#else

// Typed accesses, so that UBSan checks the alignment the instruction needs.
struct alignas(16) Chunk128 { u32 words[4]; };
struct alignas(32) Chunk256 { u32 words[8]; };
struct alignas(8) Chunk64 { u32 words[2]; };

NQ_DEVICE void load_128(u32* d, const void* address) {
    const Chunk128 chunk = *static_cast<const Chunk128*>(address);
    for (u32 i = 0; i < 4; ++i) d[i] = chunk.words[i];
}
NQ_DEVICE void load_256(u32* d, const void* address) {
    const Chunk256 chunk = *static_cast<const Chunk256*>(address);
    for (u32 i = 0; i < 8; ++i) d[i] = chunk.words[i];
}
NQ_DEVICE void load_written_128(u32* d, const void* address) { load_128(d, address); }
NQ_DEVICE void load_written_256(u32* d, const void* address) { load_256(d, address); }
NQ_DEVICE u32 load_32(const void* address) { return *static_cast<const u32*>(address); }
NQ_DEVICE u32 load_written_32(const void* address) { return load_32(address); }
NQ_DEVICE void prefetch(const void* address) { static_cast<void>(*static_cast<const volatile u8*>(address)); }
NQ_DEVICE void forget_origin(u32&) {}
NQ_DEVICE void load_shared_128(u32* d, const void* address) { load_128(d, address); }
NQ_DEVICE void store_shared_128(void* address, const u32* v) { *static_cast<Chunk128*>(address) = {{v[0], v[1], v[2], v[3]}}; }

NQ_DEVICE void store_128(void* address, u32 a, u32 b, u32 c, u32 d) { *static_cast<Chunk128*>(address) = {{a, b, c, d}}; }
NQ_DEVICE void store_64(void* address, u32 a, u32 b) { *static_cast<Chunk64*>(address) = {{a, b}}; }
NQ_DEVICE void store_32(void* address, u32 v) { *static_cast<u32*>(address) = v; }
NQ_DEVICE void store_8(void* address, u32 v) { *static_cast<u8*>(address) = static_cast<u8>(v); }

#endif

// kWords words (4 or 8 of 16-bit elements, up to 16 of fp32) from a 16-byte aligned address, of what this kernel writes as well.
template <u32 kWords>
NQ_DEVICE void load_written_words(u32* d, const void* address) {
    NQ_UNROLL
    for (u32 i = 0; i < kWords; i += 4) load_written_128(d + i, byte_offset(address, 4 * i));
}

// The same of an input, and a word of one. Only one that nobody writes while the kernel runs may come through the read-only path.
template <u32 kWords, class Config>
NQ_DEVICE void load_words(const Config& config, u32* d, const void* address) {
    if (config.load_bytes == 32 && kWords % 8 == 0) {
        NQ_UNROLL
        for (u32 i = 0; i < kWords; i += 8) {
            if (config.overlap) {
                load_written_256(d + i, byte_offset(address, 4 * i));
            } else {
                load_256(d + i, byte_offset(address, 4 * i));
            }
        }
    } else if (config.overlap) {
        load_written_words<kWords>(d, address);
    } else {
        NQ_UNROLL
        for (u32 i = 0; i < kWords; i += 4) load_128(d + i, byte_offset(address, 4 * i));
    }
}

template <class Config>
NQ_DEVICE u32 load_word(const Config& config, const void* address) {
    return config.overlap ? load_written_32(address) : load_32(address);
}

template <u32 kWords>
NQ_DEVICE void store_words(void* address, const u32* d) {
    NQ_UNROLL
    for (u32 i = 0; i < kWords; i += 4) store_128(byte_offset(address, 4 * i), d[i], d[i + 1], d[i + 2], d[i + 3]);
}

// Element i of packed 16-bit values.
NQ_DEVICE float unpack(u32 dtype, const u32* words, u32 i) {
    const u32 word = words[i / 2];
    if (dtype == kBf16) return as_float(i % 2 ? word & 0xffff0000u : word << 16);
    return half_to_float(i % 2 ? word >> 16 : word & 0xffffu);
}

}  // namespace normquant
