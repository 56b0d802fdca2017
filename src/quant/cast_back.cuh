/* SPDX-License-Identifier: MIT
 * cast_back.cuh - a unit of cast_back: loads codes, decodes them and stores values.
 *   macros  FORMAT     TGL_FORMAT_*
 *           OUT_BYTES  2 (bf16), 4 (f32)
 *           SF_KIND    TGL_SF_*
 *
 * VALUES fill 16 bytes of out, so that stores of a warp are contiguous. Their codes take 2 to 12 bytes. */
#ifndef TEGULA_QUANT_CAST_BACK_CUH
#define TEGULA_QUANT_CAST_BACK_CUH

static_assert(FORMAT >= 0 && FORMAT <= 2, "FORMAT is 0 (e4m3), 1 (e2m1) or 2 (e5m6)");
static_assert(OUT_BYTES == 2 || OUT_BYTES == 4, "OUT_BYTES is 2 or 4");
static_assert(SF_KIND >= 0 && SF_KIND <= 2, "SF_KIND is 0 (rows), 1 (columns) or 2 (packed)");

#include "quant/cast_back.h"
#include "quant/common/decode.cuh"
#include "quant/common/factors.cuh"
#include "quant/common/strip.cuh"

enum { VALUES = CAST_BACK_VALUES(OUT_BYTES), FEW = CAST_BACK_FEW(FORMAT, OUT_BYTES) };

/* COUNT codes. e5m6: 8 codes are 12 bytes; four of them, 6 bytes, are moved to the front. Not .nc: the
 * compiler moves such loads between the stores of other rows, but all loads should be in flight first. */
template <int COUNT> DEV void load_codes(const u8 *row, i64 col, u32 (&w)[3])
{
    if (FORMAT == TGL_FORMAT_E4M3) {
        if (COUNT == 8) {
            spread(*(const uint2 *)(row + col), w);
        } else {
            w[0] = COUNT == 4 ? *(const u32 *)(row + col) : row[col];
        }
    } else if (FORMAT == TGL_FORMAT_E2M1) {
        const u8 *from = row + col / 2;
        w[0] = COUNT == 8 ? *(const u32 *)from : COUNT == 4 ? *(const u16 *)from : *from;
    } else {
        const u32 *from = (const u32 *)row + col / 8 * 3;
        if (COUNT == 8) {
            w[0] = from[0];
            w[1] = from[1];
            w[2] = from[2];
        } else {
            const bool is_second = col % 8;
            const u32 a = from[is_second], b = from[1 + is_second];
            w[0] = is_second ? __funnelshift_l(b, a, 16) : a;
            w[1] = is_second ? b << 16 : b;
            w[2] = 0;
        }
    }
}

template <int COUNT> DEV void decode(const u32 (&w)[3], float (&v)[COUNT])
{
    float all[8];
    if (FORMAT == TGL_FORMAT_E4M3) {
        float part[4];
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            decode_e4m3x4(w[i / 4], part);
#pragma unroll
            for (int j = 0; j < 4; j++) all[i + j] = part[j];
        }
    } else if (FORMAT == TGL_FORMAT_E2M1) {
        decode_e2m1x8(w[0], all);
    } else {
        decode_e5m6x8(w, all);
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++) v[j] = all[j];
}

template <int COUNT, bool IS_VECTOR> DEV void store_values(u8 *to, const float (&v)[COUNT])
{
    if (IS_VECTOR && OUT_BYTES == 2) {
        u32 pairs[4];
#pragma unroll
        for (int j = 0; j < 4; j++) pairs[j] = pack_bf16(v[2 * j % COUNT], v[(2 * j + 1) % COUNT]);
        *(uint4 *)to = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    } else if (IS_VECTOR) {
        *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
    } else {
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            if (OUT_BYTES == 2) ((u16 *)to)[j] = (u16)pack_bf16(v[j], 0);
            else ((float *)to)[j] = v[j];
    }
}

#endif
