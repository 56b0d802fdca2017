/* SPDX-License-Identifier: MIT
 * divide.h - division by a divisor that is fixed for a whole call, as a multiplication and a shift.
 *
 * For 0 <= x < 2^31 and 1 <= d <= 2^31, let 2^(l-1) < d <= 2^l and m = ceil(2^(31+l) / d), which is below
 * 2^32. m d exceeds 2^(31+l) by less than d <= 2^l, so x m / 2^(31+l) exceeds x / d by less than 1 / d: too
 * little to reach the next integer. */
#ifndef TEGULA_NUMERICS_DIVIDE_H
#define TEGULA_NUMERICS_DIVIDE_H

#include "numerics/base.h"

#define TGL_DIVIDE_LIMIT ((int64_t)1 << 31) /* dividends are below */

typedef struct { uint32_t multiplier, shift; } tgl_divisor; /* m and l */

/* d >= 1. Above 2^31 every quotient is 0, as for 2^31. */
TGL_INLINE tgl_divisor tgl_divisor_of(int64_t d)
{
    const uint64_t by = (uint64_t)(d < TGL_DIVIDE_LIMIT ? d : TGL_DIVIDE_LIMIT);
    uint32_t l = 0;
    while ((uint64_t)1 << l < by) l++;
    const tgl_divisor divisor = { (uint32_t)((((uint64_t)1 << (31 + l)) + by - 1) / by), l };
    return divisor;
}

/* x / d, for x < 2^31. */
TGL_INLINE uint32_t tgl_divide(uint32_t x, tgl_divisor d)
{
    return (uint32_t)((uint64_t)(x << 1) * d.multiplier >> 32) >> d.shift;
}

#endif
