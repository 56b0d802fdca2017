/* SPDX-License-Identifier: MIT
 * strip.cuh - a thread's part of a matrix (strip.h), and its factors. */
#ifndef TEGULA_QUANT_STRIP_CUH
#define TEGULA_QUANT_STRIP_CUH

#include "device/ptx.cuh"
#include "quant/common/divide.cuh"
#include "quant/common/strip.h"

/* Units at rows row, row + step ... and columns col .. col + unit - 1. The first value of the first unit is
 * element (r, c) of block (m, k). */
typedef struct {
    i64 row, col, m, k, r, c;
    int step;
} strip_place;

DEV strip_place strip_place_of(const tgl_strip &s)
{
    const u32 tile_row = tgl_divide(blockIdx.x, s.by_num_tiles);
    const u32 tile = blockIdx.x - tile_row * s.num_tiles, width = 1u << s.log_width;
    strip_place p;
    p.step = STRIP_THREADS >> s.log_width;
    p.row = (i64)tile_row * (p.step * s.rows) + (threadIdx.x >> s.log_width);
    p.col = ((i64)tile * width + (threadIdx.x & (width - 1))) * s.unit;
    p.m = divide(p.row, s.block_rows, s.by_block_rows);
    p.r = p.row - p.m * s.block_rows;
    p.k = divide(p.col, s.block_cols, s.by_block_cols);
    p.c = p.col - p.k * s.block_cols;
    return p;
}

/* Does the thread have a j-th unit? */
DEV bool strip_has(const tgl_strip &s, const strip_place &p, int j)
{
    return j < s.rows && p.row + j * p.step < s.num_rows && p.col < s.num_cols;
}

/* Its row of blocks. */
DEV i64 strip_block_row(const tgl_strip &s, const strip_place &p, int j)
{
    const i64 past = p.r + j * p.step - s.block_rows;
    return past < 0 ? p.m : p.m + 1 + tgl_divide((u32)past, s.by_block_rows);
}

/* The same if rows and columns are below 2^31 and the columns of a unit share a factor, with few instructions
 * before the first load: in a small matrix these take most of the time. UNIT and NUM_ROWS are s.unit and
 * s.rows. */
typedef struct { u32 row, col, k, step; } short_place;

template <int UNIT, int NUM_ROWS> DEV short_place short_place_of(const tgl_strip &s)
{
    const u32 tile_row = tgl_divide(blockIdx.x, s.by_num_tiles);
    const u32 tile = blockIdx.x - tile_row * s.num_tiles, width = 1u << s.log_width;
    short_place p;
    p.step = STRIP_THREADS >> s.log_width;
    p.row = tile_row * (p.step * NUM_ROWS) + (threadIdx.x >> s.log_width);
    p.col = (tile * width + (threadIdx.x & (width - 1))) * UNIT;
    p.k = tgl_divide(p.col, s.by_block_cols);
    return p;
}

/* Does the thread have a j-th unit? (If it has a first one, only rows matter.) */
DEV bool short_has(const tgl_strip &s, const short_place &p, int j)
{
    return p.row + j * p.step < (u32)s.num_rows && (j > 0 || p.col < (u32)s.num_cols);
}

/* Its row; past the end the last row, which is loaded again and not stored, so that there is no branch
 * between loads. */
DEV u32 short_row(const tgl_strip &s, const short_place &p, int j)
{
    return j ? min(p.row + j * p.step, (u32)s.num_rows - 1) : p.row;
}

/* The factors of COUNT columns of a unit, in row m of blocks; loads vectors if each column has a factor and
 * they are contiguous. */
template <int COUNT> DEV void strip_factors(const tgl_strip &s, const strip_place &p, const tgl_sf &sf, i64 m,
                                            float (&factors)[COUNT])
{
    const float *at = (const float *)sf.data + tgl_sf_offset(&sf, m, p.k);
    if (sf.kind == TGL_SF_ROWS && COUNT % 4 == 0 && s.block_cols == 1 && (u64)at % 16 == 0) {
#pragma unroll
        for (int j = 0; j + 4 <= COUNT; j += 4) {
            const float4 four = *(const float4 *)(at + j);
            factors[j] = four.x;
            factors[j + 1] = four.y;
            factors[j + 2] = four.z;
            factors[j + 3] = four.w;
        }
        return;
    }
    i64 k = p.k, c = p.c;
    float factor = tgl_sf_get(&sf, m, k);
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        if (c == s.block_cols) {
            c = 0;
            factor = tgl_sf_get(&sf, m, ++k);
        }
        factors[j] = factor;
        c++;
    }
}

#endif
