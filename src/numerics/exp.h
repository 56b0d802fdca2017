/* SPDX-License-Identifier: MIT
 * exp.h - e^x: no call, no table, no branch, so that compilers vectorise it.
 *
 * Let n be the integer nearest to x / ln 2 and r = x - n ln 2, |r| < 0.35. Then e^x = 2^n e^r and e^r = 1
 * + r + r^2 p(r), where p is the polynomial of degree 4 that minimises the relative error of e^r, 2^-27.6.
 * ln 2 is split in two parts, the first with so few bits that n times it, and x minus that, are exact. The
 * error is below one ulp for every float.
 *   -inf gives 0; inf, and above 88.7228, inf; NaN stays NaN; 0 gives 1; subnormal results are rounded twice
 * Kernels of mHC and Engram use it, too, so that they have the CPU's bits. Those of moe and quant use CUDA's expf, which is
 * based on a hardware instruction and differs in the last bits. */
#ifndef TEGULA_NUMERICS_EXP_H
#define TEGULA_NUMERICS_EXP_H

#include "numerics/base.h"

/* e^r, and n + 1.5 * 2^23: a float of that size has integer steps, so the addition rounds to n. */
typedef struct { float e_to_r, shifted_n; } tgl_exp_parts;
TGL_INLINE tgl_exp_parts tgl_exp_parts_of(float x)
{
    const float shift = 0x1.8p23f, shifted_n = x * 0x1.715476p0f + shift, n = shifted_n - shift;
    const float r = (x - n * 0x1.63p-1f) + n * 0x1.bd0106p-13f;
    const float p =
        (((0x1.6a1a72p-10f * r + 0x1.123fc6p-7f) * r + 0x1.555916p-5f) * r + 0x1.55548ap-3f) * r + 0x1.fffffcp-2f;
    const tgl_exp_parts parts = { (p * (r * r) + r) + 1.0f, shifted_n };
    return parts;
}

TGL_INLINE float tgl_exp(float x)
{
    /* beyond these bounds the result is 0 or inf anyway; a NaN passes both */
    const float low = tgl_select_f32(x < -104.0f, -104.0f, x);
    const tgl_exp_parts parts = tgl_exp_parts_of(tgl_select_f32(low > 89.0f, 89.0f, low));
    const int32_t n = (int32_t)(tgl_f32_to_bits(parts.shifted_n) - 0x4B400000);
    /* 2^n in two factors, since it may not be a normal number; the first product is exact */
    const int32_t half = n >> 1;
    const float first = tgl_f32_from_bits((uint32_t)(half + 127) << 23);
    const float second = tgl_f32_from_bits((uint32_t)(n - half + 127) << 23);
    return parts.e_to_r * first * second;
}

/* The same bits at half the cost for |x| <= TGL_EXP_SMALL, where the result is normal: adds n to the
 * exponent of e^r. */
#define TGL_EXP_SMALL 87.0f
TGL_INLINE float tgl_exp_small(float x)
{
    const tgl_exp_parts parts = tgl_exp_parts_of(x);
    return tgl_f32_from_bits(tgl_f32_to_bits(parts.e_to_r) + (tgl_f32_to_bits(parts.shifted_n) << 23));
}

#endif
