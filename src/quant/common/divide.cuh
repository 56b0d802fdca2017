/* SPDX-License-Identifier: MIT
 * divide.cuh - numerics/divide.h for dividends of any size. */
#ifndef TEGULA_QUANT_DIVIDE_CUH
#define TEGULA_QUANT_DIVIDE_CUH

#include "device/ptx.cuh"
#include "numerics/divide.h"

/* Bit by bit: the compiler's own division is a call, around which registers spill. */
DEV u64 divide_long(u64 x, u64 d)
{
    u64 quotient = 0, rest = 0;
#pragma unroll 1
    for (i32 i = 63; i >= 0; i--) {
        rest = rest << 1 | (x >> i & 1);
        if (rest >= d) {
            rest -= d;
            quotient |= (u64)1 << i;
        }
    }
    return quotient;
}

/* x / d for x >= 0 and d < 2^63: long division only if x >= 2^31. */
DEV i64 divide(i64 x, i64 d, tgl_divisor by)
{
    return x < TGL_DIVIDE_LIMIT ? (i64)tgl_divide((u32)x, by) : (i64)divide_long((u64)x, (u64)d);
}

#endif
