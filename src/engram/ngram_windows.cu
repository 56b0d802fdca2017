/* SPDX-License-Identifier: MIT
 * ngram_windows.cu - windows of token ids: a thread makes one in shared memory, from which the block writes them.
 *   computes  as tegula/engram.h says
 *   launch    grid of tiles of tokens, over which blocks stride, block WINDOW_THREADS, shared memory for the windows
 *             of a tile
 *   moves     a token: its id, an entry of the map, its window
 *   macros    as common/requests.cuh says */
#include "engram/common/requests.cuh"
#include "engram/ngram_windows.h"

static_assert(PAST != PAST_RING, "there is no ring here");

DEV void stage_window(const tgl_windows &w, const tgl_request &r, i64 token, i64 *to)
{
    if (is_in_request(w, r.place)) make_window(w, r, token, to);
    else
#pragma unroll 1
        for (i32 i = 0; i < w.max_ngram; i++) to[i] = w.pad_id;
}

extern "C" __global__ void __launch_bounds__(WINDOW_THREADS, 4)
    ngram_windows(const __grid_constant__ ngram_windows_args a)
{
    tgl_windows w = compiled(a.windows);
    w.keeps_ids = true;
    typedef request_scratch<WINDOW_THREADS, true> scratch_type;
    SHARED(scratch_type, scratch);
    SHARED_DYNAMIC(memory, 16);
    i64 *const windows = (i64 *)memory;
    const u32 n = MAX_NGRAM ? MAX_NGRAM : (u32)w.max_ngram;
    pdl_wait();
#pragma unroll 1
    for (i64 first = (i64)blockIdx.x * a.tile_tokens; first < w.num_tokens; first += (i64)gridDim.x * a.tile_tokens) {
        const u32 tokens = (u32)min((i64)a.tile_tokens, w.num_tokens - first);
        const tgl_request r = find_request(w, first, scratch).r;
        if (threadIdx.x < tokens) stage_window(w, r, first + threadIdx.x, windows + threadIdx.x * n);
        __syncthreads();
#pragma unroll 1
        for (u32 i = threadIdx.x; i < tokens * n; i += WINDOW_THREADS) {
            const u32 token = i / n;
            const i64 to = (first + token) * a.out_stride + (i - token * n);
            if (a.out_bytes == 4) ((i32 *)a.out)[to] = (i32)windows[i];
            else ((i64 *)a.out)[to] = windows[i];
        }
        __syncthreads();
    }
    pdl_trigger();
}
