/* SPDX-License-Identifier: MIT
 * bf16.h - bfloat16, the upper half of a float: 1 sign, 8 exponent, 7 mantissa bits, bias 127.
 *   largest 0x7F7F = 3.3895314e38, smallest normal 0x0080 = 2^-126, smallest subnormal 0x0001 = 2^-133
 *   zeros 0x0000 0x8000, infinities 0x7F80 0xFF80, NaN above them in magnitude
 * From f32: to nearest even, overflowing to infinity; every NaN becomes 0x7FFF. The same as
 * cvt.rn.bf16.f32. To f32: exact, a NaN keeps its sign and payload. */
#ifndef TEGULA_NUMERICS_BF16_H
#define TEGULA_NUMERICS_BF16_H

#include "numerics/base.h"

#define TGL_BF16_MAX 0x1.fep127f

TGL_INLINE uint16_t tgl_bf16_from_f32(float value)
{
    const uint32_t bits = tgl_f32_to_bits(value);
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FFF : rounded);
}

TGL_INLINE float tgl_bf16_to_f32(uint16_t code) { return tgl_f32_from_bits((uint32_t)code << 16); }

#endif
