/* SPDX-License-Identifier: MIT
 * pre_fwd.cuh - what the kernels of pre_fwd for few and for many tokens share. */
#ifndef TEGULA_MHC_PRE_FWD_CUH
#define TEGULA_MHC_PRE_FWD_CUH

#include "device/ptx.cuh"
#include "mhc/pre_fwd.h"

/* Eight columns of the streams, a unit each -> their weighted sum. */
DEV uint4 mix_units(const uint4 (&x)[PRE_STREAM_STREAMS], const float (&mix)[PRE_STREAM_STREAMS])
{
    u32 made[4];
#pragma unroll
    for (int w = 0; w < 4; w++) {
        float low[PRE_STREAM_STREAMS], high[PRE_STREAM_STREAMS];
#pragma unroll
        for (int i = 0; i < PRE_STREAM_STREAMS; i++) {
            const u32 word = w == 0 ? x[i].x : w == 1 ? x[i].y : w == 2 ? x[i].z : x[i].w;
            low[i] = __uint_as_float(word << 16), high[i] = __uint_as_float(word & 0xffff0000u);
        }
        made[w] = pack_bf16(rows_apply(mix, low, PRE_STREAM_STREAMS), rows_apply(mix, high, PRE_STREAM_STREAMS));
    }
    return make_uint4(made[0], made[1], made[2], made[3]);
}

#endif
