/* SPDX-License-Identifier: MIT
 * f16.h - IEEE binary16: 1 sign, 5 exponent, 10 mantissa bits, bias 15.
 *   largest 0x7BFF = 65504, smallest normal 0x0400 = 2^-14, smallest subnormal 0x0001 = 2^-24
 *   zeros 0x0000 0x8000, infinities 0x7C00 0xFC00, NaN above them in magnitude
 * From f32: to nearest even (infinite from 65520 on), or toward zero (finite values stay finite); every
 * NaN becomes 0x7FFF. The same as cvt.rn.f16.f32 and cvt.rz.f16.f32. To f32: exact, every NaN becomes
 * 0x7FFFFFFF. */
#ifndef TEGULA_NUMERICS_F16_H
#define TEGULA_NUMERICS_F16_H

#include "numerics/minifloat.h"

#define TGL_F16_MAX 65504.0f

TGL_INLINE uint16_t tgl_f16_from_f32(float value)
{
    const uint32_t bits = tgl_f32_to_bits(value), magnitude = bits & 0x7FFFFFFF;
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t capped = magnitude < 0x47800000 ? magnitude : 0x47800000; /* 65536 codes as inf */
    const uint32_t code = sign | tgl_minifloat_from_magnitude(capped, 10, 15);
    return (uint16_t)tgl_select(magnitude > 0x7F800000, 0x7FFF, code);
}

TGL_INLINE uint16_t tgl_f16_from_f32_rz(float value)
{
    const uint32_t bits = tgl_f32_to_bits(value), magnitude = bits & 0x7FFFFFFF;
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t capped = magnitude < 0x477FFFFF ? magnitude : 0x477FFFFF; /* just below 65536 */
    const uint32_t normal = (capped >> 13) - (112 << 10);
    const uint32_t below = capped < 0x38800000 ? capped : 0x38800000; /* 2^-14: the int is small */
    const uint32_t subnormal = (uint32_t)(int32_t)(tgl_f32_from_bits(below) * 0x1p24f);
    const uint32_t finite = sign | tgl_select(capped < 0x38800000, subnormal, normal);
    const uint32_t code = tgl_select(magnitude == 0x7F800000, sign | 0x7C00, finite);
    return (uint16_t)tgl_select(magnitude > 0x7F800000, 0x7FFF, code);
}

TGL_INLINE float tgl_f16_to_f32(uint16_t code)
{
    const uint32_t sign = (uint32_t)(code & 0x8000) << 16, magnitude = code & 0x7FFF;
    const uint32_t finite = sign | tgl_minifloat_to_magnitude(magnitude, 10, 15);
    const uint32_t bits = tgl_select(magnitude == 0x7C00, sign | 0x7F800000, finite);
    return tgl_f32_from_bits(tgl_select(magnitude > 0x7C00, 0x7FFFFFFF, bits));
}

#endif
