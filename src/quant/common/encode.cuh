/* SPDX-License-Identifier: MIT
 * encode.cuh - from f32 to codes, for the kernels of all casts: the bits of src/numerics in fewer
 * instructions. */
#ifndef TEGULA_QUANT_ENCODE_CUH
#define TEGULA_QUANT_ENCODE_CUH

#include "device/ptx.cuh"
#include "quant/common/scale.h"

/* ---- codes of scaled values ---- */

/* Four in a word, the first in the lowest byte. */
DEV u32 encode_e4m3x4(float a, float b, float c, float d)
{
#if __CUDA_ARCH__ >= 890
    return pack_e4m3(a, b) | pack_e4m3(c, d) << 16;
#else
    return tgl_e4m3_from_f32(a) | (u32)tgl_e4m3_from_f32(b) << 8 | (u32)tgl_e4m3_from_f32(c) << 16 |
           (u32)tgl_e4m3_from_f32(d) << 24;
#endif
}

/* tgl_e2m1_from_f32() (numerics/minifloat.h says why the addition rounds). fminf() makes NaN +6. */
DEV u32 encode_e2m1(float value)
{
    const float v = fmaxf(fminf(value, TGL_E2M1_MAX), -TGL_E2M1_MAX), a = fabsf(v);
    const u32 power = max(__float_as_uint(a), 0x3F800000u) & 0x7F800000;
    const u32 sum = __float_as_uint(fmaf(__uint_as_float(power), 0x1p22f, a));
    return ((sum & 7) + ((power - 0x3F800000) >> 22)) | (__float_as_uint(v) >> 28 & 8);
}

/* COUNT codes, the first in the lowest bits. */
template <int COUNT> DEV u32 encode_e2m1s(const float *v)
{
    u32 codes = 0;
#pragma unroll
    for (int j = 0; j < COUNT; j++) codes |= encode_e2m1(v[j]) << (4 * j);
    return codes;
}

/* COUNT codes of e4m3 or e2m1, in words. */
template <int FORMAT_, int COUNT> DEV void encode_values(const float *v, u32 *w)
{
    enum { EACH = FORMAT_ == TGL_FORMAT_E4M3 ? 4 : 8 };
#pragma unroll
    for (int i = 0; i < COUNT; i += EACH) {
        if constexpr (FORMAT_ == TGL_FORMAT_E2M1) w[i / 8] = encode_e2m1s<(COUNT < 8 ? COUNT : 8)>(v + i);
        else if constexpr (COUNT == 1) w[0] = encode_e4m3x4(v[0], 0, 0, 0);
        else w[i / 4] = encode_e4m3x4(v[i], v[i + 1], v[i + 2], v[i + 3]);
    }
}

/* Stores 1, 2, 4, 8 or 16 bytes of words; `to` is aligned to all of them. */
template <int BYTES> DEV void store_words(void *to, const u32 *w)
{
    if constexpr (BYTES == 1) *(u8 *)to = (u8)w[0];
    else if constexpr (BYTES == 2) *(u16 *)to = (u16)w[0];
    else if constexpr (BYTES == 4) *(u32 *)to = w[0];
    else if constexpr (BYTES == 8) *(uint2 *)to = make_uint2(w[0], w[1]);
    else *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
}

/* Encodes and stores them. */
template <int FORMAT_, int COUNT> DEV void store_codes(void *to, const float (&v)[COUNT])
{
    enum { BYTES = FORMAT_ == TGL_FORMAT_E4M3 ? COUNT : COUNT / 2 };
    u32 w[(BYTES + 3) / 4];
    encode_values<FORMAT_, COUNT>(v, w);
    store_words<BYTES>(to, w);
}

#if __CUDA_ARCH__ >= 900
/* Codes of e2m1 of two scaled values that are exact in bf16, without signs. Adding the anchor and subtracting
 * it leaves the rounded value. Times 2^-126, bf16's smallest normal number (e2m1's is 1), its bits are the
 * code, from bit 6 on, with zeros around. */
DEV u32 round_e2m1_bf16x2(u32 v)
{
    const u32 a = min_u16x2(v & 0x7FFF7FFF, 0x40C040C0 /* 6 */);
    const u32 power = max_u16x2(a, 0x3F803F80 /* 1 */) & 0x7F807F80;
    const u32 sum = fma_bf16x2(power, 0x42804280 /* 2^6 */, a);
    const u32 anchor = fma_bf16x2(power, 0x83808380 /* -2^6 * 2^-126 */, 0x80008000);
    return fma_bf16x2(sum, 0x00800080 /* 2^-126 */, anchor);
}

/* Four codes of two such pairs, in 16 bits. */
DEV u32 encode_e2m1x4_bf16(u32 v0, u32 v1)
{
    const u32 codes = (round_e2m1_bf16x2(v0) >> 6) + (round_e2m1_bf16x2(v1) << 2); /* bytes 0, 2, 1, 3 */
    const u32 signed_codes = codes | (v0 >> 12 & 0x00080008) | (v1 >> 4 & 0x08000800);
    return signed_codes | signed_codes >> 12; /* odd ones to the upper nibbles */
}

/* Eight codes of bf16 times a power of two, 0 or infinity: exact, or so small that the code is 0. */
DEV u32 encode_e2m1x8_bf16(const u32 (&pairs)[4], float inv)
{
    const u32 factor = __byte_perm(__float_as_uint(inv), 0, 0x3232);
    u32 v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = fma_bf16x2(pairs[j], factor, 0x80008000u /* -0 */);
    return __byte_perm(encode_e2m1x4_bf16(v[0], v[1]), encode_e2m1x4_bf16(v[2], v[3]), 0x5410);
}
#endif

/* ---- codes from codes with a factor that is a power of two ---- */

#if __CUDA_ARCH__ >= 900
/* Eight codes of e4m3 as f16, without their signs: pair j has codes j and j + 4. NaN is 0x7FFF. */
DEV void e4m3x8_to_f16x2(u32 codes0, u32 codes1, u32 (&pairs)[4])
{
    const u32 front = __byte_perm(codes0, codes1, 0x5140) & 0x7F7F7F7F; /* 0, 4, 1, 5 */
    const u32 back = __byte_perm(codes0, codes1, 0x7362) & 0x7F7F7F7F;  /* 2, 6, 3, 7 */
    pairs[0] = widen_e4m3(front);
    pairs[1] = widen_e4m3_high(front);
    pairs[2] = widen_e4m3(back);
    pairs[3] = widen_e4m3_high(back);
}

/* Eight codes of e2m1 from such pairs times a factor (two f16); no product v exceeds 6. A code is 2 v below
 * 2, v + 2 from 2 to 4, then v / 2 + 4, rounded to an integer: the min of the three. f16 from 1024 on are
 * integers, so adding 1024 rounds, to even. */
DEV u32 encode_e2m1x8_f16(const u32 (&pairs)[4], u32 factor)
{
    u32 codes = 0;
#pragma unroll
    for (int j = 3; j >= 0; j--) {
        const u32 first = fma_f16x2(pairs[j], factor + 0x04000400, 0x64006400 /* 1024 */);
        const u32 second = fma_f16x2(pairs[j], factor, 0x64026402);
        const u32 third = fma_f16x2(pairs[j], factor - 0x04000400, 0x64046404);
        codes = codes * 16 + min_u16x2(min_u16x2(first, second), third);
    }
    return codes - 0x64006400u * 0x1111; /* the 1024 of each pair */
}

/* The signs of eight codes of e4m3, at the sign bits of e2m1. */
DEV u32 signs_of_e4m3x8(u32 codes0, u32 codes1)
{
    const u32 even = __byte_perm(codes0, codes1, 0x6420), odd = __byte_perm(codes0, codes1, 0x7531);
    return ((even >> 4 & 0x0F0F0F0F) | (odd & 0xF0F0F0F0)) & 0x88888888;
}
#endif

/* Codes 0 .. 7 times 2^exponent, a byte each: a normal code, 2 or more, moves by 2 per power. Entries for
 * values above 6 are not used. */
typedef struct { u32 low, high; } e2m1_table;
DEV e2m1_table scaled_e2m1(i32 exponent)
{
    const u32 up = 0x02020202u * (u32)min(max(exponent, 0), 4);
    e2m1_table t = { 0x03020000 + (up & 0xFFFFFF00), 0x07060504 + up };
    if (exponent == 0) t.low = 0x03020100;
    if (exponent < 0) {
        t.low = exponent == -1 ? 0x02010000 : exponent == -2 ? 0x01000000 : 0;
        t.high = exponent == -1   ? 0x05040302
                 : exponent == -2 ? 0x03020201
                 : exponent == -3 ? 0x02010100
                 : exponent == -4 ? 0x01000000
                                  : 0;
    }
    return t;
}

/* Eight codes by this table; signs stay. */
DEV u32 map_e2m1x8(u32 codes, e2m1_table t)
{
    const u32 magnitudes = codes & 0x77777777;
    u32 first = __byte_perm(t.low, t.high, magnitudes), second = __byte_perm(t.low, t.high, magnitudes >> 16);
    first += first >> 4; /* bytes 0 and 2 have two codes */
    second += second >> 4;
    return __byte_perm(first, second, 0x6420) | (codes & 0x88888888);
}

/* The same to codes of e4m3, which has all of these numbers from 2^-6 on: exponent >= -5; above 16 it counts
 * as 16. */
DEV e2m1_table e2m1_scaled_to_e4m3(i32 exponent)
{
    const u32 one = (u32)(min(exponent, 16) + 7) * 8; /* the code of 2^exponent */
    return { one * 0x01010100 + 0x04000000 - 0x0800, one * 0x01010101 + 0x14100C08 };
}

/* Eight codes by this table, as two words; signs stay. */
DEV void map_e2m1x8_to_e4m3(u32 codes, e2m1_table t, u32 &first, u32 &second)
{
    const u32 magnitudes = codes & 0x77777777, even = codes << 4; /* signs in bits 7 of bytes */
    first = __byte_perm(t.low, t.high, magnitudes) | (__byte_perm(even, codes, 0x5140) & 0x80808080);
    second = __byte_perm(t.low, t.high, magnitudes >> 16) | (__byte_perm(even, codes, 0x7362) & 0x80808080);
}

/* ---- codes of e5m6 ---- */

/* Two values: 24 bits, the code of a in the upper ones. A code is the upper 12 bits of the f16 rounded toward
 * zero, plus one if the lowest 17 bits of the float are above half, or half and the code is odd. NaN stays
 * 0x7FF. */
DEV u32 encode_e5m6x2(float a, float b)
{
    const u32 cut = pack_f16_rz(b, a) >> 4, bits_a = __float_as_uint(a), bits_b = __float_as_uint(b);
#if __CUDA_ARCH__ >= 900
    const u32 halves = __byte_perm(bits_b, bits_a, 0x7632);                       /* their bits 0 */
    const u32 rests = min_u16x2(__byte_perm(bits_b, bits_a, 0x5410), 0x00010001); /* any bit below? */
    const u32 steps = halves & (rests | cut) & 0x00010001;
    const u32 codes = min_u16x2((cut & 0x07FF07FF) + steps, 0x07FF07FF) | (cut & 0x08000800);
    return (codes >> 4 & 0xFFF000) | (codes & 0xFFF);
#else
    const u32 cut_a = cut >> 16, cut_b = cut & 0xFFF;
    const u32 code_a = a == a ? cut_a + ((cut_a & 1) + (bits_a & 0x1FFFF) > 0x10000) : 0x7FF;
    const u32 code_b = b == b ? cut_b + ((cut_b & 1) + (bits_b & 0x1FFFF) > 0x10000) : 0x7FF;
    return code_a << 12 | code_b;
#endif
}

#if __CUDA_ARCH__ >= 900
/* The same without NaN; the bits above these 24 are garbage. Bits 0 and 16 of `halves` are bit 16 of a and b;
 * those of `rests` say whether a lower bit is set. The code of a comes from the lower half, with four bits of
 * b above it. */
DEV u32 encode_e5m6x2_numbers(float a, float b, u32 halves, u32 rests)
{
    const u32 cut = pack_f16_rz(a, b) >> 4, codes = cut + (halves & (rests | cut) & 0x00010001);
    return codes * 4096 + (codes >> 16);
}
DEV u32 encode_e5m6x2_numbers(float a, float b)
{
    const u32 bits_a = __float_as_uint(a), bits_b = __float_as_uint(b);
    return encode_e5m6x2_numbers(a, b, __byte_perm(bits_a, bits_b, 0x7632),
                                 min_u16x2(__byte_perm(bits_a, bits_b, 0x5410), 0x00010001));
}
#endif

/* Eight codes in three words, the first in the highest bits, from four pairs of 24 bits; the bits above are
 * ignored. */
DEV void join_e5m6x8(const u32 *pairs, u32 (&w)[3])
{
    w[0] = __byte_perm(pairs[0], pairs[1], 0x2106); /* bytes 2 1 0 of the first, 2 of the second */
    w[1] = __byte_perm(pairs[1], pairs[2], 0x1065);
    w[2] = __byte_perm(pairs[2], pairs[3], 0x0654);
}
DEV void encode_e5m6x8(const float *v, u32 (&w)[3])
{
    u32 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = encode_e5m6x2(v[2 * i], v[2 * i + 1]);
    join_e5m6x8(pairs, w);
}

/* The first or second four of eight codes: an outer word and half of the middle one. */
DEV void join_e5m6x4(const u32 *pairs, bool is_second, u32 &word, u32 &half)
{
    word = __byte_perm(pairs[0], pairs[1], is_second ? 0x0654 : 0x2106);
    half = __byte_perm(pairs[0], pairs[1], is_second ? 0x7721 : 0x7754);
}

#endif
