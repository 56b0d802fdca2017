/* SPDX-License-Identifier: MIT
 * hash.cu - table rows of windows of token ids.
 *   computes  as tegula/engram.h says
 *   launch    grid (tiles of tokens, over which blocks stride; chunks of units), block up to COLUMN_THREADS, shared
 *             memory for the columns of a chunk and the windows of a tile
 *   moves     windows once (per chunk: one in all models), rows once
 *   macros    ID_BYTES 4, 8; as common/columns.cuh says */
#include "engram/common/columns.cuh"
#include "engram/hash.h"
static_assert(ID_BYTES == 4 || ID_BYTES == 8, "ID_BYTES is 4 or 8");

constexpr u32 AHEAD = 4; /* ids of a thread that are loaded before the first is stored */

DEV void stage_windows(const hash_args &a, const tile &t, i64 first, i32 tokens)
{
    const u32 n = (u32)max_ngram_of(a.columns), count = (u32)tokens * n, threads = blockDim.x;
#pragma unroll 1
    for (u32 begin = threadIdx.x; begin < count; begin += AHEAD * threads) {
        integer_of<ID_BYTES>::type ids[AHEAD];
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = begin + j * threads, token = i / n;
            const i64 at = (first + token) * a.id_stride + (i - token * n);
            if (i < count) ids[j] = ((const integer_of<ID_BYTES>::type *)a.ngram_token_ids)[at];
        }
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = begin + j * threads, token = i / n;
            if (i < count)
                window_at(a.columns, t, (i32)token)[i - token * n] = ID_BYTES == 4 ? (i32)ids[j] : (i64)ids[j];
        }
    }
#pragma unroll 1
    for (i32 i = (i32)threadIdx.x; i < tokens; i += (i32)threads)
        window_at(a.columns, t, i)[n] = a.image_token_mask && a.image_token_mask[first + i] ? COLUMN_NONE : 0;
}

extern "C" __global__ void __launch_bounds__(COLUMN_THREADS, COLUMN_HASH_BLOCKS)
    hash(const __grid_constant__ hash_args a)
{
    const tgl_columns &c = a.columns;
    SHARED_DYNAMIC(memory, 16);
    const tile t = tile_of(c, memory);
    const i64 step = (i64)gridDim.x * c.tile_tokens;
    pdl_wait();
    const i32 chunk = (i32)blockIdx.y;
    put_columns(c, t, chunk);
#pragma unroll 1
    for (i64 first = (i64)blockIdx.x * c.tile_tokens; first < c.num_tokens; first += step) {
        const i32 tokens = (i32)min((i64)c.tile_tokens, c.num_tokens - first);
        stage_windows(a, t, first, tokens);
        __syncthreads();
        put_rows(c, t, chunk, first, tokens);
        __syncthreads();
    }
    pdl_trigger();
}
