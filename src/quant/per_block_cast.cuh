/* SPDX-License-Identifier: MIT
 * per_block_cast.cuh - what the kernels of per_block_cast share: codes of a vector, and a factor's place. */
#ifndef TEGULA_QUANT_PER_BLOCK_CAST_CUH
#define TEGULA_QUANT_PER_BLOCK_CAST_CUH

#include "quant/decode.cuh"
#include "quant/encode.cuh"
#include "quant/per_block_cast.h"

/* The codes of COUNT scaled values at `to`, which is aligned to all of them. */
template <int FORMAT_, int COUNT> DEV void store_codes(u8 *to, const float (&v)[COUNT])
{
    if constexpr (FORMAT_ == TGL_FORMAT_E4M3 && COUNT == 8)
        *(uint2 *)to =
            make_uint2(encode_e4m3x4(v[0], v[1], v[2], v[3]), encode_e4m3x4(v[4], v[5], v[6], v[7]));
    else if constexpr (FORMAT_ == TGL_FORMAT_E4M3 && COUNT == 4)
        *(u32 *)to = encode_e4m3x4(v[0], v[1], v[2], v[3]);
    else if constexpr (FORMAT_ == TGL_FORMAT_E4M3) *to = (u8)encode_e4m3x4(v[0], 0, 0, 0);
    else if constexpr (COUNT == 8) *(u32 *)to = encode_e2m1s<8>(v);
    else if constexpr (COUNT == 4) *(u16 *)to = (u16)encode_e2m1s<4>(v);
    else *to = (u8)encode_e2m1s<2>(v);
}

/* Stores factor (m, k) of num_sf in a row. Of packed ones a byte, as those beside it are other threads'; with
 * the last one, zeros for the rest of its word. */
DEV void store_factor(const tgl_sf &sf, i64 m, i64 k, i64 num_sf, float factor)
{
    const i64 i = tgl_sf_offset(&sf, m, k);
    if (sf.kind != TGL_SF_PACKED) {
        ((float *)sf.data)[i] = factor;
        return;
    }
    u8 *word = (u8 *)((u32 *)sf.data + i);
    const int at = (int)(k % 4);
    word[at] = (u8)tgl_sf_code_of(factor);
    if (k != num_sf - 1) return;
#pragma unroll 1
    for (int j = at + 1; j < 4; j++) word[j] = 0;
}

#endif
