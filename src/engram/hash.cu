/* SPDX-License-Identifier: MIT
 * hash.cu - table rows of windows of token ids.
 *   computes  as tegula/engram.h says
 *   launch    grid (tiles of tokens, over which blocks stride; chunks of units), block COLUMN_THREADS, shared memory
 *             for the columns of a chunk and the windows of a tile
 *   moves     windows once (per chunk: one in all models), rows once
 *   macros    as common/columns.cuh says */
#include "engram/common/columns.cuh"
#include "engram/hash.h"

DEV void stage_windows(const hash_args &a, const tile &t, i64 first, i32 tokens)
{
    const u32 n = (u32)max_ngram_of(a.columns);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < (u32)tokens * n; i += COLUMN_THREADS) {
        const u32 token = i / n;
        t.window[i] = tgl_integer_at(a.ngram_token_ids, (first + token) * a.id_stride + (i - token * n), a.id_bytes);
    }
#pragma unroll 1
    for (i32 i = (i32)threadIdx.x; i < tokens; i += COLUMN_THREADS)
        t.none[i] = a.image_token_mask && a.image_token_mask[first + i] ? ~0u : 0;
}

extern "C" __global__ void __launch_bounds__(COLUMN_THREADS, COLUMN_SM_BLOCKS) hash(const __grid_constant__ hash_args a)
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
