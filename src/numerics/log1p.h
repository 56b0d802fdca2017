/* SPDX-License-Identifier: MIT
 * log1p.h - log(1 + x) for CPU loops: no call, no table, no branch, so that compilers vectorise it.
 *
 * Let y be 1 + x, rounded; the rounding error is a float, too. With n such that y 2^-n is in 0.75 .. 1.5,
 * log(1 + x) = n ln 2 + log(1 + f), where f = y 2^-n - 1 plus the scaled rounding error; for n = 0 that is
 * x itself. With s = f / (2 + f), |s| <= 0.2, log(1 + f) = 2 artanh(s) = f - (h - s (h + r)), where h =
 * f^2 / 2 and r = s^2 p(s^2); p is the polynomial of degree 2 that minimises the relative error of log(1 +
 * f), 2^-28.4. ln 2 is split in two parts, the first with so few bits that n times it is exact. For 0 <= x
 * <= 2^126; the error is below one ulp for every such float. NaN stays NaN, 0 gives 0. Kernels use CUDA's
 * log1pf, which differs in the last bits. */
#ifndef TEGULA_NUMERICS_LOG1P_H
#define TEGULA_NUMERICS_LOG1P_H

#include "numerics/base.h"

TGL_INLINE float tgl_log1p(float x)
{
    const float y = 1.0f + x, of_x = y - 1.0f;
    const float lost = (1.0f - (y - of_x)) + (x - of_x);                      /* exact (Knuth's two-sum) */
    const uint32_t bits = tgl_f32_to_bits(y), n = (bits - 0x3F400000u) >> 23; /* 0x3F400000 is 0.75 */
    const float scaled = tgl_f32_from_bits(bits - (n << 23));
    const float f = (scaled - 1.0f) + lost * tgl_f32_from_bits((127 - n) << 23);
    const float s = f / (2.0f + f), z = s * s, h = 0.5f * f * f;
    const float r = ((0x1.36e078p-2f * z + 0x1.992b42p-2f) * z + 0x1.5555b4p-1f) * z;
    const float count = (float)(int32_t)n; /* ln 2 = 0x1.63p-1 - 0x1.bd0106p-13 */
    return count * 0x1.63p-1f + (f - ((h - s * (h + r)) + count * 0x1.bd0106p-13f));
}

#endif
