/* SPDX-License-Identifier: MIT
 * lookup_bwd.cu - the gradient of a table's rows.
 *   computes  as tegula/engram.h says
 *   launch    cooperative: blocks wait for each other. Any grid of at least num_sorters blocks of
 *             LOOKUP_BWD_FEW_THREADS to LOOKUP_BWD_THREADS, shared memory as sort.cuh says
 *   moves     grad_out and indices once, rows of the outputs once; of an index the sort moves three times its key's
 *             bytes for each digit
 *   macros    ELEMENT_BYTES 2 (bf16), 4 (f32): of grad_out; KEY_BYTES 4 if num_rows < 2^32 - 1, or 8
 *
 *   1  Blocks write the rows of positions; the first blocks sort positions by row.
 *   2  A window is 32 sorted positions. For each, a sorter stores how many rows begin before it in its part, and where
 *      the last of them does; then the same for its whole part.
 *   3  All blocks: a warp takes `span` positions of a window and sums the chunks of 32 that begin there. Rows of one
 *      chunk are done; sums of other chunks go to the workspace, their rows to a list.
 *   4  Behind a barrier, a warp adds the chunks of a listed row in 32 columns.
 * Blocks do not meet before 4: who needs a word of the workspace waits until it is not 0. When the kernel is not in the
 * caches, its code takes longer to load than 100,000 positions to sort: loops are not unrolled without need. */
#include "device/grid.cuh"
#include "device/sort.cuh"
#include "engram/lookup_bwd.h"
static_assert(ELEMENT_BYTES == 2 || ELEMENT_BYTES == 4, "ELEMENT_BYTES is 2 or 4");
static_assert(KEY_BYTES == 4 || KEY_BYTES == 8, "KEY_BYTES is 4 or 8");
static_assert(LOOKUP_BWD_FEW_THREADS >= SORT_MIN_THREADS, "a thread reads four bins");

constexpr u32 MAX_WARPS = LOOKUP_BWD_THREADS / 32;
constexpr int VECTOR = 16 / ELEMENT_BYTES;      /* elements */
constexpr int AT_ONCE = 4;                      /* elements, one a row, that a lane loads before it adds the first */
constexpr int STAGES = 8;                       /* rows of a warp in shared memory: one is added, others come */
constexpr int CHUNKS_AT_ONCE = 16;              /* sums of chunks that a lane loads before it adds the first */

template <int BYTES> struct types { typedef u32 key; typedef uint2 entry; };
template <> struct types<8> { typedef u64 key; typedef uint4 entry; };
typedef types<KEY_BYTES>::key key_type;
typedef types<KEY_BYTES>::entry entry_type;

DEV uint2 wait_u32x2(const u32 *from)
{
    uint2 v;
#pragma unroll 1
    do v = load_relaxed_u32x2(from);
    while (!v.x || !v.y);
    return v;
}

/* ---- 32 sorted positions and the 32 after them ---- */

typedef struct {
    key_type key;                               /* of the lane's position */
    u32 position[2];                            /* where its gradient is, and that of the sorted position 32 on */
    u32 heads;                                  /* mask: the first of their row */
    u64 breaks;                                 /* of 64: heads, and what is not owned */
} window;

/* What is loaded for a window: words that may not be there yet. */
typedef struct {
    uint2 before;                               /* a.windows */
    entry_type left, here, later;               /* before the window, the lane's, that 32 on */
} loaded_window;

DEV bool is_complete(const loaded_window &l)
{
    return l.before.x && l.before.y && sort_is_set(l.left) && sort_is_set(l.here) && sort_is_set(l.later);
}

DEV entry_type entry_at(const lookup_bwd_args &a, const entry_type *sorted, u32 i)
{
    entry_type e;
    sort_set(e, a.num_rows, 0);                 /* there is none: not owned */
    if (i < a.count) sort_load(e, sorted + i);
    return e;
}

DEV loaded_window load_window(const lookup_bwd_args &a, const entry_type *sorted, u32 first)
{
    const u32 at = first + threadIdx.x % 32;
    loaded_window l;
    l.before = load_relaxed_u32x2(a.windows + first / 16);
    l.left = entry_at(a, sorted, first > 0 ? first - 1 : a.count);
    l.here = entry_at(a, sorted, at);
    l.later = entry_at(a, sorted, at + 32);
    return l;
}

/* Heads are an owned row's first sorted positions. */
DEV u32 heads_of(const lookup_bwd_args &a, entry_type left, key_type key)
{
    const key_type before = __shfl_up_sync(FULL, key, 1);
    return __ballot_sync(FULL, key < (key_type)a.num_rows && (threadIdx.x % 32 > 0 ? before : sort_key(left)) != key);
}

DEV window window_of(const lookup_bwd_args &a, const loaded_window &l)
{
    const key_type key = sort_key(l.here), later = sort_key(l.later);
    const key_type left = __shfl_up_sync(FULL, later, 1), last = __shfl_sync(FULL, key, 31);
    const u32 foreign = __ballot_sync(FULL, key >= (key_type)a.num_rows);
    const u32 breaks = __ballot_sync(FULL, later >= (key_type)a.num_rows ||
                                               later != (threadIdx.x % 32 > 0 ? left : last));
    window w;
    w.key = key;
    w.position[0] = sort_value(l.here), w.position[1] = sort_value(l.later);
    w.heads = heads_of(a, l.left, key);
    w.breaks = (u64)breaks << 32 | w.heads | foreign;
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

/* Where the row with this key ends, one of whose positions is `low`. */
DEV u32 end_of_row(const lookup_bwd_args &a, const entry_type *sorted, u32 low, key_type key)
{
    const u32 lane = threadIdx.x % 32;
    u32 high = a.count;                         /* the end is above low, and high at most */
#pragma unroll 1
    while (high - low > 1) {
        const u32 step = (high - low + 31) / 32;
        const u64 at = low + (u64)(lane + 1) * step;
        const bool is_same = at < high && sort_key(sort_wait(sorted + at)) == key;
        const u32 num_same = (u32)__popc(__ballot_sync(FULL, is_same));
        high = (u32)min((u64)high, low + (u64)(num_same + 1) * step);
        low += num_same * step;
    }
    return high;
}

/* ---- sums ---- */

DEV float element_of(const u32 *words, int i)
{
    if (ELEMENT_BYTES == 4) return __uint_as_float(words[i]);
    return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
}

DEV const u8 *gradient_of(const lookup_bwd_args &a, u32 position, i64 col)
{
    const u32 token = tgl_divide(position, a.by_columns);
    const i64 column = position - (i64)token * a.num_columns;
    return (const u8 *)a.grad_out +
           ((i64)token * a.grad_token_stride + column * a.grad_column_stride + col) * ELEMENT_BYTES;
}

/* WIDTH columns of an output, aligned to them; nobody reads them soon. */
template <int WIDTH> DEV void put_floats(float *to, const float (&sum)[WIDTH])
{
    if constexpr (WIDTH == 1) store_stream_u32(to, __float_as_uint(tgl_one_nan(sum[0])));
    else store_stream_u32x4(to, make_uint4(__float_as_uint(tgl_one_nan(sum[0])), __float_as_uint(tgl_one_nan(sum[1])),
                                           __float_as_uint(tgl_one_nan(sum[2])), __float_as_uint(tgl_one_nan(sum[3]))));
}

/* A row's total goes to the outputs that are wanted. */
template <int WIDTH>
DEV void put_total(const lookup_bwd_args &a, u64 row, u32 number, i64 col, const float (&sum)[WIDTH])
{
    if (a.grad_rows) put_floats(a.grad_rows + (i64)number * a.dim + col, sum);
    if (!a.grad_table) return;
    float *const to = a.grad_table + (i64)row * a.table_stride + col;
    float v[WIDTH];
    if constexpr (WIDTH == 1) {
        v[0] = to[0] + sum[0];
    } else {
        const float4 old = *(const float4 *)to;
        v[0] = old.x + sum[0], v[1] = old.y + sum[1], v[2] = old.z + sum[2], v[3] = old.w + sum[3];
    }
    put_floats(to, v);
}

/* The table's rows at `heads` are read when they are summed. */
DEV void prefetch_table(const lookup_bwd_args &a, const window &w, u32 heads)
{
#pragma unroll 1
    while (heads) {
        const key_type row = __shfl_sync(FULL, w.key, take_lane(heads));
        const float *const from = a.grad_table + (i64)row * a.table_stride;
#pragma unroll 1
        for (i64 i = 32 * (threadIdx.x % 32); i < a.dim; i += 32 * 32) prefetch_l2(from + i);
    }
}

/* The chunks that begin in some of a window's positions. */
typedef struct {
    u32 first;                                  /* sorted position of the window */
    u32 starts, longs;                          /* masks: where they begin; of these, first ones of rows with several */
    u32 number;                                 /* of the lane's row */
    u32 begin, end;                             /* positions from the window's first on; the end may be behind it */
} chunks;

/* Adds a row to the sum of its chunk, which is stored if it is complete. A lane has WIDTH columns from col on, and as
 * many 128 on. */
template <int PIECES, int WIDTH>
DEV void add_row(const lookup_bwd_args &a, const window &w, const chunks &c, u32 at, i64 col, const u32 *words,
                 u32 &start, float (&sum)[PIECES][WIDTH])
{
    if (at < 32 && c.starts >> at & 1) {
        start = at;
#pragma unroll
        for (int i = 0; i < PIECES * WIDTH; i++) sum[i / WIDTH][i % WIDTH] = 0;
    }
#pragma unroll
    for (int i = 0; i < PIECES * WIDTH; i++) sum[i / WIDTH][i % WIDTH] += element_of(words, i);
    if (at + 1 < c.end && !(at + 1 < 32 && c.starts >> (at + 1) & 1)) return;
    const key_type row = __shfl_sync(FULL, w.key, (int)start);
    const u32 number = __shfl_sync(FULL, c.number, (int)start);
    const bool is_head = w.heads >> start & 1;
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        const i64 first = col + 128 * piece;
        if (first >= a.dim) break;
        if (is_head && !(c.longs >> start & 1)) {
            put_total<WIDTH>(a, row, number, first, sum[piece]);
            continue;
        }
        float *const to = a.partial + (2 * (i64)(c.first / 32) + is_head) * a.dim + first;
        if constexpr (WIDTH == 1) *to = sum[piece][0];
        else *(float4 *)to = make_float4(sum[piece][0], sum[piece][1], sum[piece][2], sum[piece][3]);
    }
}

DEV u32 position_at(const window &w, u32 at)
{
    return __shfl_sync(FULL, at < 32 ? w.position[0] : w.position[1], (int)at % 32);
}

/* Rows of vectors. A lane copies 16 bytes of a row, and adds others: 4 columns, in bf16 twice, so that its stores are
 * beside those of the next lane. `stages` is the warp's shared memory. */
DEV void sum_vectors(const lookup_bwd_args &a, const window &w, const chunks &c, u32 stages)
{
    const u32 lane = threadIdx.x % 32;
#pragma unroll 1
    for (i64 slab = 0; slab < a.dim; slab += 32 * VECTOR) {
        const i64 col = slab + lane * 4, copied = slab + lane * VECTOR;
        float sum[VECTOR / 4][4] = { };
        u32 start = 0;
        __syncwarp();
#pragma unroll 1
        for (u32 i = c.begin; i < c.end + STAGES - 1; i++) {
            const u32 position = position_at(w, min(i, c.end - 1));
            if (i < c.end && copied < a.dim)
                copy_async_16(stages + i % STAGES * 512 + lane * 16, gradient_of(a, position, copied));
            copy_async_commit();
            if (i < c.begin + STAGES - 1) continue;
            copy_async_wait<STAGES - 1>();
            __syncwarp();
            const u32 at = i - (STAGES - 1), from = stages + at % STAGES * 512;
            u32 words[4] = { 0, 0, 0, 0 };
            if constexpr (ELEMENT_BYTES == 4) {
                const uint4 v = col < a.dim ? shared_load_u32x4(from + lane * 16) : make_uint4(0, 0, 0, 0);
                words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
            } else {
                const uint2 low = col < a.dim ? shared_load_u32x2(from + lane * 8) : make_uint2(0, 0);
                const uint2 high = col + 128 < a.dim ? shared_load_u32x2(from + 256 + lane * 8) : make_uint2(0, 0);
                words[0] = low.x, words[1] = low.y, words[2] = high.x, words[3] = high.y;
            }
            __syncwarp();                       /* the stage is free */
            add_row<VECTOR / 4, 4>(a, w, c, at, col, words, start, sum);
        }
    }
}

/* Any rows. */
DEV void sum_elements(const lookup_bwd_args &a, const window &w, const chunks &c)
{
#pragma unroll 1
    for (i64 col = threadIdx.x % 32; col - threadIdx.x % 32 < a.dim; col += 32) {
        float sum[1][1] = { { 0 } };
        u32 start = 0;
#pragma unroll 1
        for (u32 j = c.begin; j < c.end; j += AT_ONCE) {
            u32 v[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const u8 *const from = gradient_of(a, position_at(w, min(j + k, c.end - 1)), col);
                v[k] = 0;
                if (j + k < c.end && col < a.dim)
                    v[k] = ELEMENT_BYTES == 2 ? load_stream_u16(from) : load_stream_u32(from);
            }
#pragma unroll 1
            for (u32 at = j; at < min(j + AT_ONCE, c.end); at++) {
                add_row<1, 1>(a, w, c, at, col, v, start, sum);
                rotate(v);
            }
        }
    }
}

/* ---- 2: windows ---- */

DEV void publish_windows(const lookup_bwd_args &a, const entry_type *sorted, u32 begin, u32 end)
{
    SHARED(u32[MAX_WARPS], counts);
    SHARED(u32[MAX_WARPS], lasts);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
    u32 number = 0, head = 0;                   /* rows so far; where the last begins, plus 1 */
#pragma unroll 1
    for (u32 tile = begin; tile < end; tile += blockDim.x) {
        const u32 first = tile + warp * 32;
        u32 heads = 0;
        if (first < end) {
            entry_type left, here;
#pragma unroll 1
            do {
                left = entry_at(a, sorted, first > 0 ? first - 1 : a.count);
                here = entry_at(a, sorted, first + lane);
            } while (!sort_is_set(left) || !sort_is_set(here));
            heads = heads_of(a, left, sort_key(here));
        }
        __syncthreads();                        /* counts and lasts are free */
        if (lane == 0) {
            counts[warp] = (u32)__popc(heads);
            lasts[warp] = heads ? first + 32 - (u32)__clz((int)heads) : 0;
        }
        __syncthreads();
        const u32 before = number + warp_add_u32(lane < warp ? counts[lane] : 0);
        const u32 head_before = warp_max_u32(lane < warp ? lasts[lane] : head);
        number += warp_add_u32(lane < num_warps ? counts[lane] : 0);
        head = max(head, warp_max_u32(lane < num_warps ? lasts[lane] : 0));
        if (first < end && lane == 0)
            store_relaxed_u32x2(a.windows + first / 16, make_uint2(before + 1, head_before + 1));
    }
    if (threadIdx.x == 0) store_relaxed_u32x2(a.parts + 2 * blockIdx.x, make_uint2(number + 1, head + 1));
}

typedef struct {
    u32 number[LOOKUP_BWD_SORTERS];             /* rows in earlier parts */
    u32 head[LOOKUP_BWD_SORTERS];               /* where the last of them begins, plus 1; 0: none */
    u32 num_unique;
} rows_of_parts;

/* By a warp. */
DEV void take_parts(const lookup_bwd_args &a, rows_of_parts &rows)
{
    const u32 lane = threadIdx.x % 32;
    u32 number = 0, head = 0;
#pragma unroll 1
    for (u32 part = lane; part - lane < a.num_sorters; part += 32) {
        const uint2 words = part < a.num_sorters ? wait_u32x2(a.parts + 2 * part) : make_uint2(1, 1);
        u32 total, last = words.y - 1;
        const u32 before = warp_exclusive_scan(words.x - 1, (int)lane, total);
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const u32 other = __shfl_up_sync(FULL, last, d);
            if ((int)lane >= d) last = max(last, other);
        }
        const u32 left = __shfl_up_sync(FULL, last, 1), largest = __shfl_sync(FULL, last, 31);
        if (part < a.num_sorters) {
            rows.number[part] = number + before;
            rows.head[part] = max(head, lane > 0 ? left : 0);
        }
        number += total;
        head = max(head, largest);
    }
    if (lane == 0) rows.num_unique = number;
}

/* ---- 3: sums ---- */

DEV void put_unique(const lookup_bwd_args &a, u32 number, i64 row)
{
    if (a.unique_bytes == 4) ((i32 *)a.unique_rows)[number] = (i32)row;
    else ((i64 *)a.unique_rows)[number] = row;
}

DEV void put_sums(const lookup_bwd_args &a, const entry_type *sorted, const rows_of_parts &rows, u32 memory)
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
    const u32 shift = (u32)__ffs((int)(32 / a.span)) - 1, num_tasks = (a.count + 31) / 32 << shift;
    const u32 begin = blockIdx.x + gridDim.x * warp, step = gridDim.x * num_warps;
    loaded_window next = load_window(a, sorted, min(begin, num_tasks) >> shift << 5);
#pragma unroll 1
    for (u32 task = begin; task < num_tasks; task += step) {
        const u32 first = task >> shift << 5, part = first / a.part;
        const u32 mask = FULL >> (32 - a.span) << ((task & ((1u << shift) - 1)) * a.span);
        loaded_window l = next;
#pragma unroll 1
        while (!is_complete(l)) l = load_window(a, sorted, first);
        if (num_tasks - task > step) next = load_window(a, sorted, (task + step) >> shift << 5);
        const uint2 before = l.before;
        const window w = window_of(a, l);
        const u32 head_before = before.y > 1 ? before.y - 1 : rows.head[part];
        const u32 up_to = w.heads & (lanes_below() << 1 | 1);
        const u32 number = rows.number[part] + before.x - 1 + (u32)__popc(up_to) - 1;
        const u32 begins = up_to ? 31 - (u32)__clz((int)up_to) + first : head_before - 1;
        const bool is_owned = w.key < (key_type)a.num_rows, is_head = w.heads & mask & 1u << lane;
        const u32 starts = mask & __ballot_sync(FULL, is_owned && (first + lane - begins) % LOOKUP_CHUNK == 0);
        const u32 longs = __ballot_sync(FULL, is_head && is_long(w, lane));
        if (is_head && a.unique_rows) put_unique(a, number, a.row_begin + (i64)w.key);
        if (longs) {                            /* one at most: it has more than 32 positions */
            const int of = __ffs((int)longs) - 1;
            const u32 head = first + (u32)of;
            const u64 row = __shfl_sync(FULL, w.key, of);
            const u32 of_row = __shfl_sync(FULL, number, of), end = end_of_row(a, sorted, head + 32, (key_type)row);
            if (lane == 0) {
                u32 *const to = a.longs + 8 * (u64)atomic_inc_relaxed(a.words + LOOKUP_BWD_NUM_LONGS, FULL);
                store_relaxed_u32x4(to, make_uint4(head, (end - head + LOOKUP_CHUNK - 1) / LOOKUP_CHUNK, of_row, 0));
                store_relaxed_u32x2(to + 4, make_uint2((u32)row, (u32)(row >> 32)));
            }
        }
        if (a.grad_table) prefetch_table(a, w, w.heads & mask);
        if (!starts) continue;
        const u32 last = 31 - (u32)__clz((int)starts);
        const chunks c = { first, starts, longs, number, (u32)__ffs((int)starts) - 1, last + run_from(w, last) };
        if (a.has_vectors) sum_vectors(a, w, c, memory + warp * STAGES * 512);
        else sum_elements(a, w, c);
    }
}

/* ---- 4: rows of several chunks ---- */

/* In 32 columns; what the sums of chunks take in the workspace is zero again. */
DEV void finish_row(const lookup_bwd_args &a, uint4 of_row, u64 row, i64 col)
{
    if (col >= a.dim) return;
    const u32 head = of_row.x, num_chunks = of_row.y;
    float *const slots = a.partial + (2 * (i64)(head / 32) + 1) * a.dim + col;     /* the first has the second slot */
    float sum[1] = { __uint_as_float(load_relaxed_u32(slots)) };
    *slots = 0;
#pragma unroll 1
    for (u32 chunk = 1; chunk < num_chunks; chunk += CHUNKS_AT_ONCE) {
        float *const from = slots + (2 * (i64)chunk - 1) * a.dim;
        float part[CHUNKS_AT_ONCE];
#pragma unroll
        for (int i = 0; i < CHUNKS_AT_ONCE; i++)
            part[i] = chunk + i < num_chunks ? __uint_as_float(load_relaxed_u32(from + 2 * i * a.dim)) : 0;
#pragma unroll
        for (int i = 0; i < CHUNKS_AT_ONCE; i++)
            if (chunk + i < num_chunks) {
                sum[0] += part[i];
                from[2 * i * a.dim] = 0;
            }
    }
    put_total<1>(a, row, of_row.z, col, sum);
}

DEV void finish_rows(const lookup_bwd_args &a)
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_slabs = (u32)((a.dim + 31) / 32);
    const u64 num_tasks = (u64)load_relaxed_u32(a.words + LOOKUP_BWD_NUM_LONGS) * num_slabs;
#pragma unroll 1
    for (u64 task = blockIdx.x + (u64)gridDim.x * warp; task < num_tasks; task += (u64)gridDim.x * (blockDim.x / 32)) {
        const u32 *const from = a.longs + 8 * (task / num_slabs);
        const uint4 of_row = load_relaxed_u32x4(from);
        const uint2 row = load_relaxed_u32x2(from + 4);
        finish_row(a, of_row, (u64)row.y << 32 | row.x, (i64)(task % num_slabs) * 32 + lane);
    }
}

/* ---- the kernel ---- */

/* All threads of the grid take their share. */
DEV void clear(void *words, u64 num_vectors)
{
#pragma unroll 1
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < num_vectors; i += (u64)gridDim.x * blockDim.x)
        store_u32x4((uint4 *)words + i, make_uint4(0, 0, 0, 0));
}

/* 1, by all. */
DEV void make_entries(const lookup_bwd_args &a)
{
    entry_type *const to = (entry_type *)a.entries[LOOKUP_BWD_BUFFERS - 1];
#pragma unroll 2
    for (u32 position = blockIdx.x * blockDim.x + threadIdx.x; position < a.count; position += gridDim.x * blockDim.x) {
        const u32 token = tgl_divide(position, a.by_columns);
        entry_type e;
        sort_set(e, lookup_bwd_row(&a, token, position - (i64)token * a.num_columns), position);
        sort_store(to + position, e);
    }
}

/* 1, by a block that has a part. */
DEV void sort_part(const lookup_bwd_args &a, u32 begin, u32 end, u32 *memory)
{
    sort_work s = { a.counts, blockIdx.x, a.num_sorters, begin, end, 0, a.digit_bits };
#pragma unroll 1
    for (; s.pass < a.num_digits; s.pass++) {
        /* A buffer is used again: what was cleared in it comes before the counts that its next writers wait for. */
        if (s.pass >= LOOKUP_BWD_BUFFERS - 1) __threadfence();
        sort_pass(s, (entry_type *)a.entries[(s.pass + LOOKUP_BWD_BUFFERS - 1) % LOOKUP_BWD_BUFFERS],
                  (entry_type *)a.entries[s.pass % LOOKUP_BWD_BUFFERS], memory);
        s.counts += a.num_sorters << a.digit_bits;
    }
}

extern "C" __global__ void __launch_bounds__(LOOKUP_BWD_THREADS) lookup_bwd(const __grid_constant__ lookup_bwd_args a)
{
    SHARED_DYNAMIC(memory, 16);
    SHARED(rows_of_parts, rows);
    SHARED(u32, is_last);
    entry_type *const sorted = (entry_type *)a.entries[(a.num_digits - 1) % LOOKUP_BWD_BUFFERS];
    pdl_wait();
    make_entries(a);
    if (blockIdx.x < a.num_sorters) {
        const u32 begin = min(blockIdx.x * a.part, a.count), end = min(begin + a.part, a.count);
        sort_part(a, begin, end, (u32 *)memory);
        publish_windows(a, sorted, begin, end);
    }
    if (threadIdx.x < 32) take_parts(a, rows);
    __syncthreads();
    if (a.num_unique && blockIdx.x == 0 && threadIdx.x == 0) *a.num_unique = (i32)rows.num_unique;
    if (a.unique_rows)
#pragma unroll 1
        for (u64 i = rows.num_unique + blockIdx.x * (u64)blockDim.x + threadIdx.x; i < a.count;
             i += (u64)gridDim.x * blockDim.x)
            put_unique(a, (u32)i, -1);
    put_sums(a, sorted, rows, shared_address(memory));

    grid_barrier(a.words + LOOKUP_BWD_BARRIER);
    pdl_trigger();
    clear(sorted, ((u64)a.count * sizeof(entry_type) + 15) / 16);
    clear(a.windows, ((a.count + 31) / 32 + 1) / 2);
    clear(a.parts, (a.num_sorters + 1) / 2);
    if (a.num_sorters > 1) clear(a.counts, (u64)a.num_digits * a.num_sorters << a.digit_bits >> 2);
    finish_rows(a);
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomic_inc_acq_rel(a.words + LOOKUP_BWD_TICKET, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    const u32 num_longs = load_relaxed_u32(a.words + LOOKUP_BWD_NUM_LONGS);
#pragma unroll 1
    for (u64 i = threadIdx.x; i < 2 * (u64)num_longs; i += blockDim.x)
        store_u32x4((uint4 *)a.longs + i, make_uint4(0, 0, 0, 0));
    __syncthreads();
    if (threadIdx.x == 0) a.words[LOOKUP_BWD_BARRIER] = a.words[LOOKUP_BWD_NUM_LONGS] = 0;
}
