/* SPDX-License-Identifier: MIT
 * per_channel_cast_and_transpose.cu - a factor per column and block of rows, codes transposed.
 *   computes  per block a factor from its amax, and the codes of x / factor
 *   launch    grid of tiles (channel.h), block CHANNEL_THREADS
 *   moves     x, out and its factors, each once
 *   macros    channel.cuh's */
#define IS_SWIGLU 0
#define IS_CLAMPED 0
#define IS_TRANSPOSED 1
#define HAS_MAP 0
#define IS_WIDE 0
#include "quant/common/channel.cuh"

DEV void load_patch(const tgl_channel_cast &c, const place &at, i64 row, patch &p)
{
    const int rows = rows_from(at, row);
    const u8 *from = x_row(c, at, (const u8 *)c.x + at.col * VALUE_BYTES, row);
    vector v[ROWS];
    if (rows == ROWS && has_vectors(c, at)) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) load_whole(x_row(c, at, from, r), v[r]);
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r < rows) load_any(c, at, from + r * c.x_row_bytes, v[r]);
            else clear_vector(v[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < WORDS; i++) p.w[r][i] = v[r].w[i];
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    per_channel_cast_and_transpose(const tgl_channel_cast c)
{
    SHARED(strip_memory, memory);
    cast_block(c, memory);
    pdl_trigger();
}
