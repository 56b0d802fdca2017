/* SPDX-License-Identifier: MIT
 * rows.cu - table rows of token ids: windows in shared memory, then as hash.cu.
 *   computes  as tegula/engram.h says
 *   launch    grid (tiles of tokens, over which blocks stride; chunks of units), block up to COLUMN_THREADS, shared
 *             memory for the columns of a chunk, the windows of a tile and request_scratch
 *   moves     a token: its id, an entry of the map (per chunk of units: one in all models), its rows
 *   macros    as common/columns.cuh and common/requests.cuh say
 *
 * The ring. A token writes its own entry as soon as it has its window, if no other token reads that entry. In chunks
 * that are longer the first max_ngram - 1 tokens read entries that the last ones write. All of those are in the
 * block that has the first token, wherever they lie, and that block writes the ring, behind a barrier. Blocks of
 * other units would read what it has written, so where a ring is written a block has all units. */
#include "engram/common/columns.cuh"
#include "engram/common/requests.cuh"
#include "engram/rows.h"

typedef request_scratch<COLUMN_THREADS, true> scratch_type;
static_assert(sizeof(scratch_type) <= REQUEST_SCRATCH_BYTES, "REQUEST_SCRATCH_BYTES is too small");

/* Puts a token's window into shared memory -> what is there in place of its rows, 0: nothing. */
DEV u32 stage_window(const tgl_windows &w, const tgl_request &r, i64 token, i64 *to)
{
    return make_window(w, r, token, to) || w.hash_dead ? 0 : COLUMN_NONE;
}

DEV tgl_request request_of_lane(const tgl_request &r, int lane)
{
    tgl_request of;
    of.place.number = __shfl_sync(FULL, r.place.number, lane);
    of.place.begin = __shfl_sync(FULL, r.place.begin, lane);
    of.slot = __shfl_sync(FULL, r.slot, lane);
    of.start = __shfl_sync(FULL, r.start, lane);
    of.reach = __shfl_sync(FULL, r.reach, lane);
    return of;
}

extern "C" __global__ void __launch_bounds__(COLUMN_THREADS, COLUMN_ROWS_BLOCKS)
    rows(const __grid_constant__ rows_args a)
{
    const tgl_columns &c = a.columns;
    tgl_windows w = compiled(a.windows);
    w.keeps_ids = false;
    SHARED_DYNAMIC(memory, 16);
    const tile t = tile_of(c, memory);
    scratch_type &scratch = *(scratch_type *)behind(c, t);
    const int thread = (int)threadIdx.x, lane = thread % 32;
    const i64 step = (i64)gridDim.x * c.tile_tokens;
    pdl_wait();
    i32 chunk_here = -1; /* whose columns are in shared memory */
#pragma unroll 1
    for (i64 tile_begin = (i64)blockIdx.x * c.tile_tokens; tile_begin < c.num_tokens; tile_begin += step) {
        const i64 tile_end = min(tile_begin + c.tile_tokens, c.num_tokens);
        const i64 end = PAST == PAST_RING ? min(tile_end + a.more_tokens, c.num_tokens) : tile_end;
        tgl_request later = { { -1, 0 }, -1, 0, 0 }; /* whose ring is written behind the barrier */
        i64 later_tokens = 0;
#pragma unroll 1
        for (i64 first = tile_begin; first < end; first += c.num_windows) {
            const i32 tokens = (i32)min((i64)c.num_windows, end - first);
            const i64 token = first + thread;
            if (w.cu_seqlens && thread < tokens) {
                prefetch_l2((const u8 *)w.input_ids + token * w.id_stride * w.id_bytes);
                if (w.image_token_mask) prefetch_l2(w.image_token_mask + token);
            }
            const found_request found = find_request(w, first, scratch);
            if (thread < tokens) {
                i64 *const window = window_at(c, t, thread);
                u32 none = token < tile_end ? COLUMN_NONE : COLUMN_SKIPPED;
                const tgl_request &r = found.r;
#pragma unroll
                for (int i = 0; i < MAX_NGRAM; i++) window[i] = 0; /* read even if there is none */
                if (is_in_request(w, r.place)) {
                    const bool writes = PAST == PAST_RING && r.slot >= 0 && w.writes_ring;
                    const i64 p = token - r.place.begin, q = found.end - r.place.begin;
                    const bool is_apart = !writes || tgl_writes_apart(&w, q);
                    bool is_mine = token < tile_end;
                    if (!is_apart && p < w.max_ngram - 1) /* goes with the first token of its chunk */
                        is_mine = r.place.begin >= tile_begin && r.place.begin < tile_end;
                    none = COLUMN_SKIPPED;
                    if (is_mine) none = stage_window(w, r, token, window);
                    if (is_mine && is_apart && writes) tgl_write_ring(&w, &r, token, r.start + p);
                    if (is_mine && !is_apart && p == 0) later = r, later_tokens = q;
                }
                window[max_ngram_of(c)] = none;
            }
#pragma unroll 1
            for (i32 chunk = (i32)blockIdx.y; chunk < c.num_chunks; chunk += (i32)gridDim.y) {
                if (chunk != chunk_here) put_columns(c, t, chunk);
                chunk_here = chunk;
                __syncthreads();
                put_rows(c, t, chunk, first, tokens);
                __syncthreads();
            }
        }
        if (PAST == PAST_RING) {
            u32 lanes = __ballot_sync(FULL, later.slot >= 0);
#pragma unroll 1
            while (lanes) {
                const int from = __ffs(lanes) - 1;
                lanes &= lanes - 1;
                const tgl_request r = request_of_lane(later, from);
                tgl_write_last(&w, &r, __shfl_sync(FULL, later_tokens, from), lane, 32);
            }
        }
    }
    pdl_trigger();
}
