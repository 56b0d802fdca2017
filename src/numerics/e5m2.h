/* SPDX-License-Identifier: MIT
 * e5m2.h - FP8 e5m2 (OCP OFP8), the upper byte of an f16: 1 sign, 5 exponent, 2 mantissa bits, bias 15.
 *   largest 0x7B = 57344, smallest normal 0x04 = 2^-14, smallest subnormal 0x01 = 2^-16
 *   zeros 0x00 0x80, infinities 0x7C 0xFC, NaN 0x7D..0x7F 0xFD..0xFF
 * From f32: to nearest even, saturating: from 57344 on, and for infinities, 0x7B or 0xFB; every NaN
 * becomes 0x7F. The same as cvt.rn.satfinite.e5m2x2.f32 (sm_89 and newer); the code of infinity is read
 * but never written. To f32: exact, every NaN becomes 0x7FFFFFFF. */
#ifndef TEGULA_NUMERICS_E5M2_H
#define TEGULA_NUMERICS_E5M2_H

#include "numerics/f16.h"

#define TGL_E5M2_MAX 57344.0f

TGL_INLINE uint8_t tgl_e5m2_from_f32(float value)
{
    const uint32_t bits = tgl_f32_to_bits(value), magnitude = bits & 0x7FFFFFFF;
    const uint32_t sign = bits >> 24 & 0x80;
    const uint32_t capped = magnitude < 0x47600000 ? magnitude : 0x47600000; /* 57344 */
    const uint32_t code = sign | tgl_minifloat_from_magnitude(capped, 2, 15);
    return (uint8_t)tgl_select(magnitude > 0x7F800000, 0x7F, code);
}

TGL_INLINE float tgl_e5m2_to_f32(uint8_t code) { return tgl_f16_to_f32((uint16_t)(code << 8)); }

#endif
