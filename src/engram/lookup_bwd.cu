/* SPDX-License-Identifier: MIT
 * lookup_bwd.cu - the gradient of a table's rows.
 *   computes  as tegula/engram.h says
 *   launch    cooperative: blocks wait for each other. Any grid of at least num_sorters blocks of
 *             LOOKUP_BWD_FEW_THREADS to LOOKUP_BWD_THREADS; shared memory: counts of a pass of the sort, then twice
 *             `capacity` entries; in the end LOOKUP_BWD_CHUNK_BYTES
 *   moves     grad_out and indices once, rows of the outputs once; of an entry of the sort three times its bytes
 *   macros    ELEMENT_BYTES 2 (bf16), 4 (f32): of grad_out; KEY_BYTES 4 if num_rows < 2^32 - 1, or 8
 *
 *   1  Rows are cut into as many ranges as there are sorters: buckets. A sorter has an equal part of the positions and
 *      stores them by bucket, and where each bucket begins. Where a bucket begins among all is the sum of these.
 *   2  Behind a barrier it takes its bucket from all parts and sorts it. A window is 32 sorted positions. For each, it
 *      stores how many rows of the bucket begin before it, and where the last of them does; then the bucket's rows.
 *   3  All blocks wait for all buckets. A warp takes `span` positions of a window and sums the chunks of 32 that begin
 *      there. Rows of one chunk are done; sums of other chunks go to the workspace, their rows to a list.
 *   4  Behind a barrier, a warp adds the chunks of a listed row in 32 columns; if there are many, a block loads them.
 * When the kernel is not in the caches, its code takes long to load: loops are not unrolled without need. */
#include "device/grid.cuh"
#include "device/sort.cuh"
#include "engram/lookup_bwd.h"
static_assert(ELEMENT_BYTES == 2 || ELEMENT_BYTES == 4, "ELEMENT_BYTES is 2 or 4");
static_assert(KEY_BYTES == 4 || KEY_BYTES == 8, "KEY_BYTES is 4 or 8");

constexpr u32 MAX_WARPS = LOOKUP_BWD_THREADS / 32;
constexpr u32 LOADS = 4;                                 /* entries that a thread loads before it uses the first */
constexpr int ROWS_AT_ONCE = ELEMENT_BYTES == 2 ? 8 : 6; /* that a warp loads before it adds the first */
constexpr int CHUNKS_AT_ONCE = 16;                       /* sums of chunks that a lane loads before it adds the first */
constexpr u32 FULLEST = 4;                               /* of a bucket: how many times the mean */
constexpr u32 SAMPLE_BITS = 24;                          /* by which the sample is sorted */
constexpr u32 FEW_CHUNKS = 32;                           /* of a row that one warp adds */
constexpr int CHUNKS_OF_WARP = 8;                        /* of a row that has more: how many a warp loads at once */
static_assert(LOOKUP_BWD_FEW_THREADS >= SORT_BINS && LOOKUP_BWD_SORTERS < SORT_BINS, "a bin has a thread");
static_assert(LOOKUP_BWD_CHUNK_BYTES(32) == 2 * CHUNKS_OF_WARP * 32 * 4, "sums of chunks");
static_assert(LOOKUP_BWD_COUNT_BYTES(LOOKUP_BWD_THREADS) == 4 * SORT_WORDS(LOOKUP_BWD_THREADS), "counts of a pass");

template <int BYTES> struct types {
    typedef u32 key;
    typedef uint2 entry;
};
template <> struct types<8> {
    typedef u64 key;
    typedef uint4 entry;
};
typedef types<KEY_BYTES>::key key_type;
typedef types<KEY_BYTES>::entry entry_type;

/* ---- 32 sorted positions and the 32 after them ---- */

typedef struct {
    key_type key;    /* of the lane's position */
    u32 position[2]; /* where its gradient is, and that of the sorted position 32 on */
    u32 heads;       /* mask: the first of their row */
    u64 breaks;      /* of 64: heads, and what is not owned */
} window;

/* What is loaded for a window. */
typedef struct {
    uint4 before;                 /* a.windows */
    entry_type left, here, later; /* before the window, the lane's, that 32 on */
} loaded_window;

/* What is behind the last is not owned. */
DEV entry_type entry_at(const lookup_bwd_args &a, const entry_type *sorted, u32 num_owned, u32 i)
{
    entry_type e;
    sort_set(e, a.num_rows, 0);
    return i < num_owned ? sort_load(sorted + i) : e;
}

DEV loaded_window load_window(const lookup_bwd_args &a, const entry_type *sorted, u32 num_owned, u32 first)
{
    const u32 at = first + threadIdx.x % 32;
    loaded_window l;
    l.before = first < num_owned ? load_relaxed_u32x4(a.windows + first / 8) : make_uint4(0, 0, 0, 0);
    l.left = entry_at(a, sorted, num_owned, first > 0 ? first - 1 : num_owned);
    l.here = entry_at(a, sorted, num_owned, at);
    l.later = entry_at(a, sorted, num_owned, at + 32);
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
    const u32 breaks =
        __ballot_sync(FULL, later >= (key_type)a.num_rows || later != (threadIdx.x % 32 > 0 ? left : last));
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

/* How many chunks the row has that begins at `head`. It is asked at the first positions of chunks, 32 at a time: next
 * to each other, then ever farther apart, until one is of another row, then closer again. */
DEV u32 chunks_of_row(const entry_type *sorted, u32 num_owned, u32 head, key_type key)
{
    const u32 lane = threadIdx.x % 32;
    u32 num_chunks = 1, step = 1; /* chunks that are known; those from one question to the next */
#pragma unroll 1
    for (;;) {
        const u64 at = head + (u64)LOOKUP_CHUNK * (num_chunks + (u64)lane * step + step - 1);
        const bool is_same = at < num_owned && sort_key(sort_load(sorted + at)) == key;
        const u32 num_same = (u32)__popc(__ballot_sync(FULL, is_same));
        num_chunks += num_same * step;
        if (num_same == 32) step *= 32;
        else if (step > 1) step /= 32;
        else return num_chunks;
    }
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

/* WIDTH columns, aligned to them, of sums; nobody reads them soon. */
template <int WIDTH> DEV void put_floats(float *to, const float (&sum)[WIDTH])
{
    u32 v[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) v[i] = __float_as_uint(nan_of_sum(sum[i]));
    if constexpr (WIDTH == 1) store_stream_u32(to, v[0]);
    else store_stream_u32x4(to, make_uint4(v[0], v[1], v[2], v[3]));
}

/* A row's total is added to WIDTH columns of the table. */
template <int WIDTH> DEV void add_to_table(const lookup_bwd_args &a, u64 row, i64 col, const float (&sum)[WIDTH])
{
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
    u32 first;         /* sorted position of the window */
    u32 starts, longs; /* masks: where they begin; of these, first ones of rows with several */
    u32 number;        /* of the lane's row */
    u32 begin, end;    /* positions from the window's first on; the end may be behind it */
} chunks;

/* WIDTH columns of a gradient, or zeros. */
template <int WIDTH, int WORDS> DEV void load_columns(const u8 *from, bool is_there, u32 (&v)[WORDS])
{
#pragma unroll
    for (int i = 0; i < WORDS; i++) v[i] = 0;
    if (!is_there) return;
    if constexpr (WIDTH == 1) {
        v[0] = ELEMENT_BYTES == 2 ? load_stream_u16(from) : load_stream_u32(from);
    } else if constexpr (ELEMENT_BYTES == 2) {
        const uint2 x = load_stream_u32x2(from);
        v[0] = x.x, v[1] = x.y;
    } else {
        const uint4 x = load_stream_u32x4(from);
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    }
}

/* Where the sum of the chunk goes that begins at the lane; none: nowhere. If it is part of a row, to the workspace. */
DEV float *target_of(const lookup_bwd_args &a, const window &w, const chunks &c)
{
    const u32 lane = threadIdx.x % 32, is_head = w.heads >> lane & 1;
    if (!is_head || c.longs >> lane & 1) return a.partial + (2 * (i64)(c.first / 32) + is_head) * a.dim;
    return a.grad_rows ? a.grad_rows + (i64)c.number * a.dim : nullptr;
}

/* A lane has WIDTH columns, and as many 32 * WIDTH on, PIECES times in all; DEPTH rows are loaded before the first is
 * added. */
template <int PIECES, int WIDTH, int DEPTH>
DEV void sum_rows(const lookup_bwd_args &a, const window &w, const chunks &c)
{
    constexpr int WORDS = (WIDTH * ELEMENT_BYTES + 3) / 4, STEP = 32 * WIDTH;
    const u64 from[2] = { (u64)gradient_of(a, w.position[0], 0), (u64)gradient_of(a, w.position[1], 0) };
    const u64 ends = c.starts >> 1 | (u64)1 << (c.end - 1), target = (u64)target_of(a, w, c);
#pragma unroll 1
    for (i64 slab = 0; slab < a.dim; slab += STEP * PIECES) {
        const i64 col = slab + threadIdx.x % 32 * WIDTH;
        u32 v[DEPTH][PIECES][WORDS], start = c.begin;
        float sum[PIECES][WIDTH] = {};
        const auto load = [&](u32 at, u32 (&to)[PIECES][WORDS]) {
            const u64 start_of_row = __shfl_sync(FULL, at < 32 ? from[0] : from[1], (int)at);
            const u8 *const row = (const u8 *)start_of_row + col * ELEMENT_BYTES;
#pragma unroll
            for (int p = 0; p < PIECES; p++)
                load_columns<WIDTH>(row + STEP * ELEMENT_BYTES * p, at < c.end && col + STEP * p < a.dim, to[p]);
        };
#pragma unroll
        for (int k = 0; k < DEPTH; k++) load(c.begin + k, v[k]);
#pragma unroll 1
        for (u32 i = c.begin; i < c.end; i += DEPTH) {
            const u32 ends_here = (u32)(ends >> i);
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
                if (i + k >= c.end) break;
#pragma unroll
                for (int j = 0; j < PIECES * WIDTH; j++)
                    sum[j / WIDTH][j % WIDTH] += element_of(v[k][j / WIDTH], j % WIDTH);
                load(i + k + DEPTH, v[k]);
                if (!(ends_here >> k & 1)) continue;
                float *const to = (float *)__shfl_sync(FULL, target, (int)start);
                const key_type row = a.grad_table ? __shfl_sync(FULL, w.key, (int)start) : 0;
#pragma unroll
                for (int p = 0; p < PIECES; p++) {
                    if (col + STEP * p >= a.dim) break;
                    if (to) put_floats(to + col + STEP * p, sum[p]);
                    if (a.grad_table && w.heads & ~c.longs & 1u << start) add_to_table(a, row, col + STEP * p, sum[p]);
                }
#pragma unroll
                for (int j = 0; j < PIECES * WIDTH; j++) sum[j / WIDTH][j % WIDTH] = 0;
                start = i + k + 1;
            }
        }
    }
}

/* ---- 1: positions by bucket ---- */

/* Min and max of all threads' keys. */
DEV void block_min_max(key_type &low, key_type &high)
{
    SHARED(key_type[MAX_WARPS], lows);
    SHARED(key_type[MAX_WARPS], highs);
    const u32 lane = threadIdx.x % 32;
#pragma unroll 1
    for (int turn = 0; turn < 2; turn++) {
#pragma unroll
        for (int d = 16; d > 0; d /= 2) {
            low = min(low, __shfl_xor_sync(FULL, low, d));
            high = max(high, __shfl_xor_sync(FULL, high, d));
        }
        if (turn == 1) break;
        if (lane == 0) lows[threadIdx.x / 32] = low, highs[threadIdx.x / 32] = high;
        __syncthreads();
        if (lane < blockDim.x / 32) low = lows[lane], high = highs[lane];
    }
}

DEV key_type row_at(const lookup_bwd_args &a, u32 position)
{
    const u32 token = tgl_divide(position, a.by_columns);
    return (key_type)lookup_bwd_row(&a, token, position - (i64)token * a.num_columns);
}

DEV u32 bits_of(u64 v) { return v ? 64 - (u32)__clzll((i64)v) : 0; }

/* The thread's rows of a sample, in all blocks the same; not of every n-th position: these might have one column. */
typedef struct { key_type row[LOOKUP_BWD_SAMPLES]; } sample;
DEV sample sample_rows(const lookup_bwd_args &a)
{
    sample s;
#pragma unroll
    for (u32 i = 0; i < LOOKUP_BWD_SAMPLES; i++) {
        const u32 number = i * blockDim.x + threadIdx.x;
        s.row[i] = a.count ? row_at(a, (u32)((u64)(number * 0x9e3779b1u) * a.count >> 32)) : (key_type)a.num_rows;
    }
    return s;
}

/* Sets `first`, the first row of each bucket. The range of the sampled rows is cut into equal buckets; if one of them
 * has more than FULLEST times the mean of samples, the sorted sample is cut instead. A row as frequent as several
 * buckets then has one almost to itself, which is sorted quickly. Only the upper SAMPLE_BITS bits of rows are compared,
 * so all rows that share them are in one bucket. `other` is shared memory for 2 * LOOKUP_BWD_SAMPLES entries a thread.
 * With half as many samples of rows distributed by Zipf's law, some buckets had three times the mean: 8192 x 24
 * positions took 123 us on an H200 (2026-11), now 114. */
DEV void find_buckets(const lookup_bwd_args &a, const sample &s, key_type *first, u32 *counts, entry_type *other)
{
    const key_type num_rows = (key_type)a.num_rows;
    key_type low = num_rows, high = 0, min_count = 0;
    u32 of_thread = 0;
#pragma unroll
    for (int i = 0; i < LOOKUP_BWD_SAMPLES; i++) {
        const bool is_owned = s.row[i] < num_rows;
        low = min(low, s.row[i]), high = max(high, is_owned ? s.row[i] : 0);
        of_thread += is_owned;
    }
    block_min_max(low, high);
    if (high > low) { /* a few rows are outside the sample's range */
        const key_type more = (high - low) / 256;
        low -= min(low, more), high += min(num_rows - 1 - high, more);
    }
    const key_type range = high > low ? high - low : 0, share = range / a.num_sorters, rest = range % a.num_sorters;
    if (threadIdx.x < SORT_BINS) {
        const key_type number = threadIdx.x;
        counts[threadIdx.x] = 0;
        first[threadIdx.x] = number == 0               ? 0
                             : number >= a.num_sorters ? ~(key_type)0
                                                       : low + share * number + rest * number / a.num_sorters;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < LOOKUP_BWD_SAMPLES; i++)
        if (s.row[i] < num_rows) atomicAdd(&counts[sort_last_of(first, s.row[i])], 1u);
    u32 num_owned;
    block_exclusive_scan(of_thread, num_owned);
    key_type max_count = threadIdx.x < SORT_BINS ? counts[threadIdx.x] : 0;
    block_min_max(min_count, max_count);
    if (max_count <= FULLEST * LOOKUP_BWD_SAMPLES * blockDim.x / a.num_sorters) return;
    const u32 count = LOOKUP_BWD_SAMPLES * blockDim.x, bits = bits_of(num_rows - low);
    const u32 shift = bits > SAMPLE_BITS ? bits - SAMPLE_BITS : 0;
#pragma unroll
    for (int i = 0; i < LOOKUP_BWD_SAMPLES; i++)
        sort_set(other[i * blockDim.x + threadIdx.x], (s.row[i] - low) >> shift, 0);
    __syncthreads();
    const entry_type *const sorted = sort_by_digits(other, other + count, count, (key_type)0, bits - shift, counts);
    if (threadIdx.x > 0 && threadIdx.x < a.num_sorters) {
        const u32 at = threadIdx.x * num_owned / a.num_sorters, before = (threadIdx.x - 1) * num_owned / a.num_sorters;
        const key_type found = sort_key(sorted[at]);
        const key_type number = found + (threadIdx.x > 1 && found == sort_key(sorted[before]));
        first[threadIdx.x] = number <= (num_rows - low) >> shift ? low + (number << shift) : num_rows;
    }
}

/* `room` is shared memory. What is not owned stays out. */
DEV void part_positions(const lookup_bwd_args &a, u32 *counts, entry_type *room)
{
    SHARED(key_type[SORT_BINS], first);
    const u32 begin = min(blockIdx.x * a.part, a.count), count = min(a.part, a.count - begin);
    entry_type *const own = count <= a.capacity ? room : (entry_type *)a.entries[2] + begin;
    entry_type *const parted = (entry_type *)a.entries[0] + begin;
    const sample s = sample_rows(a);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += LOADS * blockDim.x) {
        key_type rows[LOADS];
#pragma unroll
        for (u32 k = 0; k < LOADS; k++) rows[k] = row_at(a, begin + min(i + k * blockDim.x, count - 1));
#pragma unroll
        for (u32 k = 0; k < LOADS; k++)
            if (i + k * blockDim.x < count) sort_set(own[i + k * blockDim.x], rows[k], begin + i + k * blockDim.x);
    }
    if (a.num_sorters > 1) find_buckets(a, s, first, counts, room + a.capacity);
    else if (threadIdx.x < SORT_BINS) first[threadIdx.x] = threadIdx.x ? ~(key_type)0 : 0;
    __syncthreads();
    const auto bucket_of = [&](entry_type e) {
        return sort_key(e) < (key_type)a.num_rows ? sort_last_of(first, sort_key(e)) : a.num_sorters;
    };
    sort_pass(
        own, count, counts, bucket_of,
        [&](u32 bucket, u32 place) {
            if (bucket <= a.num_sorters) store_relaxed_u32(a.starts + bucket * a.num_sorters + blockIdx.x, place);
        },
        [&](u32 place, entry_type e) {
            if (sort_key(e) < (key_type)a.num_rows) sort_store(parted + place, e);
        });
    if (own == room) return;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) own[i] = entry_type();
}

/* ---- 2: buckets ---- */

/* Of the block's bucket: the number of its positions and of those in lower ones; of a part, where it begins in the
 * bucket and where its entries are. */
typedef struct {
    u32 begin, count;
    u32 in_bucket[SORT_BINS], in_part[SORT_BINS];
} bucket;

DEV void find_bucket(const lookup_bwd_args &a, bucket &b)
{
    const u32 *const from = a.starts + blockIdx.x * a.num_sorters + threadIdx.x;
    const bool is_part = threadIdx.x < a.num_sorters;
    const u32 start = is_part ? load_relaxed_u32(from) : 0, end = is_part ? load_relaxed_u32(from + a.num_sorters) : 0;
    u32 count, begin;
    const u32 before = block_exclusive_scan(end - start, count);
    block_exclusive_scan(start, begin);
    if (threadIdx.x < SORT_BINS) {
        b.in_bucket[threadIdx.x] = is_part ? before : FULL;
        b.in_part[threadIdx.x] = threadIdx.x * a.part + start;
    }
    if (threadIdx.x == 0) b.begin = begin, b.count = count;
    __syncthreads();
}

/* The bucket's entries go to `to`, one part after the other. Returns how many bits of their difference to `low` tell
 * rows apart. */
DEV u32 take_bucket(const lookup_bwd_args &a, const bucket &b, entry_type *to, key_type &low)
{
    entry_type *const parted = (entry_type *)a.entries[0];
    key_type high = 0;
    low = (key_type)a.num_rows;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < b.count; i += LOADS * blockDim.x) {
        entry_type e[LOADS];
#pragma unroll
        for (u32 k = 0; k < LOADS; k++) {
            const u32 at = min(i + k * blockDim.x, b.count - 1), part = sort_last_of(b.in_bucket, at);
            e[k] = sort_load(parted + b.in_part[part] + (at - b.in_bucket[part]));
        }
#pragma unroll
        for (u32 k = 0; k < LOADS; k++) {
            if (i + k * blockDim.x < b.count) to[i + k * blockDim.x] = e[k];
            low = min(low, sort_key(e[k])), high = max(high, sort_key(e[k]));
        }
    }
    block_min_max(low, high);
    return b.count ? bits_of(high - low) : 0;
}

DEV void publish_windows(const lookup_bwd_args &a, const entry_type *here, u32 begin, u32 end)
{
    SHARED(u32[MAX_WARPS], counts);
    SHARED(u32[MAX_WARPS], lasts);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
    u32 number = 0, head = 0; /* rows so far; where the last begins */
#pragma unroll 1
    for (u32 tile = begin / 32 * 32; tile < end; tile += blockDim.x) {
        const u32 first = tile + warp * 32, at = first + lane, i = at - begin;
        const bool is_there = at >= begin && at < end;
        const u32 heads = __ballot_sync(FULL, is_there && (i == 0 || sort_key(here[i]) != sort_key(here[i - 1])));
        __syncthreads(); /* counts and lasts are free */
        if (lane == 0) {
            counts[warp] = (u32)__popc(heads);
            lasts[warp] = heads ? first + 31 - (u32)__clz((int)heads) : 0;
        }
        __syncthreads();
        const u32 before = number + warp_add_u32(lane < warp ? counts[lane] : 0);
        const u32 head_before = warp_max_u32(lane < warp ? lasts[lane] : head);
        number += warp_add_u32(lane < num_warps ? counts[lane] : 0);
        head = max(head, warp_max_u32(lane < num_warps ? lasts[lane] : 0));
        if (first >= begin && first < end && lane == 0)
            store_relaxed_u32x4(a.windows + first / 8, make_uint4(before, head_before, blockIdx.x, 0));
    }
    __syncthreads(); /* all have stored their entries and windows */
    if (threadIdx.x == 0) {
        store_relaxed_u32(a.buckets + 2 * blockIdx.x + 1, end - begin + 1);
        store_release_u32(a.buckets + 2 * blockIdx.x, number + 1);
    }
}

DEV void sort_bucket(const lookup_bwd_args &a, u32 *counts, entry_type *room)
{
    SHARED(bucket, b);
    find_bucket(a, b);
    entry_type *const sorted = (entry_type *)a.entries[1] + b.begin;
    entry_type *const other = (entry_type *)a.entries[2] + b.begin;
    const bool has_room = b.count <= a.capacity;
    entry_type *const x = has_room ? room : sorted, *const y = has_room ? room + a.capacity : other;
    key_type low;
    const u32 bits = take_bucket(a, b, x, low);
    __syncthreads();
    const entry_type *const here = sort_by_digits(x, y, b.count, low, bits, counts);
    if (here != sorted)
#pragma unroll 2
        for (u32 i = threadIdx.x; i < b.count; i += blockDim.x) sort_store(sorted + i, here[i]);
    publish_windows(a, here, b.begin, b.begin + b.count);
    if (has_room) return;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < b.count; i += blockDim.x) other[i] = entry_type();
}

typedef struct {
    u32 number[LOOKUP_BWD_SORTERS]; /* rows in lower buckets */
    u32 num_unique, num_owned;
} rows_of_buckets;

/* By a block, which waits for them. */
DEV void take_buckets(const lookup_bwd_args &a, rows_of_buckets &rows)
{
    uint2 words = make_uint2(1, 1);
    if (threadIdx.x < a.num_sorters)
#pragma unroll 1
        do words = load_relaxed_u32x2(a.buckets + 2 * threadIdx.x);
        while (!words.x || !words.y);
    load_acquire_u32(a.buckets + 2 * min(threadIdx.x, a.num_sorters - 1)); /* what is in them is loaded later */
    u32 num_unique, num_owned;
    const u32 number = block_exclusive_scan(words.x - 1, num_unique);
    block_exclusive_scan(words.y - 1, num_owned);
    if (threadIdx.x < a.num_sorters) rows.number[threadIdx.x] = number;
    if (threadIdx.x == 0) rows.num_unique = num_unique, rows.num_owned = num_owned;
}

/* ---- 3: sums ---- */

DEV void put_unique(const lookup_bwd_args &a, u32 number, i64 row)
{
    if (a.unique_bytes == 4) ((i32 *)a.unique_rows)[number] = (i32)row;
    else ((i64 *)a.unique_rows)[number] = row;
}

/* Those of few chunks come first in the list, those of many last. */
DEV void put_long(const lookup_bwd_args &a, u32 head, u32 num_chunks, u32 number, u64 row)
{
    const bool is_few = num_chunks <= FEW_CHUNKS;
    const u32 at = atomic_inc_relaxed(a.words + (is_few ? LOOKUP_BWD_NUM_FEW : LOOKUP_BWD_NUM_MANY), FULL);
    u32 *const to = a.longs + 8 * (u64)(is_few ? at : a.max_longs - 1 - at);
    store_relaxed_u32x4(to, make_uint4(head, num_chunks, number, 0));
    store_relaxed_u32x2(to + 4, make_uint2((u32)row, (u32)(row >> 32)));
}

DEV void put_sums(const lookup_bwd_args &a, const entry_type *sorted, const rows_of_buckets &rows)
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
    const u32 shift = (u32)__ffs((int)(32 / a.span)) - 1, num_tasks = (rows.num_owned + 31) / 32 << shift;
    const u32 begin = blockIdx.x + gridDim.x * warp, step = gridDim.x * num_warps;
    loaded_window next = load_window(a, sorted, rows.num_owned, min(begin, num_tasks) >> shift << 5);
#pragma unroll 1
    for (u32 task = begin; task < num_tasks; task += step) {
        const u32 first = task >> shift << 5;
        const u32 mask = FULL >> (32 - a.span) << ((task & ((1u << shift) - 1)) * a.span);
        const uint4 before = next.before;
        const window w = window_of(a, next);
        if (num_tasks - task > step) next = load_window(a, sorted, rows.num_owned, (task + step) >> shift << 5);
        const u32 up_to = w.heads & (lanes_below() << 1 | 1);
        const u32 number = rows.number[before.z] + before.x + (u32)__popc(up_to) - 1;
        const u32 begins = up_to ? 31 - (u32)__clz((int)up_to) + first : before.y;
        const bool is_owned = w.key < (key_type)a.num_rows, is_head = w.heads & mask & 1u << lane;
        const u32 starts = mask & __ballot_sync(FULL, is_owned && (first + lane - begins) % LOOKUP_CHUNK == 0);
        const u32 longs = __ballot_sync(FULL, is_head && is_long(w, lane));
        if (is_head && a.unique_rows) put_unique(a, number, a.row_begin + (i64)w.key);
        if (longs) { /* one at most: it has more than 32 positions */
            const int of = __ffs((int)longs) - 1;
            const u32 head = first + (u32)of;
            const u64 row = __shfl_sync(FULL, w.key, of);
            const u32 of_row = __shfl_sync(FULL, number, of);
            const u32 num_chunks = chunks_of_row(sorted, rows.num_owned, head, (key_type)row);
            if (lane == 0) put_long(a, head, num_chunks, of_row, row);
        }
        if (a.grad_table) prefetch_table(a, w, w.heads & mask);
        if (!starts) continue;
        const u32 last = 31 - (u32)__clz((int)starts);
        const chunks c = { first, starts, longs, number, (u32)__ffs((int)starts) - 1, last + run_from(w, last) };
        if (a.has_vectors) sum_rows<4 / ELEMENT_BYTES, 4, ROWS_AT_ONCE>(a, w, c);
        else sum_rows<1, 1, 4>(a, w, c);
    }
}

/* ---- 4: rows of several chunks ---- */

/* A row of the list: as in a.longs. */
typedef struct {
    u32 head, num_chunks, number;
    u64 row;
} long_row;

DEV long_row load_long(const u32 *from)
{
    const uint4 v = load_relaxed_u32x4(from);
    const uint2 row = load_relaxed_u32x2(from + 4);
    return long_row{ v.x, v.y, v.z, (u64)row.y << 32 | row.x };
}

/* N chunks' sums in a column, from `chunk` on. The first of all has its window's second place. Places are zero again:
 * these stores come behind all loads, since one to where a load is under way waits for it, and holds up others. */
template <int N> DEV void take_chunks(const lookup_bwd_args &a, const long_row &r, u32 chunk, i64 col, float (&v)[N])
{
    float *const from = a.partial + 2 * (i64)(r.head / 32 + chunk) * a.dim + col;
    const u32 count = col < a.dim ? min(r.num_chunks - min(chunk, r.num_chunks), (u32)N) : 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = i < count ? __uint_as_float(load_relaxed_u32(from + (2 * i + (chunk + i == 0)) * a.dim)) : 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < count) from[(2 * i + (chunk + i == 0)) * a.dim] = 0;
}

DEV void put_total(const lookup_bwd_args &a, const long_row &r, i64 col, const float (&sum)[1])
{
    if (col >= a.dim) return;
    if (a.grad_rows) put_floats(a.grad_rows + (i64)r.number * a.dim + col, sum);
    if (a.grad_table) add_to_table(a, r.row, col, sum);
}

/* By a warp. */
DEV void finish_few(const lookup_bwd_args &a, const long_row &r, i64 col)
{
    float sum[1] = { 0 };
#pragma unroll 1
    for (u32 chunk = 0; chunk < r.num_chunks; chunk += CHUNKS_AT_ONCE) {
        float part[CHUNKS_AT_ONCE];
        take_chunks(a, r, chunk, col, part);
#pragma unroll
        for (int i = 0; i < CHUNKS_AT_ONCE; i++) sum[0] = chunk + i < r.num_chunks ? sum[0] + part[i] : sum[0];
    }
    put_total(a, r, col, sum);
}

/* By a block: all warps load, the first adds. `memory` is shared, for two turns. */
DEV void finish_many(const lookup_bwd_args &a, const long_row &r, i64 col, float *memory)
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, at_once = blockDim.x / 32 * CHUNKS_OF_WARP;
    float sum[1] = { 0 };
    u32 turn = 0;
#pragma unroll 1
    for (u32 chunk = 0; chunk < r.num_chunks; chunk += at_once, turn ^= 1) {
        float *const parts = memory + turn * at_once * 32;
        float part[CHUNKS_OF_WARP];
        take_chunks(a, r, chunk + warp * CHUNKS_OF_WARP, col, part);
#pragma unroll
        for (int i = 0; i < CHUNKS_OF_WARP; i++) parts[(warp * CHUNKS_OF_WARP + i) * 32 + lane] = part[i];
        __syncthreads();
        if (warp == 0)
#pragma unroll 8
            for (u32 i = 0; i < min(at_once, r.num_chunks - chunk); i++) sum[0] += parts[i * 32 + lane];
    }
    if (warp == 0) put_total(a, r, col, sum);
    __syncthreads(); /* memory is free */
}

DEV void finish_rows(const lookup_bwd_args &a, float *memory)
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_slabs = (u32)((a.dim + 31) / 32);
    const u64 num_few = (u64)load_relaxed_u32(a.words + LOOKUP_BWD_NUM_FEW) * num_slabs;
    const u64 num_many = (u64)load_relaxed_u32(a.words + LOOKUP_BWD_NUM_MANY) * num_slabs;
#pragma unroll 1
    for (u64 task = blockIdx.x; task < num_many; task += gridDim.x)
        finish_many(a, load_long(a.longs + 8 * (a.max_longs - 1 - task / num_slabs)),
                    (i64)(task % num_slabs) * 32 + lane, memory);
    const u32 busy = num_many <= gridDim.x / 2 ? (u32)num_many : 0, others = gridDim.x - busy;
    if (blockIdx.x < busy) return; /* the other blocks are enough for the rows of few chunks */
#pragma unroll 1
    for (u64 task = blockIdx.x - busy + (u64)others * warp; task < num_few; task += (u64)others * (blockDim.x / 32))
        finish_few(a, load_long(a.longs + 8 * (task / num_slabs)), (i64)(task % num_slabs) * 32 + lane);
}

/* ---- the kernel ---- */

/* All threads of the grid take their share. */
DEV void clear(void *words, u64 num_vectors)
{
#pragma unroll 1
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < num_vectors; i += (u64)gridDim.x * blockDim.x)
        store_u32x4((uint4 *)words + i, make_uint4(0, 0, 0, 0));
}

extern "C" __global__ void __launch_bounds__(LOOKUP_BWD_THREADS, 1)
    lookup_bwd(const __grid_constant__ lookup_bwd_args a)
{
    SHARED_DYNAMIC(memory, 16);
    SHARED(rows_of_buckets, rows);
    SHARED(u32, is_last);
    entry_type *const sorted = (entry_type *)a.entries[1];
    pdl_wait();
    if (blockIdx.x < a.num_sorters) {
        u32 *const counts = (u32 *)memory;
        entry_type *const room = (entry_type *)(memory + LOOKUP_BWD_COUNT_BYTES(blockDim.x));
        part_positions(a, counts, room);
        grid_barrier(a.words + LOOKUP_BWD_PARTED, a.num_sorters);
        sort_bucket(a, counts, room);
    }
    take_buckets(a, rows);
    __syncthreads();
    clear(a.starts, ((u64)(a.num_sorters + 1) * a.num_sorters + 3) / 4);
    clear(a.entries[0], ((u64)a.count * sizeof(entry_type) + 15) / 16);
    if (a.num_unique && blockIdx.x == 0 && threadIdx.x == 0) *a.num_unique = (i32)rows.num_unique;
    if (a.unique_rows)
#pragma unroll 1
        for (u64 i = rows.num_unique + blockIdx.x * (u64)blockDim.x + threadIdx.x; i < a.count;
             i += (u64)gridDim.x * blockDim.x)
            put_unique(a, (u32)i, -1);
    put_sums(a, sorted, rows);

    grid_barrier(a.words + LOOKUP_BWD_SUMMED, gridDim.x);
    pdl_trigger();
    clear(sorted, ((u64)a.count * sizeof(entry_type) + 15) / 16);
    clear(a.windows, (a.count + 31) / 32);
    clear(a.buckets, (a.num_sorters + 1) / 2);
    finish_rows(a, (float *)memory);
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomic_inc_acq_rel(a.words + LOOKUP_BWD_TICKET, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    const u32 num_few = load_relaxed_u32(a.words + LOOKUP_BWD_NUM_FEW);
    const u32 num_many = load_relaxed_u32(a.words + LOOKUP_BWD_NUM_MANY);
#pragma unroll 1
    for (u64 i = threadIdx.x; i < 2 * ((u64)num_few + num_many); i += blockDim.x)
        store_u32x4((uint4 *)a.longs + (i < 2 * (u64)num_few ? i : 2 * (u64)a.max_longs - 1 - (i - 2 * (u64)num_few)),
                    make_uint4(0, 0, 0, 0));
    __syncthreads();
    if (threadIdx.x < LOOKUP_BWD_WORDS) a.words[threadIdx.x] = 0;
}
