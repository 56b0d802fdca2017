/* SPDX-License-Identifier: MIT
 * minifloat.h - the rounding that f16, e4m3, e5m2 and e2m1 share, and its inverse.
 *
 * A minifloat has a sign, an exponent field E with a bias and a mantissa field of M bits. Its value is
 *     (1 + mantissa / 2^M) * 2^(E - bias)      where E > 0 (normal)
 *     mantissa * 2^(1 - bias - M)              where E = 0 (subnormal)
 * so codes without their sign are in the order of their values: the next value up is code + 1.
 *
 * Both functions work on magnitudes; signs, NaN and the ends of the range are the formats' own.
 * mantissa_bits and bias are constants at every call, so that what is left is a dozen integer
 * operations, one float addition and two selects: no branch, no table. The addition never sees or makes
 * a number that flush-to-zero would change, so the results do not depend on that mode; they do need the
 * default rounding mode, nearest even. */
#ifndef TEGULA_NUMERICS_MINIFLOAT_H
#define TEGULA_NUMERICS_MINIFLOAT_H

#include "numerics/base.h"

/* The code nearest to a float, ties to the even code. `magnitude` is the float's bits without the sign;
 * not NaN, and not above the power of two that follows the format's largest value. */
TGL_INLINE uint32_t tgl_minifloat_from_magnitude(uint32_t magnitude, int mantissa_bits, int bias)
{
    const int drop = 23 - mantissa_bits;
    /* Normal: add half of what the dropped bits can hold, one less where the code is even, so that a
     * tie stays there. A carry runs into the exponent, as it should. */
    const uint32_t is_odd = magnitude >> drop & 1;
    const uint32_t half_down = (1u << (drop - 1)) - 1;
    const uint32_t rebias = (uint32_t)(127 - bias) << mantissa_bits;
    const uint32_t normal = ((magnitude + half_down + is_odd) >> drop) - rebias;
    /* Subnormal: the last bit of a float as large as the anchor is the format's smallest step, so that
     * the addition rounds. */
    const uint32_t anchor = (uint32_t)(151 - bias - mantissa_bits) << 23;
    const float sum = tgl_f32_from_bits(magnitude) + tgl_f32_from_bits(anchor);
    const uint32_t subnormal = tgl_f32_to_bits(sum) - anchor;
    const uint32_t min_normal = (uint32_t)(128 - bias) << 23;
    return tgl_select(magnitude < min_normal, subnormal, normal);
}

/* The bits of the float with the value of `code`, which has no sign and is not infinite or NaN. */
TGL_INLINE uint32_t tgl_minifloat_to_magnitude(uint32_t code, int mantissa_bits, int bias)
{
    const uint32_t normal = (code << (23 - mantissa_bits)) + ((uint32_t)(127 - bias) << 23);
    /* Subnormal: with E = 1 in its place the value is too large by exactly the smallest normal number. */
    const uint32_t min_normal = (uint32_t)(128 - bias) << 23;
    const float excess = tgl_f32_from_bits(normal + (1u << 23));
    const uint32_t subnormal = tgl_f32_to_bits(excess - tgl_f32_from_bits(min_normal));
    return tgl_select(code >> mantissa_bits == 0, subnormal, normal);
}

#endif
