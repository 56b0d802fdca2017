/* SPDX-License-Identifier: MIT
 * e2m1.h - FP4 e2m1fn (OCP MX): 1 sign, 2 exponent, 1 mantissa bit, bias 1; 4 bits in all.
 *   the magnitudes of codes 0..7: 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign
 *   zeros 0x0 0x8, no infinities, no NaN
 * From f32: to nearest, ties to the even code, saturating: above 6, and for infinities, 0x7 or 0xF; every
 * NaN becomes 0x7 (+6). The same as cvt.rn.satfinite.e2m1x2.f32 (sm_100a and newer). To f32: exact. A byte
 * holds two codes, the one of even index in its low nibble. */
#ifndef TEGULA_NUMERICS_E2M1_H
#define TEGULA_NUMERICS_E2M1_H

#include "numerics/minifloat.h"

#define TGL_E2M1_MAX 6.0f

TGL_INLINE uint8_t tgl_e2m1_from_f32(float value)
{
    const uint32_t bits = tgl_f32_to_bits(value), magnitude = bits & 0x7FFFFFFF;
    const uint32_t sign = bits >> 28 & 0x8;
    const uint32_t capped = magnitude < 0x40C00000 ? magnitude : 0x40C00000; /* 6 */
    const uint32_t code = sign | tgl_minifloat_from_magnitude(capped, 1, 1);
    return (uint8_t)tgl_select(magnitude > 0x7F800000, 0x7, code);
}

/* The same without saturation: for a number below 7 in magnitude, which rounds to 6 at most. */
TGL_INLINE uint8_t tgl_e2m1_from_small_f32(float value)
{
    const uint32_t bits = tgl_f32_to_bits(value);
    return (uint8_t)((bits >> 28 & 0x8) | tgl_minifloat_from_magnitude(bits & 0x7FFFFFFF, 1, 1));
}

/* The high nibble of `code` is ignored, so the low element of a pair needs no mask. */
TGL_INLINE float tgl_e2m1_to_f32(uint8_t code)
{
    const uint32_t sign = (uint32_t)(code & 0x8) << 28;
    return tgl_f32_from_bits(sign | tgl_minifloat_to_magnitude(code & 0x7, 1, 1));
}

/* The same as bf16, with integers only: 0.5 plus the code in steps of 1 << 6, except for code 1, which is 0.5
 * itself (with a step it would be 0.75). */
TGL_INLINE uint16_t tgl_e2m1_to_bf16(uint8_t code)
{
    const uint16_t magnitude = code & 0x7, sign = (uint16_t)((code & 0x8) << 12);
    const uint16_t base = magnitude > 0 ? 0x3F00 : 0;
    const uint16_t steps = (uint16_t)(magnitude > 1 ? magnitude << 6 : 0);
    return (uint16_t)(sign | (base + steps));
}

TGL_INLINE uint8_t tgl_e2m1x2_from_f32(float even, float odd)
{
    return (uint8_t)(tgl_e2m1_from_f32(even) | tgl_e2m1_from_f32(odd) << 4);
}

TGL_INLINE float tgl_e2m1x2_even_to_f32(uint8_t pair) { return tgl_e2m1_to_f32(pair); }
TGL_INLINE float tgl_e2m1x2_odd_to_f32(uint8_t pair) { return tgl_e2m1_to_f32((uint8_t)(pair >> 4)); }

#endif
