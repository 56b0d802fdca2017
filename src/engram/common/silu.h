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

/* 1 + e^-z, of which the reciprocal is sigmoid(z), with a relative error of at most 2^-21. e^-z = 2^n * 2^f, n the
 * integer nearest to -z / ln 2; 2^f is a polynomial with a relative error of 2^-23. A NaN gives any number: its product
 * with z is a NaN. */
TGL_INLINE float conv_sigmoid_divisor(float z)
{
#ifdef __CUDACC__
    const float c = fminf(conv_bounded(z), -CONV_LOWEST);
#else
    const float low = conv_bounded(z), c = tgl_select_f32(low < -CONV_LOWEST, low, -CONV_LOWEST);
#endif
    const float shift = 0x1.8p23f, shifted = fmaf(c, -0x1.715476p0f, shift), n = shifted - shift;
    const float f = fmaf(c, -0x1.4ae0cp-26f, fmaf(c, -0x1.715476p0f, -n));
    float p = fmaf(f, 0x1.5bba14p-10f, 0x1.3cea88p-7f);
    p = fmaf(f, p, 0x1.c6b752p-5f);
    p = fmaf(f, p, 0x1.ebf9bcp-3f);
    p = fmaf(f, p, 0x1.62e42ap-1f);
    p = fmaf(f, p, 1.0f);
    return 1.0f + tgl_f32_from_bits(tgl_f32_to_bits(p) + (tgl_f32_to_bits(shifted) << 23));
}

#endif
