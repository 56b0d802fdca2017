/* SPDX-License-Identifier: MIT
 * requests.cuh - the requests of consecutive tokens, one per thread of a block. Entries of cu_seqlens are read once,
 * all in flight together, where a search would wait for one after the other, and with them what is known of their
 * requests; the largest entry so far (a scan) holds them in order, whatever they are.
 *   macros    MAX_NGRAM 1 .. COLUMN_UNROLLED, 0: any; ID_BYTES 4, 8; PAST 0 (none), 1 (history), 2 (ring);
 *             PAST_BYTES 4, 8; 0 without past */
#ifndef TEGULA_ENGRAM_REQUESTS_CUH
#define TEGULA_ENGRAM_REQUESTS_CUH

#include "device/ptx.cuh"
#include "engram/common/integers.cuh"
#include "engram/common/windows.h"

static_assert(MAX_NGRAM >= 0 && MAX_NGRAM <= COLUMN_UNROLLED, "MAX_NGRAM is 0 .. COLUMN_UNROLLED");
static_assert(ID_BYTES == 4 || ID_BYTES == 8, "ID_BYTES is 4 or 8");
static_assert(PAST >= PAST_NONE && PAST <= PAST_RING, "PAST is 0, 1 or 2");
static_assert(PAST_BYTES == 4 || PAST_BYTES == 8 || (PAST_BYTES == 0 && PAST == PAST_NONE), "PAST_BYTES is 0, 4 or 8");

#define REQUEST_ENTRIES 2 /* of a thread at a time */

/* A request that a token of the block is in, and behind its last token. */
struct found_request {
    tgl_request r;
    i64 end;
};

/* Requests that begin at tokens of the block, and the one that its first token is in, behind them. With HAS_FACTS, for
 * find_request(); find_place() needs none. */
template <int THREADS, bool HAS_FACTS = false> struct request_scratch {
    enum { FACTS = HAS_FACTS ? THREADS + 1 : 1 };
    i64 warp_max[(THREADS / 32 + 1) / 2 * 2]; /* loads of 16 bytes read nothing that others write */
    i64 base_begin, slot[FACTS], end[FACTS];
    i32 warp_last[THREADS / 32], number[THREADS + 1], start[FACTS], reach[FACTS];
};

DEV i64 warp_scan_max(i64 v, int lane) /* the largest up to this lane */
{
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const i64 other = __shfl_up_sync(FULL, v, d);
        if (lane >= d) v = max(v, other);
    }
    return v;
}

/* Notes which requests begin at tokens first .. first + blockDim.x - 1, and the one that `first` is in. Of requests
 * that begin at one token all but the last are empty. */
template <int THREADS, bool HAS_FACTS>
DEV void note_requests(const tgl_windows &w, i64 first, request_scratch<THREADS, HAS_FACTS> &s)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (int)blockDim.x / 32;
    const i64 end = first + blockDim.x, none = (i64)1 << 62; /* past all tokens */
    i64 carry = 0;
    s.number[threadIdx.x] = -1;
    if (threadIdx.x == 0) s.number[THREADS] = -1, s.base_begin = 0;
#pragma unroll 1
    for (i64 begin = 0; begin <= w.num_requests && carry < end; begin += blockDim.x * REQUEST_ENTRIES) {
        const i64 mine = begin + (i64)threadIdx.x * REQUEST_ENTRIES;
        i64 entry[REQUEST_ENTRIES + 1], largest = 0;
        loaded entries[REQUEST_ENTRIES + 1], starts[REQUEST_ENTRIES], slots[REQUEST_ENTRIES];
#pragma unroll
        for (int j = 0; j <= REQUEST_ENTRIES; j++)
            entries[j] = load_integer_if(w.cu_seqlens, mine + j, w.cu_bytes, mine + j <= w.num_requests);
#pragma unroll
        for (int j = 0; j < REQUEST_ENTRIES; j++) {
            const bool is_there = HAS_FACTS && mine + j < w.num_requests;
            starts[j] = load_integer_if(w.start_pos, mine + j, w.start_bytes, is_there && w.start_pos);
            slots[j] = load_integer_if(w.slots, mine + j, w.slot_bytes, is_there && w.past == PAST_RING && w.slots);
        }
#pragma unroll
        for (int j = 0; j <= REQUEST_ENTRIES; j++)
            entry[j] = mine + j <= w.num_requests ? tgl_boundary_of(&w, value_of(entries[j], w.cu_bytes)) : none;
#pragma unroll
        for (int j = 0; j < REQUEST_ENTRIES; j++)
            if (entry[j] != none) largest = max(largest, entry[j]);
        const i64 scanned = warp_scan_max(largest, lane), left = __shfl_up_sync(FULL, scanned, 1);
        __syncthreads(); /* s.number is set, warp_max was read */
        if (lane == 31) s.warp_max[warp] = scanned;
        __syncthreads();
        i64 so_far = lane > 0 ? max(carry, left) : carry;
#pragma unroll 4
        for (int i = 0; i < warps; i++) {
            if (i < warp) so_far = max(so_far, s.warp_max[i]);
            carry = max(carry, s.warp_max[i]);
        }
#pragma unroll
        for (int j = 0; j < REQUEST_ENTRIES; j++) {
            if (entry[j] == none) continue;
            so_far = max(so_far, entry[j]);
            if (entry[j + 1] <= so_far || entry[j + 1] <= first || so_far >= end) continue; /* no token here */
            const u32 at = so_far > first ? (u32)(so_far - first) : THREADS;
            if (at == THREADS) s.base_begin = so_far;
            s.number[at] = (i32)(mine + j);
            if constexpr (!HAS_FACTS) continue;
            const i64 start = tgl_start_of(&w, value_of(starts[j], w.start_bytes));
            const i64 slot = tgl_slot_of(&w, mine + j, value_of(slots[j], w.slot_bytes));
            const tgl_request r = tgl_request_of(&w, { mine + j, so_far }, start, slot);
            s.slot[at] = r.slot;
            s.start[at] = (i32)r.start;
            s.reach[at] = r.reach;
            s.end[at] = entry[j + 1];
        }
    }
    __syncthreads();
}

/* Where what is noted of the request of token first + threadIdx.x is. */
template <int THREADS, bool HAS_FACTS>
DEV u32 noted_at(const tgl_windows &w, i64 first, request_scratch<THREADS, HAS_FACTS> &s)
{
    note_requests(w, first, s);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 starts = __ballot_sync(FULL, s.number[threadIdx.x] >= 0);
    if (lane == 0) s.warp_last[warp] = starts ? 32 * warp + 31 - __clz(starts) : -1;
    __syncthreads();
    const u32 up_to_mine = starts & (lanes_below() | 1u << lane);
    i32 last = up_to_mine ? 32 * warp + 31 - __clz(up_to_mine) : -1;
#pragma unroll 1
    for (int i = warp - 1; i >= 0 && last < 0; i--) last = s.warp_last[i];
    return last < 0 ? THREADS : (u32)last;
}

/* The place, or the request, of token first + threadIdx.x. All threads of the block call, and have a barrier before the
 * next call. */
template <int THREADS, bool HAS_FACTS>
DEV tgl_place find_place(const tgl_windows &w, i64 first, request_scratch<THREADS, HAS_FACTS> &s)
{
    if (!w.cu_seqlens) return { 0, 0 };
    const u32 at = noted_at(w, first, s);
    return { s.number[at], at == THREADS ? s.base_begin : first + at };
}
template <int THREADS>
DEV found_request find_request(const tgl_windows &w, i64 first, request_scratch<THREADS, true> &s)
{
    if (!w.cu_seqlens) return { tgl_request_at(&w, { 0, 0 }), w.num_tokens };
    const u32 at = noted_at(w, first, s);
    const tgl_place place = { s.number[at], at == THREADS ? s.base_begin : first + at };
    return { { place, s.slot[at], s.start[at], s.reach[at] }, s.end[at] };
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

/* tgl_window_of() in shared memory, through registers where they are enough: first all loads of ids and of the mask,
 * then all of the map, so that none waits for another of its kind. */
DEV bool make_window(const tgl_windows &w, const tgl_request &r, i64 token, i64 *to)
{
#if MAX_NGRAM
    const i64 p = token - r.place.begin, reach = p + r.reach;
    loaded ids[MAX_NGRAM], past[MAX_NGRAM];
    i64 id[MAX_NGRAM];
    u32 mapped[MAX_NGRAM];
    bool is_masked[MAX_NGRAM], has_entry[MAX_NGRAM], is_cut = false, is_alive = true;
#pragma unroll
    for (int i = 0; i < MAX_NGRAM; i++) {
        ids[i] = load_integer_if(w.input_ids, (token - i) * w.id_stride, ID_BYTES, i <= p);
        if (PAST != PAST_NONE)
            past[i] = load_integer_if(tgl_past_of(&w), tgl_past_index(&w, &r, i - p), PAST_BYTES, i > p && i <= reach);
    }
#pragma unroll
    for (int i = 0; i < MAX_NGRAM; i++) is_masked[i] = w.image_token_mask && i <= p && w.image_token_mask[token - i];
#pragma unroll
    for (int i = 0; i < MAX_NGRAM; i++) {
        id[i] = i <= p && !is_masked[i] ? value_of(ids[i], ID_BYTES) : -1;
        if (PAST != PAST_NONE && i > p && i <= reach) id[i] = value_of(past[i], PAST_BYTES);
        const bool is_stop = i > 0 && w.has_stop_id && id[i] == w.stop_id, is_mapped = tgl_is_mapped(&w, id[i]);
        if (i == 0) is_alive = is_mapped || w.keeps_ids;
        is_cut = is_cut || i > reach || is_stop || !(is_mapped || w.keeps_ids);
        has_entry[i] = !is_cut && w.token_map && is_mapped;
        mapped[i] = load_u32_if(w.token_map + id[i], has_entry[i]);
        if (is_cut) id[i] = w.pad_id;
    }
#pragma unroll
    for (int i = 0; i < MAX_NGRAM; i++) to[i] = has_entry[i] ? (i32)mapped[i] : id[i];
    return is_alive;
#else
    return tgl_window_of(&w, &r, token, w.max_ngram, (int64_t *)to);
#endif
}

#endif
