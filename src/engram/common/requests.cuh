/* SPDX-License-Identifier: MIT
 * requests.cuh - the requests of consecutive tokens, one per thread of a block. Entries of cu_seqlens are read once,
 * all under way together, where a search would wait for one after the other; the largest entry so far (an
 * exclusive scan) holds them in order, whatever they are.
 *   macros    MAX_NGRAM 1 .. COLUMN_UNROLLED, 0: any; ID_BYTES 4, 8; PAST 0 (none), 1 (history), 2 (ring);
 *             PAST_BYTES 4, 8; 0 without past */
#ifndef TEGULA_ENGRAM_REQUESTS_CUH
#define TEGULA_ENGRAM_REQUESTS_CUH

#include "device/ptx.cuh"
#include "engram/common/windows.h"

static_assert(MAX_NGRAM >= 0 && MAX_NGRAM <= COLUMN_UNROLLED, "MAX_NGRAM is 0 .. COLUMN_UNROLLED");
static_assert(ID_BYTES == 4 || ID_BYTES == 8, "ID_BYTES is 4 or 8");
static_assert(PAST >= PAST_NONE && PAST <= PAST_RING, "PAST is 0, 1 or 2");
static_assert(PAST_BYTES == 4 || PAST_BYTES == 8 || (PAST_BYTES == 0 && PAST == PAST_NONE), "PAST_BYTES is 0, 4 or 8");

#define REQUEST_ENTRIES 4               /* of a thread at a time */

template <int THREADS> struct request_scratch {
    i64 warp_max[THREADS / 32], base_begin;
    i32 base_number, warp_last[THREADS / 32], start[THREADS];   /* start: the request that begins at this token */
};

DEV i64 warp_scan_max(i64 v, int lane)  /* the largest up to this lane */
{
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const i64 other = __shfl_up_sync(FULL, v, d);
        if (lane >= d) v = max(v, other);
    }
    return v;
}

/* Notes which requests begin at tokens first .. first + THREADS - 1, and the one that `first` is in. Of requests that
 * begin at one token all but the last are empty. */
template <int THREADS> DEV void note_starts(const tgl_windows &w, i64 first, request_scratch<THREADS> &s)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 end = first + THREADS, none = (i64)1 << 62;       /* past all tokens */
    i64 carry = 0;
    s.start[threadIdx.x] = -1;
    if (threadIdx.x == 0) s.base_number = -1, s.base_begin = 0;
#pragma unroll 1
    for (i64 begin = 0; begin <= w.num_requests && carry < end; begin += THREADS * REQUEST_ENTRIES) {
        const i64 mine = begin + (i64)threadIdx.x * REQUEST_ENTRIES;
        i64 entry[REQUEST_ENTRIES + 1], largest = 0;
#pragma unroll
        for (int j = 0; j <= REQUEST_ENTRIES; j++)
            entry[j] = mine + j <= w.num_requests ? tgl_boundary_at(&w, mine + j) : none;
#pragma unroll
        for (int j = 0; j < REQUEST_ENTRIES; j++)
            if (entry[j] != none) largest = max(largest, entry[j]);
        const i64 scanned = warp_scan_max(largest, lane), left = __shfl_up_sync(FULL, scanned, 1);
        __syncthreads();                /* s.start is set, warp_max was read */
        if (lane == 31) s.warp_max[warp] = scanned;
        __syncthreads();
        i64 so_far = lane > 0 ? max(carry, left) : carry;
#pragma unroll
        for (int i = 0; i < THREADS / 32; i++) {
            if (i < warp) so_far = max(so_far, s.warp_max[i]);
            carry = max(carry, s.warp_max[i]);
        }
#pragma unroll
        for (int j = 0; j < REQUEST_ENTRIES; j++) {
            if (entry[j] == none) continue;
            so_far = max(so_far, entry[j]);
            if (entry[j + 1] <= so_far) continue;               /* is empty */
            if (so_far > first && so_far < end) s.start[so_far - first] = (i32)(mine + j);
            if (so_far <= first && entry[j + 1] > first) s.base_number = (i32)(mine + j), s.base_begin = so_far;
        }
    }
    __syncthreads();
}

/* The place of token first + threadIdx.x. All threads of the block call, and have a barrier before the next call. */
template <int THREADS> DEV tgl_place find_place(const tgl_windows &w, i64 first, request_scratch<THREADS> &s)
{
    if (!w.cu_seqlens) return { 0, 0 };
    note_starts(w, first, s);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 starts = __ballot_sync(FULL, s.start[threadIdx.x] >= 0);
    if (lane == 0) s.warp_last[warp] = starts ? 32 * warp + 31 - __clz(starts) : -1;
    __syncthreads();
    const u32 up_to_mine = starts & (lanes_below() | 1u << lane);
    i32 last = up_to_mine ? 32 * warp + 31 - __clz(up_to_mine) : -1;
#pragma unroll
    for (int i = THREADS / 32 - 1; i >= 0; i--)
        if (last < 0 && i < warp) last = s.warp_last[i];
    return { last < 0 ? s.base_number : s.start[last], last < 0 ? s.base_begin : first + last };
}

DEV bool is_in_request(const tgl_windows &w, const tgl_place &place)
{
    return place.number >= 0 && place.number < (w.cu_seqlens ? w.num_requests : 1);
}

/* The windows as a kernel has them: what is compiled in is known. PAST_BYTES is 0 where there is no past. */
DEV tgl_windows compiled(const tgl_windows &given)
{
    tgl_windows w = given;
    if (MAX_NGRAM) w.max_ngram = MAX_NGRAM;
    w.id_bytes = ID_BYTES;
    w.past = PAST;
    w.past_bytes = PAST_BYTES;
    return w;
}

/* tgl_window_of() in shared memory, through registers where they are enough. */
DEV bool make_window(const tgl_windows &w, const tgl_request &r, i64 token, i64 *to)
{
#if MAX_NGRAM
    int64_t window[MAX_NGRAM];
    const bool is_alive = tgl_window_of(&w, &r, token, MAX_NGRAM, window);
#pragma unroll
    for (int i = 0; i < MAX_NGRAM; i++) to[i] = window[i];
    return is_alive;
#else
    return tgl_window_of(&w, &r, token, w.max_ngram, (int64_t *)to);
#endif
}

#endif
