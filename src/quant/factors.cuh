/* SPDX-License-Identifier: MIT
 * factors.cuh - factors in any layout (scale.h), one at a time. */
#ifndef TEGULA_QUANT_FACTORS_CUH
#define TEGULA_QUANT_FACTORS_CUH

#include "device/ptx.cuh"
#include "quant/scale.h"

/* Stores factor (m, k). Codes are stored as bytes, so that each may come from another thread; that of the
 * last column brings the zeros of its word. */
DEV void store_factor(const tgl_sf &sf, i64 m, i64 k, bool is_last, float factor)
{
    if (sf.kind != TGL_SF_PACKED) {
        ((float *)sf.data)[tgl_sf_offset(&sf, m, k)] = factor;
        return;
    }
    u8 *word = (u8 *)((u32 *)sf.data + tgl_sf_offset(&sf, m, k));
    const u32 at = (u32)k % 4;
    word[at] = (u8)tgl_sf_code_of(factor);
    for (u32 i = at + 1; is_last && i < 4; i++) word[i] = 0;
}

#endif
