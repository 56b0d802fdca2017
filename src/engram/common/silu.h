/* SPDX-License-Identifier: MIT
 * silu.h - the sigmoid of the short convolution, for C and for kernels: the same bits in few instructions. */
#ifndef TEGULA_ENGRAM_SILU_H
#define TEGULA_ENGRAM_SILU_H

#include "numerics/base.h"
#ifndef __CUDACC__
#include <math.h>
#endif

/* SiLU of less than this is that of this: -1.4e-33. */
#define CONV_LOWEST (-80.0f)
TGL_INLINE float conv_bounded(float z) { return tgl_select_f32(z < CONV_LOWEST, CONV_LOWEST, z); }

/* 1 + e^-z, of which the reciprocal is sigmoid(z), with a relative error of at most 2^-21. e^-z = 2^n * e^-r, n the
 * integer nearest to -z / ln 2, r = z + n ln 2; e^-r is a polynomial with a relative error of 2^-23. A NaN gives any number:
 * its product with z is a NaN. */
TGL_INLINE float conv_sigmoid_divisor(float z)
{
#ifdef __CUDACC__
    const float c = fminf(conv_bounded(z), -CONV_LOWEST);
#else
    const float low = conv_bounded(z), c = tgl_select_f32(low < -CONV_LOWEST, low, -CONV_LOWEST);
#endif
    const float shift = 0x1.8p23f, shifted = fmaf(c, -0x1.715476p0f, shift), n = shifted - shift;
    /* ln 2 as f32 is off by 2^-28.4 of itself, n ln 2 by 2^-22.1 at most; 1 / ln 2, off by 2^-26.2, needs a second part. */
    const float r = fmaf(n, 0x1.62e43p-1f, c);
    float p = fmaf(r, -0x1.0fa752p-7f, 0x1.573b84p-5f);
    p = fmaf(r, p, -0x1.555a72p-3f);
    p = fmaf(r, p, 0x1.fffdc2p-2f);
    p = fmaf(r, p, -0x1.fffff6p-1f);
    p = fmaf(r, p, 1.0f);
    return 1.0f + tgl_f32_from_bits(tgl_f32_to_bits(p) + (tgl_f32_to_bits(shifted) << 23));
}

#endif
