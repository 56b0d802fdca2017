/* SPDX-License-Identifier: MIT
 * cast_back.cu - codes times their factors, as f32 or bf16.
 *   computes  out[i][j] = decode(x[i][j]) * sf(i / block_rows, j / block_cols), rounded to f32, then bf16
 *   launch    strip.h's; units of VALUES columns if is_vector, else as few as a format allows
 *   moves     every code and value once; factors once per thread that needs them, but for the first from L2
 *   macros    FORMAT     TGL_FORMAT_*
 *             OUT_BYTES  2 (bf16), 4 (f32)
 *             SF_KIND    TGL_SF_*
 *             HAS_RUNS   1: the columns of a unit share a factor (block_cols is a multiple of VALUES)
 *
 * VALUES fill 16 bytes of out, so that stores of a warp are contiguous; their codes are 2 to 12 bytes. */
#ifndef FORMAT
#ifdef __CUDACC_RTC__
#error "FORMAT, OUT_BYTES, SF_KIND or HAS_RUNS is not defined"
#endif
#define FORMAT 0
#define OUT_BYTES 2
#define SF_KIND 0
#define HAS_RUNS 1
#endif
static_assert(FORMAT >= 0 && FORMAT <= 2, "FORMAT is 0 (e4m3), 1 (e2m1) or 2 (e5m6)");
static_assert(OUT_BYTES == 2 || OUT_BYTES == 4, "OUT_BYTES is 2 or 4");
static_assert(SF_KIND >= 0 && SF_KIND <= 2, "SF_KIND is 0 (rows), 1 (columns) or 2 (packed)");
static_assert(HAS_RUNS == 0 || HAS_RUNS == 1, "HAS_RUNS is 0 or 1");

#include "quant/cast_back.h"
#include "quant/decode.cuh"
#include "quant/strip.cuh"

enum {
    VALUES = CAST_BACK_VALUES(OUT_BYTES),
    FEW = CAST_BACK_FEW(FORMAT, OUT_BYTES),
    RESIDENT = FORMAT != TGL_FORMAT_E5M6 && HAS_RUNS ? 5 : 4    /* blocks on an SM that registers allow */
};

/* COUNT codes. Those of e5m6 lie in groups of 8, 12 bytes; four of them are six bytes, moved to the front.
 * Their words are not streamed: three loads of a warp read the same sectors. */
template <int COUNT> DEV void load_codes(const u8 *row, i64 col, u32 (&w)[3])
{
    if (FORMAT == TGL_FORMAT_E4M3) {
        if (COUNT == 8) {
            const uint2 v = load_stream_u32x2(row + col);
            w[0] = v.x;
            w[1] = v.y;
        } else {
            w[0] = COUNT == 4 ? load_stream_u32(row + col) : load_stream_u8(row + col);
        }
    } else if (FORMAT == TGL_FORMAT_E2M1) {
        const u8 *from = row + col / 2;
        w[0] = COUNT == 8 ? load_stream_u32(from) : COUNT == 4 ? load_stream_u16(from) : load_stream_u8(from);
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

/* Units of COUNT columns: all loads first. */
template <int COUNT, bool IS_VECTOR> DEV void run(const u8 *x, i64 row_bytes, const tgl_sf &sf, u8 *out,
                                                  const tgl_strip &s)
{
    enum { HAS_ONE = COUNT == 1 || (IS_VECTOR && HAS_RUNS) };
    const strip_place p = strip_place_of(s);
    u32 w[STRIP_ROWS][3];
    float factor[STRIP_ROWS];
#pragma unroll
    for (int j = 0; j < STRIP_ROWS; j++) {
        if (!strip_has(s, p, j)) continue;
        load_codes<COUNT>(x + (p.row + j * p.step) * row_bytes, p.col, w[j]);
        if (HAS_ONE) factor[j] = tgl_sf_get(&sf, strip_block_row(s, p, j), p.k);
    }
    float factors[COUNT];
    i64 of = -1;                                /* row of blocks of `factors` */
#pragma unroll
    for (int j = 0; j < STRIP_ROWS; j++) {
        if (!strip_has(s, p, j)) continue;
        if (!HAS_ONE && of != strip_block_row(s, p, j)) {
            of = strip_block_row(s, p, j);
            strip_factors<COUNT>(s, p, sf, of, factors);
        }
        float v[COUNT];
        decode<COUNT>(w[j], v);
#pragma unroll
        for (int i = 0; i < COUNT; i++) v[i] *= HAS_ONE ? factor[j] : factors[i];
        store_values<COUNT, IS_VECTOR>(out + ((p.row + j * p.step) * s.num_cols + p.col) * OUT_BYTES, v);
    }
}

extern "C" __global__ void __launch_bounds__(STRIP_THREADS, RESIDENT) cast_back(
    const u8 *x, i64 row_bytes, tgl_sf sf, u8 *out, const tgl_strip s, i32 is_vector)
{
    sf.kind = SF_KIND;
    pdl_wait();
    if (is_vector) run<VALUES, true>(x, row_bytes, sf, out, s);
    else run<FEW, false>(x, row_bytes, sf, out, s);
    pdl_trigger();
}
