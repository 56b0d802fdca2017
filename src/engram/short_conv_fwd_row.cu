/* SPDX-License-Identifier: MIT
 * short_conv_fwd_row.cu - the short convolution of few rows: a block for one or two of a stream, which norms the rows
 * that taps reach.
 *   computes  as tegula/engram.h says, sums in the order of common/short_conv.h
 *   launch    grid ceil(num_tokens / block_tokens) * num_streams (block b: stream b % num_streams), block of a thread
 *             per vector, at most BLOCK_THREADS, dynamic shared memory of the stream's weights and of
 *             the tokens' rows of x and residual
 *   moves     2 bytes per element of residual and out, and of x or the ring for each tap
 *   macros    KERNEL_SIZE 1..CONV_WALK_TAPS; BLOCK_THREADS; ROUND_EACH 0, 1
 *
 * What counts is how often memory is waited for, that all rows are there at once, and how many instructions there are:
 * at decode an SM has 4 rows, and all of it takes a few thousand cycles. Weights, the tokens' own rows and residuals are
 * under way before their requests are known, then the other rows, in registers. A warp finds the request of a token,
 * and says where its rows are. The ring is written as in short_conv_fwd.cu. */
#include "engram/short_conv_fwd.h"
#define MAX_NGRAM 0
#define ID_BYTES 4
#define PAST PAST_RING
#define PAST_BYTES 4
#include "engram/common/requests.cuh"
#include "engram/common/row_sum.cuh"
#include "engram/common/short_conv.cuh"

static_assert(KERNEL_SIZE >= 1 && KERNEL_SIZE <= CONV_WALK_TAPS, "KERNEL_SIZE is 1..CONV_WALK_TAPS");
static_assert(BLOCK_THREADS == CONV_FEW_THREADS || BLOCK_THREADS == CONV_MANY_THREADS, "BLOCK_THREADS is one of two");
static_assert(ROUND_EACH == 0 || ROUND_EACH == 1, "ROUND_EACH is 0 or 1");

enum {
    LAST = KERNEL_SIZE - 1,
    TOKENS = CONV_ROW_TOKENS(BLOCK_THREADS),
    GROUPS = BLOCK_THREADS / 32,
    ENTRIES = TOKENS > 1 ? 5 : 2 /* of cu_seqlens that a lane has at a time: 128 requests have 129 */
};

/* ---- the request of a token, by a warp ---- */

struct found {
    tgl_request r;
    i64 end;
    bool is_one;
};

/* Lines of 128 bytes with what is known of the first requests, on their way to L2 while cu_seqlens is read. */
DEV void prefetch_facts(const void *integers, i64 count, i32 bytes)
{
    const i64 at = (i64)(threadIdx.x % 32) * 128;
    if (integers && at < count * bytes) prefetch_l2((const u8 *)integers + at);
}

/* The first entry of cu_seqlens that is past t ends the request; the largest one before it is where it begins, whatever
 * order they are in. All lanes return the same. */
DEV found find_request(const tgl_windows &w, i64 t)
{
    found made = { { { 0, 0 }, -1, 0, 0 }, w.num_tokens, true };
    if (w.cu_seqlens) {
        const u32 lane = threadIdx.x % 32, none = ENTRIES * 32;
        /* When decoding, request t has token t. */
        const bool has_guess = t < w.num_requests;
        const loaded start = load_integer_if(w.start_pos, t, w.start_bytes, has_guess && w.start_pos);
        const loaded slot = load_integer_if(w.slots, t, w.slot_bytes, has_guess && w.past == PAST_RING && w.slots);
        u32 end = none;
        i32 begin = 0, end_token = 0;
        i64 base = 0;
#pragma unroll 1
        for (; base <= w.num_requests && end == none; base += none) {
            loaded entries[ENTRIES];
#pragma unroll
            for (int e = 0; e < ENTRIES; e++)
                entries[e] = load_integer_if(w.cu_seqlens, base + e * 32 + lane, w.cu_bytes,
                                             base + e * 32 + lane <= w.num_requests);
            if (base == 0) {
                prefetch_facts(w.start_pos, w.num_requests, w.start_bytes);
                prefetch_facts(w.past == PAST_RING ? w.slots : nullptr, w.num_requests, w.slot_bytes);
            }
            i32 bound[ENTRIES];
#pragma unroll
            for (int e = ENTRIES - 1; e >= 0; e--) {
                bound[e] = (i32)tgl_boundary_of(&w, value_of(entries[e], w.cu_bytes));
                if (base + e * 32 + lane <= w.num_requests && bound[e] > t) end = e * 32 + lane;
            }
            end = warp_min_u32(end);
#pragma unroll
            for (int e = 0; e < ENTRIES; e++) { /* 0 past the last one */
                if (e * 32 + lane < end) begin = max(begin, bound[e]);
                if (e * 32 + lane == end) end_token = bound[e];
            }
        }
        made.r.place.number = base - none + end - 1;
        made.r.place.begin = warp_max_s32(begin);
        made.is_one = end < none && made.r.place.number >= 0;
        if (made.is_one) made.end = warp_max_s32(end_token);
        if (made.is_one && made.r.place.number == t) {
            made.r = tgl_request_of(&w, made.r.place, tgl_start_of(&w, value_of(start, w.start_bytes)),
                                    tgl_slot_of(&w, t, value_of(slot, w.slot_bytes)));
            return made;
        }
    }
    if (made.is_one) made.r = tgl_request_at(&w, made.r.place);
    return made;
}

/* ---- what is done ---- */

/* A token: where the rows of its taps are, nullptr: nothing; out, entry: where results go, nullptr: nowhere. */
struct work {
    const u16 *tap[CONV_WALK_TAPS];
    u16 *out, *entry;
    i64 token;
    u32 from_x; /* a bit for each tap that is a row of x */
    bool is_alive;
};
/* Tokens of a block besides: `count` from its own on, 0: another block has it; then the last `stored` of the chunk, for
 * the ring alone. */
struct more {
    tgl_request r;
    i64 token, end;
    u32 count, stored;
    bool is_request, writes;
};

struct row {
    const short_conv_args &a;
    u32 h, column;       /* stream; the thread's first column */
    u32 norm, conv, own; /* in shared memory: the stream's weights; the thread's columns of own rows */
    bool has_columns;
    float *groups;
};

DEV bool is_masked(const short_conv_args &a, i64 t)
{
    return a.requests.image_token_mask && a.requests.image_token_mask[t];
}
DEV const u16 *x_row(const row &k, i64 t) { return k.a.x.data + t * k.a.x.token + k.h * k.a.x.stream; }
DEV u16 *ring_row(const row &k, const tgl_request &r, i64 entry)
{
    return k.a.ring + conv_ring_row(&k.a, r.slot, entry, k.h);
}

/* By a warp; lane j looks for tap j. Without out, only the token's own row counts. */
DEV void describe(const row &k, const tgl_request &r, bool is_request, i64 t, bool has_out, bool writes, work &to)
{
    const short_conv_args &a = k.a;
    const int lane = threadIdx.x % 32;
    const bool is_alive = is_request && !is_masked(a, t);
    const i64 from = t - (i64)(LAST - lane) * a.dilation, before = r.place.begin - from;
    const u16 *tap = nullptr;
    bool is_of_x = lane == LAST && is_alive;
    if (lane < LAST && is_alive && has_out && before <= r.reach) {
        is_of_x = before <= 0 && !is_masked(a, from);
        if (is_of_x) tap = x_row(k, from);
        else if (before > 0) tap = ring_row(k, r, r.start - before + (r.start < before ? a.requests.ring_size : 0));
    }
    const u32 from_x = __ballot_sync(FULL, is_of_x);
    if (lane < LAST) to.tap[lane] = tap;
    if (lane == LAST) {
        to.out = has_out ? a.out.data + t * a.out.token + k.h * a.out.stream : nullptr;
        to.entry = writes ? ring_row(k, r, tgl_ring_entry(&a.requests, r.start + (t - r.place.begin))) : nullptr;
        to.token = t;
        to.from_x = from_x;
        to.is_alive = is_alive;
    }
}

/* What there is to do for token t, by a warp. */
DEV void find_work(const row &k, i64 t, work &to, more &besides)
{
    const tgl_windows &w = k.a.requests;
    const found of = find_request(w, t);
    const i64 q = of.end - of.r.place.begin, depth = t - of.r.place.begin;
    const bool writes = of.is_one && of.r.slot >= 0 && w.writes_ring, is_apart = tgl_writes_apart(&w, q);
    const i64 together = writes && !is_apart ? min(q, (i64)w.max_ngram - 1) : 0;
    more made = { of.r, t, of.end, 1, 0, of.is_one, writes && is_apart };
    if (writes && !is_apart && depth == 0) made.stored = (u32)min(q, (i64)w.ring_size);
    if (depth == 0 && together > 0) made.count = (u32)together;
    if (depth > 0 && depth < together) made.count = 0;
    describe(k, of.r, of.is_one, t, true, writes && is_apart, to);
    if (threadIdx.x % 32 == 0) besides = made;
}

/* ---- weights: 16 bytes of memory after the other, placed so that lanes read 16 bytes of their vectors without
 * conflicts of banks ---- */

DEV u32 placed(u32 n) { return (n ^ (n >> 3 & 7)) * 16; }

DEV void load_weights(u32 to, const conv_weights &w, i64 first, u32 count)
{
    const u8 *const from = (const u8 *)w.data + first * (w.is_bf16 ? 2 : 4);
#pragma unroll 1
    for (u32 n = threadIdx.x; n < count; n += blockDim.x) copy_async_16(to + placed(n), from + (u64)n * 16);
}

/* Number i of the COUNT times 16 bytes that a thread has. */
template <int COUNT> DEV u32 place_of(u32 at, u32 i)
{
    if (COUNT & (COUNT - 1)) return at + placed(threadIdx.x * COUNT + i);
    return (at + placed(threadIdx.x * COUNT)) ^ 16 * i; /* the same in one step: `at` is a multiple of 128 */
}
static_assert(CONV_WALK_TAPS <= 4, "COUNT is up to 8");

/* Piece i of the PIECES of 8 numbers that a thread has. */
template <bool IS_BF16, int PIECES> DEV void weights_of(u32 at, u32 i, float (&to)[CONV_VECTOR])
{
    if (IS_BF16) {
        const uint4 some = shared_load_u32x4(place_of<PIECES>(at, i));
#pragma unroll
        for (int c = 0; c < CONV_VECTOR; c++) to[c] = column(some, c);
    } else {
        const float4 a = shared_load_f32x4(place_of<2 * PIECES>(at, 2 * i));
        const float4 b = shared_load_f32x4(place_of<2 * PIECES>(at, 2 * i + 1));
        to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
    }
}

/* ---- rows ---- */

DEV uint4 load_columns(const row &k, const u16 *from)
{
    return load_ahead_u32x4_if(from ? from + k.column : nullptr, from && k.has_columns);
}

/* The thread's columns of token number n of the block, of x and of residual. */
DEV u32 own_x(const row &k, int n) { return k.own + 2 * n * blockDim.x * 16; }
DEV u32 own_residual(const row &k, int n) { return own_x(k, n) + blockDim.x * 16; }

/* Begins to load them. */
DEV void load_own(const row &k, i64 t, int n)
{
    const gate_in &residual = k.a.residual;
    if (!k.has_columns) return;
    copy_async_16(own_x(k, n), x_row(k, t) + k.column);
    if (residual.data)
        copy_async_16(own_residual(k, n), residual.data + t * residual.token + k.h * residual.stream + k.column);
}

/* Of N tokens, which share the weights. */
template <bool IS_BF16, int N>
DEV void add_taps(u32 weights, const uint4 (&tap)[N][KERNEL_SIZE], float (&z)[N][CONV_VECTOR])
{
#pragma unroll
    for (int i = 0; i < KERNEL_SIZE; i++) { /* weights are in the order of columns, then taps */
        float some[CONV_VECTOR];
        weights_of<IS_BF16, KERNEL_SIZE>(weights, i, some);
#pragma unroll
        for (int m = 0; m < CONV_VECTOR; m++) {
            const int c = (i * CONV_VECTOR + m) / KERNEL_SIZE, j = (i * CONV_VECTOR + m) % KERNEL_SIZE;
#pragma unroll
            for (int n = 0; n < N; n++) z[n][c] = fmaf(some[m], column(tap[n][j], c), z[n][c]);
        }
    }
}

/* Of token `number` of the block the rows that taps reach, normed, its rstd and its entry of the ring. Lane
 * number * KERNEL_SIZE + j has the rstd of row j. */
DEV void norm_rows(const row &k, const work &of, int number, float rstds, const float (&norm)[CONV_VECTOR],
                   uint4 (&tap)[KERNEL_SIZE])
{
    const short_conv_args &a = k.a;
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++) {
        const float rstd = __shfl_sync(FULL, rstds, number * KERNEL_SIZE + j);
        if (of.from_x >> j & 1) tap[j] = normed(tap[j], rstd, norm);
        if (j == LAST && a.rstd && of.out && threadIdx.x == 0)
            a.rstd[of.token * a.num_streams + k.h] = of.is_alive ? tgl_one_nan(rstd) : 0;
    }
    if (of.entry && k.has_columns) store_u32x4(of.entry + k.column, tap[LAST]);
}

DEV void put_result(const row &k, const work &of, int number, const float (&z)[CONV_VECTOR])
{
    const short_conv_args &a = k.a;
    uint4 out = make_uint4(0, 0, 0, 0);
    if (a.residual.data) out = shared_load_u32x4(own_residual(k, number));
    if (of.is_alive)
        out = result_of(a.numbers, z, shared_load_u32x4(own_x(k, number)), a.residual.data, out, ROUND_EACH);
    store_u32x4(of.out + k.column, out);
}

/* N tokens at once; a barrier before weights and sums are read. */
template <int N> DEV void run_rows(const row &k, const work *works)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint4 tap[N][KERNEL_SIZE];
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int j = 0; j < LAST; j++) tap[n][j] = load_columns(k, works[n].tap[j]);
    __syncthreads();      /* only so that ptxas does not move half of these loads behind the next line, which waits */
    copy_async_wait<0>(); /* own rows and weights */
#pragma unroll
    for (int n = 0; n < N; n++) {
        tap[n][LAST] = make_uint4(0, 0, 0, 0);
        if (works[n].is_alive && k.has_columns) tap[n][LAST] = shared_load_u32x4(own_x(k, n));
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int j = LAST; j >= 0; j--) { /* the own row is there first */
            if (!(works[n].from_x >> j & 1)) continue;
            const float sum = group_sum(squares_of(tap[n][j]));
            if (lane == 0) k.groups[(n * KERNEL_SIZE + j) * GROUPS + warp] = sum;
        }
    __syncthreads();
    const int n = lane / KERNEL_SIZE, j = lane % KERNEL_SIZE, warps = (int)blockDim.x / 32;
    float total = 0;
    if (n < N && works[n].from_x >> j & 1) {
#pragma unroll 5
        for (int i = 0; i < warps; i++) total += k.groups[lane * GROUPS + i];
    }
    const float rstds = conv_rstd(&k.a.numbers, total); /* lane n * KERNEL_SIZE + j has that of row j of token n */
    const short_conv_args &a = k.a;
    float norm[CONV_VECTOR] = {}, z[N][CONV_VECTOR] = {};
    if (k.has_columns) {
        if (a.norm.is_bf16) weights_of<true, 1>(k.norm, 0, norm);
        else weights_of<false, 1>(k.norm, 0, norm);
    }
#pragma unroll
    for (int i = 0; i < CONV_VECTOR; i++) norm[i] = conv_norm_weight(&a.numbers, norm[i]);
#pragma unroll
    for (int i = 0; i < N; i++) norm_rows(k, works[i], i, rstds, norm, tap[i]);
    if (!k.has_columns || !works[0].out) return; /* all of a block have results, or none has */
#pragma unroll
    for (int i = 0; i < N && a.bias.data; i++) load_vector(a.bias, (i64)k.h * a.hidden + k.column, z[i]);
    if (a.conv.is_bf16) add_taps<true>(k.conv, tap, z);
    else add_taps<false>(k.conv, tap, z);
#pragma unroll
    for (int i = 0; i < N; i++) put_result(k, works[i], i, z[i]);
}

/* A token and those that a block has besides, one after the other; if it is_plain, it is described and loaded. */
DEV void run_others(const row &k, const more &of, bool is_plain, work *works)
{
#pragma unroll 1
    for (u32 i = 0; i < of.count + of.stored; i++) {
        row now = k; /* nothing is computed ahead of the loop: registers are short */
        now.h = kept_u32(k.h), now.column = kept_u32(k.column);
        if (TOKENS == 1 ? of.count + of.stored != 1 : !is_plain) {
            const bool has_out = i < of.count;
            const i64 at = has_out ? of.token + i : of.end - (of.count + of.stored - i);
            __syncthreads(); /* all have done what was described before */
            if (threadIdx.x < 32) describe(now, of.r, of.is_request, at, has_out, !has_out || of.writes, works[0]);
            __syncthreads();
            copy_async_wait<0>(); /* copies have no order: one to the same place may be under way */
            load_own(now, at, 0);
            copy_async_commit();
        }
        run_rows<1>(now, works);
    }
}

#if __CUDA_ARCH__ >= 900
enum { BLOCKS = BLOCK_THREADS > CONV_FEW_THREADS ? 1 : 2 };
#else
enum { BLOCKS = 1 };
#endif

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS)
    short_conv_fwd_row(const __grid_constant__ short_conv_args a)
{
    SHARED_DYNAMIC(memory, 128);
    SHARED(float[TOKENS * KERNEL_SIZE * GROUPS], groups);
    SHARED(work[TOKENS], works);
    SHARED(more[TOKENS], besides);
    const i64 block = (i64)blockIdx.y * gridDim.x + blockIdx.x, tile = block / a.num_streams;
    const i64 first = tile * a.tile_tokens;
    const u32 vectors = (u32)a.hidden / CONV_VECTOR, column = threadIdx.x * CONV_VECTOR;
    const u32 norm = shared_address(memory), conv = norm + (u32)CONV_ROW_BYTES(vectors, a.norm);
    const u32 own = conv + (u32)CONV_ROW_BYTES(KERNEL_SIZE * vectors, a.conv) + threadIdx.x * 16;
    const row k = { a, (u32)(block - tile * a.num_streams), column, norm, conv, own, column < a.hidden, groups };
    pdl_wait();
    if (first < a.num_tokens) {
        const int count = TOKENS == 1 ? 1 : (int)min(a.tile_tokens, a.num_tokens - first);
#pragma unroll 1
        for (int n = 0; n < count; n++) load_own(k, first + n, n);
        load_weights(k.norm, a.norm, k.h * a.norm.stride, vectors * (a.norm.is_bf16 ? 1 : 2));
        load_weights(k.conv, a.conv, k.h * a.hidden * KERNEL_SIZE, vectors * KERNEL_SIZE * (a.conv.is_bf16 ? 1 : 2));
        copy_async_commit();
        /* token n by the warp n from the end: the last warps may have no weights to load */
#pragma unroll 1
        for (int n = (int)(blockDim.x - 1 - threadIdx.x) / 32; n < count; n += (int)blockDim.x / 32)
            find_work(k, first + n, works[n], besides[n]);
        __syncthreads();
        bool is_plain = true;
#pragma unroll
        for (int n = 0; n < TOKENS; n++)
            if (n < count && besides[n].count + besides[n].stored != 1) is_plain = false;
        if (TOKENS > 1 && is_plain && count == TOKENS) {
            run_rows<TOKENS>(k, works);
        } else {
#pragma unroll 1
            for (int n = 0; n < count; n++) run_others(k, besides[n], is_plain, works);
        }
        copy_async_wait<0>(); /* of a block that has nothing to do */
    }
    pdl_trigger();
}
