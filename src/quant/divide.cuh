/* SPDX-License-Identifier: MIT
 * divide.cuh - numerics/divide.h for dividends of any size. */
#ifndef TEGULA_QUANT_DIVIDE_CUH
#define TEGULA_QUANT_DIVIDE_CUH

#include "device/ptx.cuh"
#include "numerics/divide.h"

/* x / d for x >= 0: long division only where x is 2^31 or more. */
DEV i64 divide(i64 x, i64 d, tgl_divisor by)
{
    return x < TGL_DIVIDE_LIMIT ? (i64)tgl_divide((u32)x, by) : (i64)((u64)x / (u64)d);
}

#endif
