/* SPDX-License-Identifier: MIT
 * e4m3.h - FP8 e4m3fn (OCP OFP8): 1 sign, 4 exponent, 3 mantissa bits, bias 7.
 *   largest 0x7E = 448, smallest normal 0x08 = 2^-6, smallest subnormal 0x01 = 2^-9
 *   zeros 0x00 0x80, no infinities, NaN 0x7F 0xFF
 * From f32: to nearest even, saturating: from 448 on, and for infinities, 0x7E or 0xFE; every NaN becomes
 * 0x7F. The same as cvt.rn.satfinite.e4m3x2.f32 (sm_89 and newer). To f32: exact, every NaN becomes
 * 0x7FFFFFFF. */
#ifndef TEGULA_NUMERICS_E4M3_H
#define TEGULA_NUMERICS_E4M3_H

#include "numerics/minifloat.h"

#define TGL_E4M3_MAX 448.0f

TGL_INLINE uint8_t tgl_e4m3_from_f32(float value)
{
    const uint32_t bits = tgl_f32_to_bits(value), magnitude = bits & 0x7FFFFFFF;
    const uint32_t sign = bits >> 24 & 0x80;
    const uint32_t capped = magnitude < 0x43E00000 ? magnitude : 0x43E00000; /* 448 */
    const uint32_t code = sign | tgl_minifloat_from_magnitude(capped, 3, 7);
    return (uint8_t)tgl_select(magnitude > 0x7F800000, 0x7F, code);
}

/* The same without saturation: for a number below 464 in magnitude, which rounds to 448 at most. */
TGL_INLINE uint8_t tgl_e4m3_from_small_f32(float value)
{
    const uint32_t bits = tgl_f32_to_bits(value);
    return (uint8_t)((bits >> 24 & 0x80) | tgl_minifloat_from_magnitude(bits & 0x7FFFFFFF, 3, 7));
}

/* For a code that is not NaN. */
TGL_INLINE float tgl_e4m3_number_to_f32(uint8_t code)
{
    const uint32_t sign = (uint32_t)(code & 0x80) << 24;
    return tgl_f32_from_bits(sign | tgl_minifloat_to_magnitude(code & 0x7F, 3, 7));
}

TGL_INLINE float tgl_e4m3_to_f32(uint8_t code)
{
    const uint32_t number = tgl_f32_to_bits(tgl_e4m3_number_to_f32(code));
    return tgl_f32_from_bits(tgl_select((code & 0x7F) == 0x7F, 0x7FFFFFFF, number));
}

#endif
