/* SPDX-License-Identifier: MIT
 * lookup_bwd.cu - the gradient of a table's rows: positions are sorted by row; then a warp has 32 sorted positions at a
 * time and sums the chunks of 32 that begin there. A row of several chunks is finished behind a barrier.
 *   computes  as tegula/engram.h says
 *   launch    cooperative: blocks wait for each other. grid up to LOOKUP_BWD_MAX_BLOCKS, block LOOKUP_BWD_THREADS,
 *             shared memory for the sort's counts
 *   moves     grad_out and indices once, 16 bytes a position and digit twice, rows of the outputs once
 *   macros    ELEMENT_BYTES 2 (bf16), 4 (f32): of grad_out */
#include "device/sort.cuh"
#include "engram/lookup_bwd.h"
static_assert(ELEMENT_BYTES == 2 || ELEMENT_BYTES == 4, "ELEMENT_BYTES is 2 or 4");

constexpr u32 THREADS = LOOKUP_BWD_THREADS, WARPS = THREADS / 32, NONE = 0xffffffffu;
constexpr int VECTOR = 16 / ELEMENT_BYTES;      /* elements */
constexpr int AT_ONCE = 8;                      /* rows that a warp loads before it adds the first */

/* ---- 32 sorted positions and the 32 after them ---- */

typedef struct {
    u64 key;                                    /* of the lane's position */
    u32 pair[2];                                /* where its gradient is, and that of the position 32 on */
    u32 number;                                 /* behind the first chunks: 1 + the row's number, if it is marked */
    u32 heads;                                  /* mask: the first of their row */
    u64 breaks;                                 /* of 64 positions: heads, and what is not owned */
} window;

DEV uint4 entry_at(const uint4 *sorted, u32 i) { return load_relaxed_u32x4(sorted + i); }

DEV window window_at(const lookup_bwd_args &a, const uint4 *sorted, u32 first)
{
    const u32 lane = threadIdx.x % 32;
    window w;
    u64 before = first > 0 ? sort_key(entry_at(sorted, first - 1)) : ~0ull;
    w.breaks = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 at = first + 32 * half + lane;
        const uint4 entry = at < a.count ? entry_at(sorted, at) : make_uint4(~0u, ~0u, 0, 0);
        const u64 key = sort_key(entry), left = __shfl_up_sync(FULL, key, 1);
        const bool is_owned = key < a.num_rows, is_head = is_owned && (lane > 0 ? left : before) != key;
        w.breaks |= (u64)__ballot_sync(FULL, !is_owned || is_head) << 32 * half;
        w.pair[half] = entry.z;
        if (half == 0) {
            w.key = key;
            w.number = entry.w;
            w.heads = __ballot_sync(FULL, is_head);
        }
        before = __shfl_sync(FULL, key, 31);
    }
    return w;
}

/* How many positions from i on, 32 at most, are of the same row. */
DEV u32 run_from(const window &w, u32 i)
{
    const u64 later = w.breaks >> i >> 1;
    return later ? min((u32)__ffsll((long long)later), 32u) : 32;
}
/* Does a row that begins at i have more than a chunk? */
DEV bool is_long(const window &w, u32 i) { return !((w.breaks >> i >> 1) & 0xffffffffull); }

/* ---- sums ---- */

DEV float element_of(const u32 *words, int i)
{
    if (ELEMENT_BYTES == 4) return __uint_as_float(words[i]);
    return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
}

template <int N> struct values { u32 w[N * ELEMENT_BYTES / 4 > 0 ? N * ELEMENT_BYTES / 4 : 1]; };

template <int N> DEV values<N> load_values(const lookup_bwd_args &a, u32 position, i64 col)
{
    const u32 token = tgl_divide(position, a.by_columns);
    const i64 column = position - (i64)token * a.num_columns;
    const u8 *from = (const u8 *)a.grad_out +
                     ((i64)token * a.grad_token_stride + column * a.grad_column_stride + col) * ELEMENT_BYTES;
    values<N> v;
    if constexpr (N > 1) {
        const uint4 all = load_stream_u32x4(from);
        v.w[0] = all.x, v.w[1] = all.y, v.w[2] = all.z, v.w[3] = all.w;
    } else {
        v.w[0] = ELEMENT_BYTES == 2 ? load_stream_u16(from) : load_stream_u32(from);
    }
    return v;
}

template <int N> DEV void store_floats(float *to, const float (&v)[N])
{
    if constexpr (N == 1) to[0] = v[0];
#pragma unroll
    for (int i = 0; N > 1 && i < N; i += 4)
        store_u32x4(to + i, make_uint4(__float_as_uint(v[i]), __float_as_uint(v[i + 1]), __float_as_uint(v[i + 2]),
                                       __float_as_uint(v[i + 3])));
}

/* A row's total goes to the outputs that are wanted. */
template <int N> DEV void put_total(const lookup_bwd_args &a, u64 row, u32 number, i64 col, const float (&sum)[N])
{
    float v[N];
    if (a.grad_rows) {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = tgl_one_nan(sum[i]);
        store_floats(a.grad_rows + (i64)number * a.dim + col, v);
    }
    if (!a.grad_table) return;
    float *const to = a.grad_table + (i64)row * a.table_stride + col;
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = tgl_one_nan(to[i] + sum[i]);
    store_floats(to, v);
}

/* The chunks of a window: mask `starts` has their first positions, `number` of a lane is that of its row. */
template <int N> DEV void sum_chunks(const lookup_bwd_args &a, const window &w, u32 first, u32 starts, u32 longs, u32 number)
{
    const u32 lane = threadIdx.x % 32, begin = (u32)__ffs((int)starts) - 1, last = 31 - (u32)__clz((int)starts);
    const u32 end = last + run_from(w, last);
#pragma unroll 1
    for (i64 slab = 0; slab < a.dim; slab += 32 * N) {
        const i64 col = slab + lane * N;
        float sum[N];
        u32 start = begin;
#pragma unroll 1
        for (u32 j = begin; j < end; j += AT_ONCE) {
            values<N> v[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const u32 here = __shfl_sync(FULL, w.pair[0], (int)(j + k) % 32);
                const u32 after = __shfl_sync(FULL, w.pair[1], (int)(j + k) % 32);
                v[k] = values<N>();
                if (j + k < end && col < a.dim) v[k] = load_values<N>(a, j + k < 32 ? here : after, col);
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const u32 at = j + k;
                if (at >= end) break;
                if (at < 32 && starts >> at & 1) {
                    start = at;
#pragma unroll
                    for (int i = 0; i < N; i++) sum[i] = 0;
                }
#pragma unroll
                for (int i = 0; i < N; i++) sum[i] += element_of(v[k].w, i);
                if (at + 1 < end && !(at + 1 < 32 && starts >> (at + 1) & 1)) continue;
                const u64 row = __shfl_sync(FULL, w.key, (int)start);
                const u32 of_row = __shfl_sync(FULL, number, (int)start);
                const bool is_head = w.heads >> start & 1;
                if (col >= a.dim) continue;
                if (is_head && !(longs >> start & 1)) put_total<N>(a, row, of_row, col, sum);
                else store_floats(a.partial + (2 * (i64)(first / 32) + is_head) * a.dim + col, sum);
            }
        }
    }
}

/* A long row's chunks, in 32 columns; what they take in the workspace is zero again. */
DEV void finish_row(const lookup_bwd_args &a, const uint4 *sorted, u32 head, i64 col)
{
    const u32 lane = threadIdx.x % 32;
    const uint4 entry = entry_at(sorted, head);
    const u64 row = sort_key(entry);
    float *const slots = a.partial + 2 * (i64)(head / 32) * a.dim + col;
    float sum[1] = { 0 };
    u32 num_chunks = 32;
#pragma unroll 1
    for (u32 chunk = 0; num_chunks == 32; chunk += 32) {
        const u64 at = head + (u64)LOOKUP_CHUNK * (chunk + lane);
        const bool is_there = at < a.count && sort_key(entry_at(sorted, (u32)min(at, (u64)a.count - 1))) == row;
        num_chunks = (u32)__popc(__ballot_sync(FULL, is_there));
#pragma unroll 1
        for (u32 k = 0; k < num_chunks; k += AT_ONCE) {
            float part[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                float *const slot = slots + (2 * (i64)(chunk + k + i) + (chunk + k + i == 0)) * a.dim;
                part[i] = 0;
                if (k + i >= num_chunks || col >= a.dim) continue;
                part[i] = __uint_as_float(load_relaxed_u32(slot));
                *slot = 0;
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (k + i < num_chunks) sum[0] = chunk + k + i ? sum[0] + part[i] : part[i];
        }
    }
    if (col < a.dim) put_total<1>(a, row, entry.w - 1, col, sum);
}

/* ---- the block's part ---- */

/* Sums over the block, in all threads; `words` has one for every warp and is free again behind the next barrier. */
DEV u32 block_sum(u32 v, u32 *words)
{
    const u32 of_warp = warp_add_u32(v), lane = threadIdx.x % 32;
    if (lane == 0) words[threadIdx.x / 32] = of_warp;
    __syncthreads();
    return warp_add_u32(lane < WARPS ? words[lane] : 0);
}
DEV u32 block_max(u32 v, u32 *words)
{
    const u32 of_warp = warp_max_u32(v), lane = threadIdx.x % 32;
    if (lane == 0) words[threadIdx.x / 32] = of_warp;
    __syncthreads();
    return warp_max_u32(lane < WARPS ? words[lane] : 0);
}

/* Heads in the block's part and, plus 1, where the last of them is: for the blocks behind. */
DEV void publish_heads(const lookup_bwd_args &a, const uint4 *sorted, u32 begin, u32 end, u32 *words)
{
    u32 count = 0, last = 0;
#pragma unroll 1
    for (u32 first = begin + threadIdx.x / 32 * 32; first < end; first += THREADS) {
        const u32 heads = window_at(a, sorted, first).heads;
        count += (u32)__popc(heads);
        if (heads) last = first + 32 - (u32)__clz((int)heads);
    }
    const u32 all = block_sum(threadIdx.x % 32 == 0 ? count : 0, words);
    const u32 largest = block_max(last, words + WARPS);
    if (threadIdx.x > 0) return;
    store_relaxed_u32(a.block_heads + blockIdx.x, all);
    store_relaxed_u32(a.block_last + blockIdx.x, largest);
}

template <int N> DEV void put_sums(const lookup_bwd_args &a, uint4 *sorted, u32 begin, u32 end, u32 number, u32 head,
                                   u32 *words)
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 *const counts = words, *const lasts = words + WARPS;
#pragma unroll 1
    for (u32 tile = begin; tile < end; tile += THREADS) {
        const u32 first = tile + warp * 32;
        const window w = window_at(a, sorted, min(first, a.count));
        const bool is_there = first < end;
        __syncthreads();                        /* words are free */
        if (lane == 0) {
            counts[warp] = is_there ? (u32)__popc(w.heads) : 0;
            lasts[warp] = is_there && w.heads ? first + 32 - (u32)__clz((int)w.heads) : 0;
        }
        __syncthreads();
        const u32 before = number + warp_add_u32(lane < warp ? counts[lane] : 0);
        const u32 head_before = warp_max_u32(lane < warp ? lasts[lane] : head);     /* plus 1; 0: none */
        number += warp_add_u32(lane < WARPS ? counts[lane] : 0);
        head = warp_max_u32(lane < WARPS ? max(lasts[lane], head) : head);
        if (!is_there) continue;

        const u32 up_to = w.heads & (lanes_below() << 1 | 1), mine = before + (u32)__popc(up_to) - 1;
        const u32 begins = up_to ? 31 - (u32)__clz((int)up_to) + first : head_before - 1;
        const bool is_owned = w.key < a.num_rows, is_head = w.heads >> lane & 1;
        const u32 starts = __ballot_sync(FULL, is_owned && (first + lane - begins) % LOOKUP_CHUNK == 0);
        const u32 longs = __ballot_sync(FULL, is_head && is_long(w, lane));
        if (is_head && a.unique_rows) {
            if (a.unique_bytes == 4) ((i32 *)a.unique_rows)[mine] = (i32)(a.row_begin + (i64)w.key);
            else ((i64 *)a.unique_rows)[mine] = a.row_begin + (i64)w.key;
        }
        if (longs >> lane & 1) store_relaxed_u32(&sorted[first + lane].w, mine + 1);
        if (starts) sum_chunks<N>(a, w, first, starts, longs, mine);
    }
}

/* Of rows with several chunks. Of 32 positions one at most is the first of such a row. */
DEV void finish_rows(const lookup_bwd_args &a, const uint4 *sorted, u32 begin, u32 end, u32 *words)
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 num_slabs = (u32)((a.dim + 31) / 32);
#pragma unroll 1
    for (u32 tile = begin; tile < end; tile += THREADS) {
        const u32 first = tile + warp * 32;
        const window w = window_at(a, sorted, min(first, a.count));
        const u32 longs = first < end ? __ballot_sync(FULL, w.number != 0) : 0;
        __syncthreads();
        if (lane == 0) words[warp] = longs ? first + (u32)__ffs((int)longs) - 1 : NONE;
        __syncthreads();
#pragma unroll 1
        for (u32 i = warp; i < WARPS * num_slabs; i += WARPS) {
            const u32 head = words[i / num_slabs];
            if (head != NONE) finish_row(a, sorted, head, (i64)(i % num_slabs) * 32 + lane);
        }
    }
}

extern "C" __global__ void __launch_bounds__(LOOKUP_BWD_THREADS) lookup_bwd(const __grid_constant__ lookup_bwd_args a)
{
    SHARED_DYNAMIC(memory, 16);
    SHARED(u32[2 * WARPS], words);
    const u32 begin = min(blockIdx.x * a.block_count, a.count), end = min(begin + a.block_count, a.count);
    const sort_work s = { a.counts, a.totals, a.barriers, begin, end, a.digit_bits };
    uint4 *from = (uint4 *)a.entries, *to = (uint4 *)a.next_entries;
    u32 *const barriers = a.barriers + SORT_PASS_BARRIERS * a.num_digits;
    pdl_wait();
    sort_pass<THREADS>(s, 0, to, [&](u32 position) {
        const u32 token = tgl_divide(position, a.by_columns);
        const u64 row = lookup_bwd_row(&a, token, position - (i64)token * a.num_columns);
        return make_uint4((u32)row, (u32)(row >> 32), position, 0);
    }, (u32 *)memory);
#pragma unroll 1
    for (u32 pass = 1; pass < a.num_digits; pass++) {
        uint4 *const sorted = to;
        to = from;
        from = sorted;
        sort_pass<THREADS>(s, pass, to, [&](u32 i) { return entry_at(sorted, i); }, (u32 *)memory);
    }

    publish_heads(a, to, begin, end, words);
    grid_barrier(barriers);
    u32 before = 0, all = 0, last = 0;
    for (u32 b = threadIdx.x; b < gridDim.x; b += THREADS) {
        const u32 count = load_relaxed_u32(a.block_heads + b), of_block = load_relaxed_u32(a.block_last + b);
        all += count;
        if (b < blockIdx.x) before += count, last = max(last, of_block);
    }
    const u32 number = block_sum(before, words);
    const u32 num_unique = block_sum(all, words + WARPS);
    __syncthreads();
    const u32 head = block_max(last, words);
    if (a.num_unique && blockIdx.x == 0 && threadIdx.x == 0) *a.num_unique = (i32)num_unique;
    for (u32 i = max(begin, num_unique) + threadIdx.x; a.unique_rows && i < end; i += THREADS) {
        if (a.unique_bytes == 4) ((i32 *)a.unique_rows)[i] = -1;
        else ((i64 *)a.unique_rows)[i] = -1;
    }
    if (a.has_vectors) put_sums<VECTOR>(a, to, begin, end, number, head, words);
    else put_sums<1>(a, to, begin, end, number, head, words);
    grid_barrier(barriers + 1);
    finish_rows(a, to, begin, end, words);
    grid_barrier(barriers + 2);

    for (u32 i = begin + threadIdx.x; i < end; i += THREADS)
        ((uint4 *)a.entries)[i] = ((uint4 *)a.next_entries)[i] = make_uint4(0, 0, 0, 0);
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < SORT_BINS * (gridDim.x + 1); i += gridDim.x * THREADS)
        *(i < SORT_BINS ? a.totals + i : a.counts + (i - SORT_BINS)) = 0;
    if (threadIdx.x == 0) a.block_heads[blockIdx.x] = a.block_last[blockIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x == 0 && atomic_inc_acq_rel(barriers + 3, gridDim.x - 1) == gridDim.x - 1)
        for (u32 i = 0; i < SORT_PASS_BARRIERS * a.num_digits + 3; i++) a.barriers[i] = 0;      /* all are past them */
    pdl_trigger();
}
