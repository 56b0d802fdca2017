/* SPDX-License-Identifier: MIT
 * per_channel_cast_and_transpose.cu - a factor per column and block of rows, codes transposed.
 *   computes  per block: a factor of the largest magnitude, and the codes of x / factor
 *   launch    grid of tiles (per_channel_cast.h), block 1 or 2 strips of CHANNEL_STRIP_THREADS
 *   moves     x, out and its factors, each once
 *   macros    per_channel_cast.cuh's */
#define IS_SWIGLU 0
#define IS_TRANSPOSED 1
#define IS_WIDE 0
#include "quant/per_channel_cast.cuh"

DEV void load_patch(const tgl_channel_cast &c, const place &at, i64 row, patch &p)
{
    const u8 *from = (const u8 *)c.x + row * c.x_row_bytes + at.col * VALUE_BYTES;
    const bool is_whole = has_vectors(c, at);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        vector_of<X> v;
        if (row + r >= at.end) clear_vector(v);
        else if (is_whole) load_whole(from + r * c.x_row_bytes, v);
        else load_part(from + r * c.x_row_bytes, at.count, v);
#pragma unroll
        for (int i = 0; i < WORDS; i++) p.w[r][i] = v.w[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
per_channel_cast_and_transpose(const tgl_channel_cast c)
{
    SHARED(block_memory, memory);
    place at;
    const bool is_there = find_place(c, at);
    pdl_wait();
    if (is_there) cast_tile(c, at, memory[threadIdx.x / STRIP_THREADS]);
    pdl_trigger();
}
