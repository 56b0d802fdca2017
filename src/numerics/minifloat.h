/* SPDX-License-Identifier: MIT
 * minifloat.h - the rounding that f16, e4m3, e5m2 and e2m1 share, and its inverse.
 *
 * A minifloat has a sign, an exponent field E with a bias and a mantissa field of M bits. Its value is
 *     (1 + mantissa / 2^M) * 2^(E - bias)      where E > 0 (normal)
 *     mantissa * 2^(1 - bias - M)              where E = 0 (subnormal)
 * so codes without their sign are in the order of their values: the next value up is code + 1.
 *
 * Both functions work on magnitudes; each format handles signs, NaN and the ends of its range.
 * mantissa_bits and bias are constants at every call, which leaves a few integer operations and one float
 * addition: no branch, no table. The addition neither takes nor gives a number that flush-to-zero would
 * change, so the result does not depend on that mode; it does need the default rounding mode, nearest
 * even. */
#ifndef TEGULA_NUMERICS_MINIFLOAT_H
#define TEGULA_NUMERICS_MINIFLOAT_H

#include "numerics/base.h"

/* The code nearest to a float, ties to the even code. `magnitude` is the float's bits without the sign;
 * not NaN, and not above the power of two that follows the format's largest value.
 *
 * Codes with the same exponent, and subnormal codes, are one step apart. One step is the last bit of the
 * anchor, a float 2^(23 - M) times as large as that exponent. So adding the anchor rounds, and the sum's
 * last bits count steps. They are even for the anchor itself, so a tie goes to an even count, which is an
 * even code. A carry into the next exponent is the count 2^(M + 1), whose code is right as well. */
TGL_INLINE uint32_t tgl_minifloat_from_magnitude(uint32_t magnitude, int mantissa_bits, int bias)
{
    const int drop = 23 - mantissa_bits;
    const uint32_t min_normal = (uint32_t)(128 - bias) << 23, exponent = magnitude & 0x7F800000;
    const uint32_t power = exponent > min_normal ? exponent : min_normal;
    const uint32_t anchor = power + ((uint32_t)drop << 23);
    const float sum = tgl_f32_from_bits(magnitude) + tgl_f32_from_bits(anchor);
    const uint32_t steps = tgl_f32_to_bits(sum) & ((4u << mantissa_bits) - 1);
    return steps + (power >> drop) - (min_normal >> drop);
}

/* The bits of the float with the value of `code`, which has no sign and is neither infinite nor NaN. With
 * the exponent one higher, a normal code reads as twice its value: half of that is too much. A subnormal
 * code, read as if it were normal, is too large by the smallest normal number. The excess is the larger of
 * the two. */
TGL_INLINE uint32_t tgl_minifloat_to_magnitude(uint32_t code, int mantissa_bits, int bias)
{
    const int32_t half = (int32_t)(code << (23 - mantissa_bits)) + ((127 - bias) << 23);
    const int32_t min_normal = (128 - bias) << 23;
    const int32_t excess = half > min_normal ? half : min_normal;
    const float twice = tgl_f32_from_bits((uint32_t)half + (1u << 23));
    return tgl_f32_to_bits(twice - tgl_f32_from_bits((uint32_t)excess));
}

#endif
