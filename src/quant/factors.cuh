/* SPDX-License-Identifier: MIT
 * factors.cuh - factors in any layout (scale.h), one at a time. */
#ifndef TEGULA_QUANT_FACTORS_CUH
#define TEGULA_QUANT_FACTORS_CUH

#include "device/ptx.cuh"
#include "quant/scale.h"

/* Row m of a matrix of factors, as one whose only row it is. KIND is what sf.kind is. */
template <int KIND> DEV tgl_sf row_of_factors(const tgl_sf &sf, i64 m)
{
    tgl_sf row = sf;
    row.kind = KIND;
    row.data = (u32 *)sf.data + tgl_sf_offset(&row, m, 0);
    return row;
}

/* The element that has factor (m, k), and the factor in it: what is asked for long before it is used must not
 * be touched before. */
DEV u32 load_element(const tgl_sf &sf, i64 m, i64 k)
{
    return ((const u32 *)sf.data)[tgl_sf_offset(&sf, m, k)];
}
DEV float factor_of_element(const tgl_sf &sf, u32 element, u32 k)
{
    if (sf.kind != TGL_SF_PACKED) return __uint_as_float(element);
    return tgl_ue8m0_to_f32(tgl_ue8m0x4_get(element, (int)(k % 4)));
}

/* Where factor (m, k) is, or its code. */
DEV u8 *factor_address(const tgl_sf &sf, i64 m, i64 k)
{
    return (u8 *)((u32 *)sf.data + tgl_sf_offset(&sf, m, k)) + (sf.kind == TGL_SF_PACKED ? (u32)k % 4 : 0);
}

/* Stores factor (m, k) at its address. Codes are stored as bytes, so that each may come from another thread;
 * that of the last column brings the zeros of its word. */
DEV void store_factor_at(const tgl_sf &sf, u8 *at, u32 k, bool is_last, float factor)
{
    if (sf.kind != TGL_SF_PACKED) {
        *(float *)at = factor;
        return;
    }
    *at = (u8)tgl_sf_code_of(factor);
    if (!is_last) return;
#pragma unroll 1
    for (u32 i = 1; i < 4 - k % 4; i++) at[i] = 0;
}

DEV void store_factor(const tgl_sf &sf, i64 m, i64 k, bool is_last, float factor)
{
    store_factor_at(sf, factor_address(sf, m, k), (u32)k, is_last, factor);
}

#endif
