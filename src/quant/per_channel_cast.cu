/* SPDX-License-Identifier: MIT
 * per_channel_cast.cu - a factor per column and block of rows, of rows that a map names.
 *   computes  per block: a factor of the largest magnitude, and the codes of value / factor; a value is that
 *             of x, or a code of x times its factor
 *   launch    grid of tiles (per_channel_cast.h), block 1 or 2 strips of CHANNEL_STRIP_THREADS
 *   moves     every row of x that the map names, its factors, the map, out and its factors, each once
 *   macros    per_channel_cast.cuh's, IS_WIDE, and X_SF_KIND (TGL_SF_*): the factors of codes, else 0 */
#define IS_SWIGLU 0
#define IS_TRANSPOSED 0
#ifndef X_SF_KIND
#ifdef __CUDACC_RTC__
#error "X_SF_KIND is not defined"
#endif
#define X_SF_KIND TGL_SF_ROWS
#define IS_WIDE 0
#endif
#include "quant/divide.cuh"
#include "quant/per_channel_cast.cuh"

/* Column k of the factors of a code's row. */
DEV float x_factor(const tgl_channel_cast &c, i64 token, i64 k)
{
    tgl_sf sf = c.x_sf;
    sf.kind = X_SF_KIND;
    return tgl_sf_get(&sf, token, k);
}

/* Codes with one factor for the vector. */
DEV void hold_codes(const tgl_channel_cast &c, const place &at, const i64 (&token)[ROWS], patch &p)
{
    const i64 k = divide(at.col, c.x_block_cols, c.by_x_block_cols);
#pragma unroll
    for (int r = 0; r < ROWS; r++) p.x_sf[r] = token[r] < 0 ? 0 : x_factor(c, token[r], k);
}

/* Codes with several: their values. */
DEV void hold_values(const tgl_channel_cast &c, const place &at, const i64 (&token)[ROWS],
                     const vector_of<X> (&v)[ROWS], patch &p)
{
    i64 k = divide(at.col, c.x_block_cols, c.by_x_block_cols), end = (k + 1) * c.x_block_cols;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        if (at.col + i == end) {
            k++;
            end += c.x_block_cols;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const u32 code = v[r].w[i / 4] >> i % 4 * 8;
            const bool exists = token[r] >= 0 && i < at.count;
            p.w[r][i] =
                exists ? __float_as_uint(low_f16(e4m3x2_to_f16x2(code)) * x_factor(c, token[r], k)) : 0;
        }
    }
}

DEV void load_patch(const tgl_channel_cast &c, const place &at, i64 row, patch &p)
{
    i64 token[ROWS];                                    /* negative: none */
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        token[r] = row + r < at.end && at.count > 0 ? row + r : -1;
        if (c.pos_to_token && token[r] >= 0) token[r] = c.pos_to_token[row + r];
        if (token[r] >= c.num_tokens) token[r] = -1;
    }
    const u8 *from = (const u8 *)c.x + at.col * VALUE_BYTES;
    const bool is_whole = has_vectors(c, at);
    vector_of<X> v[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (token[r] < 0) clear_vector(v[r]);
        else if (is_whole) load_whole(from + token[r] * c.x_row_bytes, v[r]);
        else load_part(from + token[r] * c.x_row_bytes, at.count, v[r]);
    }
    if constexpr (IS_WIDE) {
        hold_values(c, at, token, v, p);
        return;
    }
    if (IS_CODES) hold_codes(c, at, token, p);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < WORDS; i++) p.w[r][i] = v[r].w[i];
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) per_channel_cast(const tgl_channel_cast c)
{
    SHARED(block_memory, memory);
    place at;
    const bool is_there = find_place(c, at);
    pdl_wait();
    if (is_there) cast_tile(c, at, memory[threadIdx.x / STRIP_THREADS]);
    pdl_trigger();
}
