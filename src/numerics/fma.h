/* SPDX-License-Identifier: MIT
 * fma.h - a * b + c rounded once, the same bits everywhere. Where the CPU has no instruction for it (x86-64
 * without FMA3), the C library's function is a call per element; this one vectorises.
 *
 * The product of two floats is exact in double. Their sum with c is not; rounding it to double and then to
 * float could round a tie the wrong way. So the sum is rounded to odd: if it is inexact, its last bit becomes
 * 1, on the side of the true value, which leaves no tie (Boldo, Melquiond: "When double rounding is odd"). */
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
    /* what the sum lost, exactly (Knuth's two-sum); not finite where the sum is not */
    const double of_c = sum - product, lost = (product - (sum - of_c)) + (c - of_c);
    uint64_t bits, lost_bits;
    memcpy(&bits, &sum, sizeof bits);
    memcpy(&lost_bits, &lost, sizeof lost_bits);
    const uint64_t is_inexact = (lost_bits << 1) - 1 < 0xFFE0000000000000u - 1;   /* neither 0 nor infinite */
    /* if lost has the other sign, the true value is nearer to zero, where bits are one less */
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
