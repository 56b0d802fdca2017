/* SPDX-License-Identifier: MIT
 * projection.cuh - four columns of a row of fn to a lane's part of one step of a tensor core: hi and lo of the first
 * two, hi and lo of the others. */
#ifndef TEGULA_MHC_PROJECTION_CUH
#define TEGULA_MHC_PROJECTION_CUH

#include "device/ptx.cuh"
#include "mhc/common/projection.h"

/* For finite columns that round to finite ones. Otherwise `odd`, 0 at first, becomes NaN, and the rest is useless. */
DEV uint4 split_finite_columns(const float (&columns)[4], float &odd)
{
    u32 hi[4], lo[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 rounded = __float_as_uint(columns[i]) + 0x1000; /* TF32 in the upper 19 bits */
        hi[i] = rounded & 0xffff0000u;
        const float rest = __uint_as_float(rounded & 0xffffe000u) - __uint_as_float(hi[i]);
        odd = fmaf(columns[i], rest, odd);
        lo[i] = __float_as_uint(rest);
    }
    return make_uint4(__byte_perm(hi[0], hi[1], 0x7632), __byte_perm(lo[0], lo[1], 0x7632),
                      __byte_perm(hi[2], hi[3], 0x7632), __byte_perm(lo[2], lo[3], 0x7632));
}

/* A block of pre_fwd_stream splits 172 KB of fn before its first product (hidden 7168). Half of projection_split's
 * instructions serve numbers that no fn has; so they run only where there is one (H200, 2026-11, 4096 tokens: 93.2 us,
 * not 94.5). */
DEV uint4 split_columns(float4 f)
{
    const float columns[4] = { f.x, f.y, f.z, f.w };
    float odd = 0;
    const uint4 made = split_finite_columns(columns, odd);
    if (odd == odd) return made;
    const projection_parts a = projection_split(f.x), b = projection_split(f.y);
    const projection_parts c = projection_split(f.z), d = projection_split(f.w);
    return make_uint4(a.hi >> 16 | b.hi, a.lo >> 16 | b.lo, c.hi >> 16 | d.hi, c.lo >> 16 | d.lo);
}

#endif
