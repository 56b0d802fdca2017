/* SPDX-License-Identifier: MIT
 * per_block_cast.cuh - what the kernels of per_block_cast share: codes of a vector, and factors. */
#ifndef TEGULA_QUANT_PER_BLOCK_CAST_CUH
#define TEGULA_QUANT_PER_BLOCK_CAST_CUH

#include "quant/decode.cuh"
#include "quant/encode.cuh"
#include "quant/factors.cuh"
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

#endif
