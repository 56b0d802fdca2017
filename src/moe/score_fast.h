/* SPDX-License-Identifier: MIT
 * score_fast.h - scores on the CPU without libm, in loops that become vector code: to find the few experts
 * whose exact scores decide. tgl_fast_score() of a number differs from tgl_raw_score() by at most
 * tgl_fast_score_error(); a test looks at all floats. */
#ifndef TEGULA_MOE_SCORE_FAST_H
#define TEGULA_MOE_SCORE_FAST_H

#include "moe/score.h"

static inline float tgl_fast_select(int condition, float yes, float no)
{
    return tgl_f32_from_bits(tgl_select(condition, tgl_f32_to_bits(yes), tgl_f32_to_bits(no)));
}

/* exp(x) for x <= 0, to 4e-7 of it; below -87 exp(-87), which is as good as 0. */
static inline float tgl_fast_exp(float x)
{
    const float shift = 12582912.0f;            /* 1.5 * 2^23: its last bit is 1 */
    const float a = tgl_fast_select(x < -87.0f, -87.0f, x);
    const float shifted = a * 1.44269504f + shift, n = shifted - shift;
    const float f = (a - n * 0.693359375f) + n * 2.12194440e-4f;            /* a - n ln 2, |f| < 0.35 */
    const float p = 1.0f + f * (1.0f + f * (0.5f + f * (0.166666667f + f * (0.0416666667f + f *
                    (0.00833333333f + f * 0.00138888889f)))));
    const uint32_t exponent = (tgl_f32_to_bits(shifted) - 0x4B400000u) << 23;
    return tgl_f32_from_bits(tgl_f32_to_bits(p) + exponent);
}

/* sqrt(x) for x >= 0, to 3e-7 of it: Newton's method for 1 / sqrt(x), from half of the exponent. sqrtf() may
 * set errno, which keeps a loop scalar. */
static inline float tgl_fast_sqrt(float x)
{
    float y = tgl_f32_from_bits(0x5F3759DFu - (tgl_f32_to_bits(x) >> 1));
    y = y * (1.5f - 0.5f * (x * y) * y);
    y = y * (1.5f - 0.5f * (x * y) * y);
    y = y * (1.5f - 0.5f * (x * y) * y);
    return x * y;
}

/* For sigmoid and sqrtsoftplus; x is a finite number. */
static inline float tgl_fast_score(int scoring, float x)
{
    const float e = tgl_fast_exp(tgl_f32_from_bits(tgl_f32_to_bits(x) | 0x80000000u));     /* of -|x| */
    if (scoring == TGL_SIGMOID) return tgl_fast_select(x > 0.0f, 1.0f, e) / (1.0f + e);
    const float z = e / (2.0f + e), z2 = z * z;             /* log1p(e) = 2 artanh(z), z <= 1 / 3 */
    const float log1p_e = 2.0f * z * (1.0f + z2 * (0.333333333f + z2 * (0.2f + z2 * (0.142857143f + z2 *
                          (0.111111111f + z2 * 0.0909090909f)))));
    return tgl_fast_sqrt(tgl_fast_select(x > 0.0f, x, 0.0f) + log1p_e);
}

/* For logits up to `largest`. */
static inline float tgl_fast_score_error(int scoring, float largest)
{
    return scoring == TGL_SIGMOID ? 1e-6f : 1e-6f * (1.0f + sqrtf(largest > 0.0f ? largest : 0.0f));
}

#endif
