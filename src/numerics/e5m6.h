/* SPDX-License-Identifier: MIT
 * e5m6.h - a 12-bit format, the upper 12 bits of an f16: 1 sign, 5 exponent, 6 mantissa bits, bias 15.
 *   largest 0x7BF = 65024, smallest normal 0x040 = 2^-14, smallest subnormal 0x001 = 2^-20
 *   zeros 0x000 0x800, infinities 0x7C0 0xFC0, NaN above them in magnitude
 * From f32, for 2^-14 <= |value| < 65536: to nearest even; from 65280 on the result is infinite. Below
 * 2^-14, the rule of TileKernels, kept bit for bit: the magnitude is truncated to a multiple of 2^-20,
 * then one step is added if the low 17 bits of the *float's* mantissa (not of the truncated part) are
 * above half, or at half with an odd code. So the error there is up to 2^-20, and even tiny values can
 * become 2^-20. The casts never scale a value to 65536 or more; the same rule gives 0x7BF or 0x7C0 for it.
 * Infinity stays infinite, every NaN becomes 0x7FF. To f32: exact, every NaN becomes 0x7FFFFFFF.
 *
 * Eight codes take three 32-bit words, the first code in the highest bits:
 *   word 0   c0[11:0] c1[11:0] c2[11:4]
 *   word 1   c2[3:0] c3[11:0] c4[11:0] c5[11:8]
 *   word 2   c5[7:0] c6[11:0] c7[11:0] */
#ifndef TEGULA_NUMERICS_E5M6_H
#define TEGULA_NUMERICS_E5M6_H

#include "numerics/f16.h"

#define TGL_E5M6_MAX 65024.0f

TGL_INLINE uint16_t tgl_e5m6_from_f32(float value)
{
    const uint32_t bits = tgl_f32_to_bits(value);
    const uint32_t cut = tgl_f16_from_f32_rz(value) >> 4;
    const uint32_t code = cut + ((cut & 1) + (bits & 0x1FFFF) > 0x10000);
    return (uint16_t)tgl_select((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FF, code);
}

/* The same for a number below 65536 in magnitude. Truncated, a magnitude from 2^-14 on has the code of its
 * upper bits, a smaller one its multiple of 2^-20. In each range the other code is not larger, so the max
 * is right in both. */
TGL_INLINE uint16_t tgl_e5m6_from_small_f32(float value)
{
    const uint32_t bits = tgl_f32_to_bits(value);
    const int32_t magnitude = (int32_t)(bits & 0x7FFFFFFF);
    const int32_t below = magnitude < 0x38800000 ? magnitude : 0x38800000; /* 2^-14 */
    const int32_t normal = (magnitude >> 17) - (112 << 6);
    const int32_t subnormal = (int32_t)(tgl_f32_from_bits((uint32_t)below) * 0x1p20f);
    const uint32_t cut = (uint32_t)(normal > subnormal ? normal : subnormal);
    const uint32_t code = cut + ((cut & 1) + (bits & 0x1FFFF) > 0x10000);
    return (uint16_t)((bits >> 20 & 0x800) | code);
}

TGL_INLINE float tgl_e5m6_to_f32(uint16_t code) { return tgl_f16_to_f32((uint16_t)(code << 4)); }

TGL_INLINE void tgl_e5m6x8_pack(const uint16_t codes[8], uint32_t words[3])
{
    words[0] = (uint32_t)codes[0] << 20 | (uint32_t)codes[1] << 8 | codes[2] >> 4;
    words[1] = (uint32_t)codes[2] << 28 | (uint32_t)codes[3] << 16 | (uint32_t)codes[4] << 4 | codes[5] >> 8;
    words[2] = (uint32_t)codes[5] << 24 | (uint32_t)codes[6] << 12 | codes[7];
}

TGL_INLINE void tgl_e5m6x8_unpack(const uint32_t words[3], uint16_t codes[8])
{
    codes[0] = (uint16_t)(words[0] >> 20);
    codes[1] = (uint16_t)(words[0] >> 8 & 0xFFF);
    codes[2] = (uint16_t)((words[0] << 4 | words[1] >> 28) & 0xFFF);
    codes[3] = (uint16_t)(words[1] >> 16 & 0xFFF);
    codes[4] = (uint16_t)(words[1] >> 4 & 0xFFF);
    codes[5] = (uint16_t)((words[1] << 8 | words[2] >> 24) & 0xFFF);
    codes[6] = (uint16_t)(words[2] >> 12 & 0xFFF);
    codes[7] = (uint16_t)(words[2] & 0xFFF);
}

#endif
