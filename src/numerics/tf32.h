/* SPDX-License-Identifier: MIT
 * tf32.h - how tensor cores read floats: 1 sign, 8 exponent, 10 mantissa bits, bias 127. A tf32 is kept
 * as the float of the same value, its low 13 bits zero, so that reading it back takes no conversion.
 *   largest 0x7F7FE000 = 3.4011621e38, smallest normal 2^-126, smallest subnormal 0x00002000 = 2^-136
 * From f32: to nearest, ties away from zero, overflowing to infinity; every NaN becomes 0x7FFFE000. The
 * same as cvt.rna.tf32.f32, except for the low bits of a NaN, which PTX does not define. A tensor core
 * truncates an unrounded float, so operands are rounded first. */
#ifndef TEGULA_NUMERICS_TF32_H
#define TEGULA_NUMERICS_TF32_H

#include "numerics/base.h"

TGL_INLINE float tgl_tf32_from_f32(float value)
{
    const uint32_t bits = tgl_f32_to_bits(value);
    const uint32_t rounded = (bits + 0x1000) & 0xFFFFE000; /* infinity has no low bits to carry */
    return tgl_f32_from_bits(tgl_select((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFFE000, rounded));
}

#endif
