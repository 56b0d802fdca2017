/* SPDX-License-Identifier: MIT
 * rows.cu - table rows of token ids: windows in shared memory, then as hash.cu.
 *   computes  as tegula/engram.h says
 *   launch    grid (tiles of tokens, over which blocks stride; chunks of units), block up to COLUMN_THREADS, shared
 *             memory for the windows of a tile and request_scratch
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

DEV i64 *window_at(const tgl_columns &c, u8 *windows, i32 i)
{
    return (i64 *)windows + i * tgl_window_words(max_ngram_of(c));
}

/* The windows of tokens first .. first + tokens - 1 to rows. All that the loop needs is in registers: with few tokens
 * a thread waits for every step of it. */
DEV void put_windows(const tgl_columns &c, const unit &u, u8 *windows, i64 first, i32 tokens)
{
    if (!u.at.is_there) return;
    row_type *to = row_of(c, u.at, first + u.at.slot);
#if MAX_NGRAM
    const u32 window_bytes = 8 * tgl_window_words(MAX_NGRAM), window_step = kept_u32((u32)c.slots * window_bytes);
    u32 window = kept_u32(shared_address(windows)) + (u32)u.at.slot * window_bytes;
#endif
#pragma unroll 1
    for (i32 i = u.at.slot; i < tokens; i += c.slots, to += c.slots_stride) {
#if MAX_NGRAM
        const hashed h = hash_of(window, u.multiplier);
        window += window_step;
#else
        const i64 *const window = window_at(c, windows, i);
        hashed h = { 0, (u32)window[c.max_ngram] };
#pragma unroll 1
        for (i32 k = 0; k <= u.at.order && !h.none; k++)
            h.hash ^= (u64)window[k] * (u64)c.multipliers[(i64)u.at.layer * c.max_ngram + k];
#endif
        put_rows(c, u, h.hash, h.none, to);
    }
}

#if MAX_NGRAM && PAST == PAST_NONE
/* ---- one request without a past: ROW_LANES neighbouring lanes have a window, one id each. That takes more
 * instructions a token than a thread for each, but fewer of them one after the other. ---- */

DEV bool is_in_window(i32 tokens)
{
    return threadIdx.x / ROW_LANES(MAX_NGRAM) < (u32)tokens && threadIdx.x % ROW_LANES(MAX_NGRAM) < MAX_NGRAM;
}

struct lane_loads {
    loaded id;
    bool is_there, is_masked;
};
DEV lane_loads load_lane(const tgl_windows &w, i64 first, i32 tokens)
{
    const i64 token = first + threadIdx.x / ROW_LANES(MAX_NGRAM) - threadIdx.x % ROW_LANES(MAX_NGRAM);
    lane_loads l;
    l.is_there = token >= 0 && is_in_window(tokens);
    l.id = load_integer_if(w.input_ids, token * w.id_stride, ID_BYTES, l.is_there);
    l.is_masked = l.is_there && w.image_token_mask && w.image_token_mask[token];
    return l;
}

struct lane_entry {
    i64 id;
    u32 mapped, none;
    bool has_entry;
};
DEV lane_entry load_entry(const tgl_windows &w, const lane_loads &l)
{
    const u32 lane = threadIdx.x % 32, i = threadIdx.x % ROW_LANES(MAX_NGRAM);
    const i64 id = l.is_there && !l.is_masked ? value_of(l.id, ID_BYTES) : -1;
    const bool is_mapped = tgl_is_mapped(&w, id), is_stop = i > 0 && w.has_stop_id && id == w.stop_id;
    lane_entry e;
    e.mapped = load_u32_if(w.token_map + id, w.token_map && is_mapped);
    const u32 cuts = __ballot_sync(FULL, !is_mapped || is_stop) >> (lane - i); /* bit 0: the window's first id */
    const bool is_cut = cuts << (31 - i) != 0;
    e.id = is_cut ? w.pad_id : id;
    e.has_entry = !is_cut && w.token_map;
    e.none = is_mapped || w.hash_dead ? 0 : COLUMN_NONE;
    return e;
}

DEV void store_entry(const tgl_columns &c, u8 *windows, const lane_entry &e, i32 tokens)
{
    const u32 i = threadIdx.x % ROW_LANES(MAX_NGRAM);
    i64 *const window = window_at(c, windows, (i32)(threadIdx.x / ROW_LANES(MAX_NGRAM)));
    if (!is_in_window(tokens)) return;
    window[i] = e.has_entry ? (i32)e.mapped : e.id;
    if (i == 0) window[MAX_NGRAM] = e.none;
}

/* Ids of the next tile are on their way while rows of this one are found. */
DEV void put_tiles(const tgl_columns &c, const tgl_windows &w, u8 *windows)
{
    const i64 step = (i64)gridDim.x * c.tile_tokens;
    i64 first = (i64)blockIdx.x * c.tile_tokens;
    i32 tokens = (i32)min((i64)c.tile_tokens, c.num_tokens - first);
    const lane_loads lane = load_lane(w, first, tokens);
    const unit_loads loads = load_unit(c, (i32)blockIdx.y);
    lane_entry entry = load_entry(w, lane);
    const unit u = unit_of(c, loads);
#pragma unroll 1
    while (true) {
        store_entry(c, windows, entry, tokens);
        const i64 next = first + step;
        const i32 next_tokens = (i32)max((i64)0, min((i64)c.tile_tokens, c.num_tokens - next));
        const lane_loads next_lane = load_lane(w, next, next_tokens);
        __syncthreads();
        put_windows(c, u, windows, first, tokens);
        if (next_tokens == 0) return;
        entry = load_entry(w, next_lane);
        first = next, tokens = next_tokens;
        __syncthreads();
    }
}
#endif

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

extern "C" __global__ void __launch_bounds__(COLUMN_THREADS, COLUMN_ROWS_BLOCKS - (MAX_NGRAM > 4))
    rows(const __grid_constant__ rows_args a)
{
    const tgl_columns &c = a.columns;
    tgl_windows w = compiled(a.windows);
    w.keeps_ids = false;
    SHARED_DYNAMIC(memory, 16);
    scratch_type &scratch = *(scratch_type *)window_at(c, memory, c.num_windows);
#if MAX_NGRAM && PAST == PAST_NONE
    if (a.has_lanes) {
        pdl_wait();
        put_tiles(c, w, memory);
        pdl_trigger();
        return;
    }
#endif
    const int thread = (int)threadIdx.x, lane = thread % 32;
    const i64 step = (i64)gridDim.x * c.tile_tokens;
    pdl_wait();
    i32 chunk_here = (i32)blockIdx.y; /* whose unit the thread has */
    unit_loads loads = load_unit(c, chunk_here);
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
                i64 *const window = window_at(c, memory, thread);
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
                if (chunk != chunk_here) loads = load_unit(c, chunk);
                chunk_here = chunk;
                const unit u = unit_of(c, loads);
                __syncthreads();
                put_windows(c, u, memory, first, tokens);
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
