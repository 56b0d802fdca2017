/* SPDX-License-Identifier: MIT
 * lossless.h - an e2m1 code times a power of two as an e4m3 code, for C and CUDA. */
#ifndef TEGULA_QUANT_LOSSLESS_H
#define TEGULA_QUANT_LOSSLESS_H

#include "quant/common/scale.h"

/* The factor's code of a block; `largest` is the largest code of its parts. That part is shifted by 6, so
 * that its 6 becomes 384, e4m3's largest number with two significant bits; but the code is at least 1. */
TGL_INLINE int tgl_lossless_sf(int largest) { return largest - 6 > 1 ? largest - 6 : 1; }

/* code * 2^shift, exact: e4m3 numbers with one bit of mantissa, from 0.5 * 2^-5 = 2^-6, the smallest normal
 * one, to 6 * 2^6. e2m1 codes are e4m3 codes without the two lower mantissa bits and with another bias,
 * except for 0.5, which is subnormal in e2m1: its code would mean 0.75. */
#define TGL_LOSSLESS_MIN_SHIFT -5
#define TGL_LOSSLESS_MAX_SHIFT 6
TGL_INLINE uint8_t tgl_lossless_exact(uint32_t code, int shift)
{
    const uint32_t magnitude = code & 7, sign = (code & 8) << 4;
    const uint32_t normal = 0x30 + 4 * magnitude + 8 * (uint32_t)shift - (magnitude == 1 ? 4 : 0);
    return (uint8_t)(sign | (magnitude == 0 ? 0 : normal));
}

/* The shift of a part with code `part` in a block with code `sf`. Code 0 means a factor of 0.0: the part has
 * only zeros, and a shift below all others. */
#define TGL_LOSSLESS_ZEROS (-256)
TGL_INLINE int tgl_lossless_shift(int part, int sf) { return part ? part - sf : TGL_LOSSLESS_ZEROS; }

/* code * 2^shift for any shift up to 6, rounded to nearest even below -5. */
TGL_INLINE float tgl_lossless_value(uint32_t code, int shift)
{
    const int bounded = shift > -32 ? shift : -32; /* rounds to zero */
    const uint32_t power = shift == TGL_LOSSLESS_ZEROS ? 0 : (uint32_t)(127 + bounded) << 23;
    return tgl_e2m1_to_f32((uint8_t)code) * tgl_f32_from_bits(power);
}

TGL_INLINE uint8_t tgl_lossless(uint32_t code, int shift)
{
    return tgl_e4m3_from_small_f32(tgl_lossless_value(code, shift));
}

/* Does that change the value? Never from -8 on: e4m3's subnormal numbers go down to 0.5 * 2^-8. */
TGL_INLINE int tgl_lossless_changes(uint32_t code, int shift)
{
    return tgl_e4m3_to_f32(tgl_lossless(code, shift)) != tgl_lossless_value(code, shift);
}

#endif
