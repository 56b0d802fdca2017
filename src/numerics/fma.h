/* SPDX-License-Identifier: MIT
 * fma.h - a * b + c rounded once, the same bits everywhere. If the CPU has no instruction for it (x86-64
 * without FMA3), fmaf() is a library call per element; this version vectorises.
 *
 * The product of two floats is exact in double; the sum with c is not, and rounding it to double and then
 * to float could round a tie the wrong way. So the sum is rounded to odd: if it is inexact, its last bit
 * is set, on the side of the true value, so that no tie is left (Boldo, Melquiond: "When double rounding
 * is odd"). */
#ifndef TEGULA_NUMERICS_FMA_H
#define TEGULA_NUMERICS_FMA_H

#include "numerics/base.h"

#ifdef __CUDACC__
TGL_INLINE float tgl_fma(float a, float b, float c) { return fmaf(a, b, c); }
#else
#include <math.h>

TGL_INLINE float tgl_fma_in_double(float a, float b, float c)
{
    const double product = (double)a * b, sum = product + c;
    /* the exact rounding error of the sum (Knuth's two-sum); not finite if the sum is not */
    const double of_c = sum - product, lost = (product - (sum - of_c)) + (c - of_c);
    uint64_t bits, lost_bits;
    memcpy(&bits, &sum, sizeof bits);
    memcpy(&lost_bits, &lost, sizeof lost_bits);
    const uint64_t is_inexact = (lost_bits << 1) - 1 < 0xFFE0000000000000u - 1; /* neither 0 nor infinite */
    /* if the error has the other sign, the true value is nearer to zero: one less in bits */
    const uint64_t is_nearer = is_inexact & (bits ^ lost_bits) >> 63;
    const uint64_t odd = (bits - is_nearer) | is_inexact;
    double rounded;
    memcpy(&rounded, &odd, sizeof rounded);
    return (float)rounded;
}

TGL_INLINE float tgl_fma(float a, float b, float c)
{
#if defined(__FMA__) || defined(__aarch64__)
    return fmaf(a, b, c);
#else
    return tgl_fma_in_double(a, b, c);
#endif
}
#endif
#endif
