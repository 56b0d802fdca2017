/* SPDX-License-Identifier: MIT
 * per_token_cast_any.cu - blocks of one row and any number of columns, at any address, one value at a time.
 *   computes  as per_token_cast.cu
 *   launch    grid num_rows * num_units or a little more, block TOKEN_ANY_THREADS; a unit is unit_groups
 *             groups (blocks of factors) of a row
 *   moves     as per_token_cast.cu; x is read twice, the second time from a cache
 *   macros    X, FORMAT as in per_token_cast.cuh
 *
 * unit_groups is a multiple of 4, so that a unit has whole words of packed factors and begins at an even
 * column. A pair of e2m1 may be in two groups. */
#include "quant/common/decode.cuh"
#include "quant/common/divide.cuh"
#include "quant/common/encode.cuh"
#include "quant/common/factors.cuh"
#include "quant/per_token_cast.h"

static_assert(X >= X_BF16 && X <= X_E2M1, "X is one of X_*");
static_assert(FORMAT != TGL_FORMAT_E5M6 || !X_IS_CODES(X), "e5m6 is made of numbers only");

enum { THREADS = TOKEN_ANY_THREADS };

/* A part of a row: the groups of one unit. */
typedef struct { i64 row, x_sf_row, first_group, num_groups, first_col, num_cols; } part;

DEV u32 group_of(const tgl_token_cast &c, i64 i) { return (u32)divide(i, c.block_cols, c.by_block_cols); }

/* Value i of a part. */
DEV float part_value(const tgl_token_cast &c, const part &p, i64 i)
{
    const char *from = c.x + p.row * c.x_row_bytes;
    const i64 col = p.first_col + i;
    if (!X_IS_CODES(X)) return value_at<X>(from, col);
    const float factor = tgl_sf_get(&c.x_sf, p.x_sf_row, divide(col, c.x_block_cols, c.by_x_block_cols));
    return value_at<X>(from, col) * factor;
}

/* amax of the groups, as bits; NaN is ignored. */
DEV void find_amax(const tgl_token_cast &c, const part &p, u32 (&amax)[TOKEN_ANY_GROUPS])
{
    for (i64 i = threadIdx.x; i < p.num_groups; i += THREADS) amax[i] = 0;
    __syncthreads();
    const u32 lane = threadIdx.x % 32;
#pragma unroll 1
    for (i64 begin = threadIdx.x / 32 * 32; begin < p.num_cols; begin += THREADS) {
        const i64 last = min(begin + 31, p.num_cols - 1), i = min(begin + lane, last);
        const u32 magnitude = amax_of(part_value(c, p, i));
        if (group_of(c, begin) == group_of(c, last)) {
            const u32 largest = warp_max_u32(magnitude);
            if (lane == 0) atomicMax(&amax[group_of(c, begin)], largest);
        } else {
            atomicMax(&amax[group_of(c, i)], magnitude);
        }
    }
    __syncthreads();
}

/* Replaces amax by inv. A thread has the factors of a word. */
DEV void make_factors(const tgl_token_cast &c, const part &p, u32 (&amax)[TOKEN_ANY_GROUPS])
{
#pragma unroll 1
    for (i64 first = 4 * threadIdx.x; first < p.num_groups; first += 4 * THREADS) {
        u32 word = 0;
#pragma unroll 1
        for (i64 i = first; i < first + 4 && i < p.num_groups; i++) {
            const i64 k = p.first_group + i;
            if (c.is_given) {
                amax[i] = __float_as_uint(1 / tgl_sf_get(&c.sf, p.row, k));
                continue;
            }
            const tgl_scale scale = tgl_scale_of(__uint_as_float(amax[i]), c.rule);
            amax[i] = __float_as_uint(scale.inv);
            word = word_with(word, (u32)(i - first), scale.sf);
            if (c.sf.kind != TGL_SF_PACKED) store_element(c.sf, p.row, k, __float_as_uint(scale.sf));
        }
        if (!c.is_given && c.sf.kind == TGL_SF_PACKED) store_element(c.sf, p.row, p.first_group + first, word);
    }
    __syncthreads();
}

DEV float scaled_at(const tgl_token_cast &c, const part &p, const u32 (&inv)[TOKEN_ANY_GROUPS], i64 i)
{
    return part_value(c, p, i) * __uint_as_float(inv[group_of(c, i)]);
}

DEV void encode_part(const tgl_token_cast &c, const part &p, const u32 (&inv)[TOKEN_ANY_GROUPS])
{
    char *to = c.out + p.row * c.out_row_bytes;
    if (FORMAT == TGL_FORMAT_E4M3) {
        for (i64 i = threadIdx.x; i < p.num_cols; i += THREADS)
            to[p.first_col + i] = (char)encode_e4m3x4(scaled_at(c, p, inv, i), 0, 0, 0);
    } else if (FORMAT == TGL_FORMAT_E2M1) {
        for (i64 i = 2 * threadIdx.x; i < p.num_cols; i += 2 * THREADS)
            to[(p.first_col + i) / 2] =
                (char)(encode_e2m1(scaled_at(c, p, inv, i)) | encode_e2m1(scaled_at(c, p, inv, i + 1)) << 4);
    } else {
        for (i64 i = 8 * threadIdx.x; i < p.num_cols; i += 8 * THREADS) {
            float v[8];
            u32 w[3];
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] = scaled_at(c, p, inv, i + j);
            encode_e5m6x8(v, w);
#pragma unroll
            for (int j = 0; j < 3; j++) ((u32 *)to)[(p.first_col + i) / 8 * 3 + j] = w[j];
        }
    }
}

extern "C" __global__ void __launch_bounds__(TOKEN_ANY_THREADS) per_token_cast_any(const tgl_token_cast c)
{
    SHARED(u32[TOKEN_ANY_GROUPS], factors);
    const i64 unit = (i64)blockIdx.y * gridDim.x + blockIdx.x;
    pdl_wait();
    if (unit < c.num_rows * c.num_units) {
        part p;
        p.row = divide(unit, c.num_units, c.by_units);
        p.x_sf_row = X_IS_CODES(X) ? divide(p.row, c.x_block_rows, c.by_x_block_rows) : 0;
        p.first_group = (unit - p.row * c.num_units) * c.unit_groups;
        p.num_groups = min((i64)c.unit_groups, (i64)c.num_sf - p.first_group);
        p.first_col = p.first_group * c.block_cols;
        p.num_cols = min(p.num_groups * (i64)c.block_cols, (i64)c.num_cols - p.first_col);
        if (!c.is_given) find_amax(c, p, factors);
        make_factors(c, p, factors);
        if (c.has_out) encode_part(c, p, factors);
    }
    pdl_trigger();
}
