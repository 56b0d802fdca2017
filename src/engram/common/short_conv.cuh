/* SPDX-License-Identifier: MIT
 * short_conv.cuh - what kernels of the short convolution share. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_CUH
#define TEGULA_ENGRAM_SHORT_CONV_CUH

#include "device/ptx.cuh"
#include "engram/common/short_conv.h"

/* 1 / d, rounded to nearest: d is between 1 and 2^116 (quant/common/swiglu.cuh says why that is so). */
DEV float reciprocal(float d)
{
    const float r = rcp_fast(d);
    return fmaf(r, fmaf(-d, r, 1), r);
}

#endif
