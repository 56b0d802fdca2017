/* SPDX-License-Identifier: MIT
 * short_conv_fwd.cu - the short convolution of tiles of tokens: a block walks over the tokens of a tile, one stream.
 *   computes  as tegula/engram.h says, sums in the order of common/short_conv.h
 *   launch    grid tiles of tile_tokens tokens * num_streams (block b: stream b % num_streams), block BLOCK_THREADS,
 *             dynamic shared memory of CONV_WALK_ROWS rows, and CONV_RESIDUAL_ROWS if there is a residual
 *   moves     2 bytes per element of x, residual and out, once each, and x of the tokens that a tile reaches back to
 *   macros    KERNEL_SIZE 1..CONV_WALK_TAPS; BLOCK_THREADS of a block, a vector of columns each; ROUND_EACH 0, 1
 *
 * A thread has the same 8 columns of all tokens: weights stay in registers (a bias, which no model has, is read for
 * every token), and the rows that taps reach back to are in shared memory, in columns that no other thread reads. A row
 * is copied there (cp.async) a step ahead, and normed in place once the threads have added up its squares: that is the
 * one barrier of a step.
 *
 * The ring. A token writes its own entry as soon as it is normed, if no other block reads that entry. In chunks that
 * are longer the first tokens read entries that the last ones write. Those tokens are all in the block that has the
 * first one (tiles shift their ends), and each of its threads writes its columns of the ring after it has read them. */
#include "engram/common/vector.cuh"
#include "engram/short_conv_fwd.h"
#define MAX_NGRAM 0
#define ID_BYTES 4
#define PAST PAST_RING
#define PAST_BYTES 4
#include "engram/common/requests.cuh"

static_assert(KERNEL_SIZE >= 1 && KERNEL_SIZE <= CONV_WALK_TAPS, "KERNEL_SIZE is 1..CONV_WALK_TAPS");
static_assert(ROUND_EACH == 0 || ROUND_EACH == 1, "ROUND_EACH is 0 or 1");
static_assert(BLOCK_THREADS == CONV_FEW_THREADS || BLOCK_THREADS == CONV_SOME_THREADS ||
              BLOCK_THREADS == CONV_MANY_THREADS, "BLOCK_THREADS is one of three");

enum {
    WARPS = BLOCK_THREADS / 32, AHEAD = CONV_AHEAD(BLOCK_THREADS), ROW_BYTES = BLOCK_THREADS * 16,
    TOKENS = BLOCK_THREADS < CONV_WALK_TOKENS ? BLOCK_THREADS : CONV_WALK_TOKENS,
    RESIDUAL_ROWS = CONV_RESIDUAL_ROWS(BLOCK_THREADS),
    BLOCKS = CONV_WALK_BLOCKS(BLOCK_THREADS)
};

/* What a block knows of a token. */
enum { ALIVE = 1, WRITES = 2, WRITES_LATER = 4, PLAIN = 8 };         /* PLAIN: alive, nothing to do with the ring */
struct token {
    i64 slot, end;              /* of its request: row of the ring, behind its last token */
    i32 depth, reach, start;    /* tokens of the chunk before it, tokens before the chunk, the chunk's first entry */
    u32 state;
};

DEV void load_vector(const conv_weights &w, i64 at, float (&to)[CONV_VECTOR])
{
    if (w.is_bf16) {
        const uint4 v = *(const uint4 *)((const u16 *)w.data + at);
#pragma unroll
        for (int i = 0; i < CONV_VECTOR; i++) to[i] = column(v, i);
    } else {
        const float4 a = *(const float4 *)((const float *)w.data + at);
        const float4 b = *(const float4 *)((const float *)w.data + at + 4);
        to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
    }
}

/* norm_weight as it counts. */
DEV void load_norm(const short_conv_args &a, i64 h, i64 first, float (&norm)[CONV_VECTOR])
{
    load_vector(a.norm, h * a.norm.stride + first, norm);
#pragma unroll
    for (int i = 0; i < CONV_VECTOR; i++) norm[i] = conv_norm_weight(&a.numbers, norm[i]);
}

DEV float squares_of(const uint4 &x)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < CONV_VECTOR; i++) sum = fmaf(column(x, i), column(x, i), sum);
    return sum;
}

DEV uint4 normed(const uint4 &x, float rstd, const float (&norm)[CONV_VECTOR])
{
    float v[CONV_VECTOR];
#pragma unroll
    for (int i = 0; i < CONV_VECTOR; i++) v[i] = conv_normed(column(x, i), rstd, norm[i]);
    return pack(v);
}

/* 1 / d, rounded to nearest: d is between 1 and 2^116 (quant/common/swiglu.cuh says why that is so). */
DEV float reciprocal(float d)
{
    const float r = rcp_fast(d);
    return fmaf(r, fmaf(-d, r, 1), r);
}

DEV uint4 result_of(const conv_numbers &n, float (&z)[CONV_VECTOR], const uint4 &x, bool has_residual,
                    const uint4 &residual)
{
    float out[CONV_VECTOR];
#pragma unroll
    for (int i = 0; i < CONV_VECTOR; i++) {
        const float of = ROUND_EACH ? conv_rounded(z[i]) : z[i];
        out[i] = conv_result(&n, of, reciprocal(conv_sigmoid_divisor(of)), column(x, i), has_residual,
                             column(residual, i), ROUND_EACH);
    }
    return pack(out);
}

struct weights { float norm[CONV_VECTOR], conv[CONV_VECTOR][KERNEL_SIZE]; };

DEV void load_weights(const short_conv_args &a, i64 h, i64 first, weights &w)
{
    const i64 channel = h * a.hidden + first;
    load_norm(a, h, first, w.norm);
#pragma unroll
    for (int v = 0; v < KERNEL_SIZE; v++) {
        float some[CONV_VECTOR];
        load_vector(a.conv, channel * KERNEL_SIZE + v * CONV_VECTOR, some);
#pragma unroll
        for (int i = 0; i < CONV_VECTOR; i++) {
            const int n = v * CONV_VECTOR + i;
            w.conv[n / KERNEL_SIZE][n % KERNEL_SIZE] = some[i];
        }
    }
}

DEV token token_at(const tgl_windows &w, const tgl_place &place, i64 t)
{
    token made = {};
    if (t < 0 || t >= w.num_tokens || !is_in_request(w, place)) return made;
    const tgl_request r = tgl_request_at(&w, place);
    made.slot = r.slot;
    made.end = tgl_end_of(&w, &place);
    made.depth = (i32)min(t - place.begin, (i64)0x7fffffff);
    made.reach = r.reach;
    made.start = (i32)r.start;
    if (!(w.image_token_mask && w.image_token_mask[t])) made.state |= ALIVE;
    if (r.slot >= 0 && w.writes_ring)
        made.state |= tgl_writes_apart(&w, made.end - place.begin) ? WRITES : WRITES_LATER;
    if ((made.state & ALIVE) && !(made.state & WRITES) && made.depth >= w.max_ngram - 1) made.state |= PLAIN;
    return made;
}

/* Tokens of the chunk that one block has: the first ones, which read the ring that the last ones write. */
DEV i32 tokens_together(const token &t, i64 number, i32 reach)
{
    return t.state & WRITES_LATER ? (i32)min(t.end - (number - t.depth), (i64)reach) : 0;
}

/* The squares of two rows, added in lanes 0 .. 15 and 16 .. 31. */
DEV float add_group(float first, float second)
{
    const bool is_first = threadIdx.x % 32 < 16;
    float mine = is_first ? first : second;
    const float other = is_first ? second : first;
    mine += __shfl_xor_sync(FULL, other, 16);
#pragma unroll
    for (int half = 8; half > 0; half /= 2) mine += __shfl_xor_sync(FULL, mine, half);
    return mine;
}

/* rstd of two rows, in all threads. A barrier; `groups` is not written again before the next one. */
DEV float2 rstd_of(const conv_numbers &n, const uint4 (&x)[CONV_STEP], float *groups)
{
    const int lane = threadIdx.x % 32, row = lane / 16;
    const float group = add_group(squares_of(x[0]), squares_of(x[1]));
    if (lane % 16 == 0) groups[row * WARPS + threadIdx.x / 32] = group;
    __syncthreads();
    float total = 0;
#pragma unroll 5
    for (int i = 0; i < WARPS; i++) total += groups[row * WARPS + i];
    const float rstd = conv_rstd(&n, total);
    return make_float2(__shfl_sync(FULL, rstd, 0), __shfl_sync(FULL, rstd, 16));
}

/* Tokens are counted from `base`, the first that a tile may reach back to. */
struct walk {
    const short_conv_args &a;
    const token *tokens;
    i64 base, h;
    u32 rows, residuals;        /* shared memory, at this thread's columns */
    i32 num_rows, begin, end;   /* results from token `begin` on, up to `end` */
    bool has_columns;
};

/* The row of the ring that is `before` tokens before the chunk. */
DEV const u16 *past_row(const walk &k, const token &t, i32 before)
{
    const i32 entry = t.start - before;
    const i64 row = conv_ring_row(&k.a, t.slot, entry < 0 ? entry + k.a.requests.ring_size : entry, k.h);
    return k.a.ring + row + threadIdx.x * CONV_VECTOR;
}

/* Begins to load a step. */
DEV void load_step(const walk &k, i32 first, i32 row, i32 residual_row)
{
#pragma unroll
    for (int u = 0; u < CONV_STEP; u++) {
        const i32 n = first + u;
        if (n >= k.end || !k.has_columns) continue;
        const token &of = k.tokens[n];
        const u32 state = of.state;
        const i64 t = k.base + n, c = threadIdx.x * CONV_VECTOR;
        if (state & ALIVE)
            copy_async_16(k.rows + (row + u) * ROW_BYTES, k.a.x.data + t * k.a.x.token + k.h * k.a.x.stream + c);
        if (n < k.begin) continue;
        if (k.a.residual.data)
            copy_async_16(k.residuals + (residual_row + u) * ROW_BYTES,
                          k.a.residual.data + t * k.a.residual.token + k.h * k.a.residual.stream + c);
        if (state & PLAIN || !(state & ALIVE)) continue;
#pragma unroll
        for (int j = 0; j < KERNEL_SIZE - 1; j++) {
            const i32 before = (KERNEL_SIZE - 1 - j) * k.a.dilation - of.depth;
            if (before > 0 && before <= of.reach) prefetch_l2(past_row(k, of, before));
        }
    }
    copy_async_commit();
}

DEV void add_tap(const walk &k, const token &t, i32 row, int j, const weights &w, float (&z)[CONV_VECTOR])
{
    const i32 lag = (KERNEL_SIZE - 1 - j) * k.a.dilation, before = lag - t.depth;
    uint4 tap = make_uint4(0, 0, 0, 0);
    if (before <= 0) {
        const i32 from = row - lag;
        tap = shared_load_u32x4(k.rows + (from < 0 ? from + k.num_rows : from) * ROW_BYTES);
    } else if (before <= t.reach && k.has_columns) {
        tap = *(const uint4 *)past_row(k, t, before);
    }
#pragma unroll
    for (int i = 0; i < CONV_VECTOR; i++) z[i] = fmaf(w.conv[i][j], column(tap, i), z[i]);
}

DEV void store_ring(const walk &k, const token &t, i64 number, const uint4 &v)      /* number: in the chunk */
{
    const i64 entry = tgl_ring_entry(&k.a.requests, t.start + number);
    if (k.has_columns) store_u32x4(k.a.ring + conv_ring_row(&k.a, t.slot, entry, k.h) + threadIdx.x * CONV_VECTOR, v);
}

/* A token whose row is normed, in `row` of shared memory: its entry of the ring, its result. */
DEV void finish(const walk &k, i32 n, i32 row, i32 residual_row, const uint4 &x, const uint4 &own, float rstd,
                const weights &w)
{
    const token &t = k.tokens[n];
    const i64 number = k.base + n;
    const short_conv_args &a = k.a;
    const bool is_alive = t.state & ALIVE;
    if (a.rstd && threadIdx.x == 0) a.rstd[number * a.num_streams + k.h] = is_alive ? tgl_one_nan(rstd) : 0;
    uint4 residual = make_uint4(0, 0, 0, 0), out;
    if (a.residual.data && k.has_columns) residual = shared_load_u32x4(k.residuals + residual_row * ROW_BYTES);
    if (is_alive) {
        float z[CONV_VECTOR] = {};
        if (a.bias.data && k.has_columns) load_vector(a.bias, k.h * a.hidden + threadIdx.x * CONV_VECTOR, z);
#pragma unroll
        for (int j = 0; j < KERNEL_SIZE - 1; j++) add_tap(k, t, row, j, w, z);
#pragma unroll
        for (int i = 0; i < CONV_VECTOR; i++) z[i] = fmaf(w.conv[i][KERNEL_SIZE - 1], column(own, i), z[i]);
        out = result_of(a.numbers, z, x, a.residual.data, residual);
    } else {
        out = residual;
    }
    if (t.state & WRITES) store_ring(k, t, t.depth, own);   /* a chunk of one token may have read this entry */
    if (k.has_columns)
        store_u32x4(a.out.data + number * a.out.token + k.h * a.out.stream + threadIdx.x * CONV_VECTOR, out);
}

/* The same for a token that is PLAIN: all taps are in shared memory. */
DEV void finish_plain(const walk &k, i32 n, i32 row, i32 residual_row, const uint4 &x, const uint4 &own, float rstd,
                      const weights &w)
{
    const short_conv_args &a = k.a;
    const i64 number = k.base + n;
    uint4 taps[KERNEL_SIZE], residual = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE - 1; j++) {
        const i32 from = row - (KERNEL_SIZE - 1 - j) * a.dilation;
        taps[j] = shared_load_u32x4(k.rows + (from < 0 ? from + k.num_rows : from) * ROW_BYTES);
    }
    if (a.residual.data && k.has_columns) residual = shared_load_u32x4(k.residuals + residual_row * ROW_BYTES);
    taps[KERNEL_SIZE - 1] = own;
    float z[CONV_VECTOR] = {};
    if (a.bias.data && k.has_columns) load_vector(a.bias, k.h * a.hidden + threadIdx.x * CONV_VECTOR, z);
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++)
#pragma unroll
        for (int i = 0; i < CONV_VECTOR; i++) z[i] = fmaf(w.conv[i][j], column(taps[j], i), z[i]);
    const uint4 out = result_of(a.numbers, z, x, a.residual.data, residual);
    if (a.rstd && threadIdx.x == 0) a.rstd[number * a.num_streams + k.h] = tgl_one_nan(rstd);
    if (k.has_columns)
        store_u32x4(a.out.data + number * a.out.token + k.h * a.out.stream + threadIdx.x * CONV_VECTOR, out);
}

/* The last tokens of a chunk into the ring, from x. */
DEV void store_last(const walk &k, const token &t, i64 chunk, const weights &w, float *groups)
{
    const short_conv_args &a = k.a;
    const i64 first = max(chunk, t.end - a.requests.ring_size);
    int parity = 0;
#pragma unroll 1
    for (i64 at = first; at < t.end; at += CONV_STEP, parity ^= 1) {
        uint4 x[CONV_STEP];
        bool is_alive[CONV_STEP];
#pragma unroll
        for (int u = 0; u < CONV_STEP; u++) {
            const u8 *mask = a.requests.image_token_mask;
            is_alive[u] = at + u < t.end && !(mask && mask[at + u]);
            x[u] = load_ahead_u32x4_if(a.x.data + (at + u) * a.x.token + k.h * a.x.stream + threadIdx.x * CONV_VECTOR,
                                       is_alive[u] && k.has_columns);
        }
        const float2 rstd = rstd_of(a.numbers, x, groups + parity * CONV_STEP * WARPS);
#pragma unroll
        for (int u = 0; u < CONV_STEP; u++) {
            const uint4 v = normed(x[u], u ? rstd.y : rstd.x, w.norm);
            if (at + u < t.end) store_ring(k, t, at + u - chunk, is_alive[u] ? v : make_uint4(0, 0, 0, 0));
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS) short_conv_fwd(
    const __grid_constant__ short_conv_args a)
{
    SHARED_DYNAMIC(memory, 128);
    SHARED(token[TOKENS], tokens);
    SHARED(float[2 * CONV_STEP * WARPS], groups);           /* of this step and the one before */
    SHARED(request_scratch<BLOCK_THREADS>, scratch);
    const i64 block = (i64)blockIdx.y * gridDim.x + blockIdx.x, tile = block / a.num_streams;
    const i32 reach = (KERNEL_SIZE - 1) * a.dilation, num_rows = CONV_WALK_ROWS(reach, BLOCK_THREADS);
    const i64 tile_begin = tile * a.tile_tokens, tile_end = min(tile_begin + a.tile_tokens, a.num_tokens);
    const i64 base = tile_begin - reach;
    pdl_wait();
    if (tile_begin < a.num_tokens) {
        const u32 rows = shared_address(memory) + threadIdx.x * 16;
        const i32 tile_tokens = (i32)(tile_end - tile_begin);
        walk k = { a, tokens, base, block - tile * a.num_streams, rows, rows + num_rows * ROW_BYTES, num_rows, reach,
                   reach + tile_tokens, threadIdx.x * CONV_VECTOR < a.hidden };
        const tgl_place place = find_place(a.requests, base, scratch);
        if (threadIdx.x < TOKENS) tokens[threadIdx.x] = token_at(a.requests, place, base + threadIdx.x);
        weights w = {};
        if (k.has_columns) load_weights(a, k.h, threadIdx.x * CONV_VECTOR, w);
        __syncthreads();
        const token &head = tokens[reach], &tail = tokens[reach + tile_tokens - 1];
        const i32 together = tokens_together(head, tile_begin, reach);
        if (head.depth > 0 && head.depth < together) k.begin += together - head.depth;
        if (tail.depth < tile_tokens)
            k.end = max(k.end, k.end - 1 - tail.depth + tokens_together(tail, tile_end - 1, reach));
        if (k.begin < k.end) {
            const i32 first = k.begin - min(tokens[k.begin].depth, reach);
            i32 row = 0, residual_row = 0, next_row = 0, next_residual_row = 0;
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                load_step(k, first + i * CONV_STEP, next_row, next_residual_row);
                next_row += CONV_STEP, next_residual_row += CONV_STEP;
            }
            int parity = 0;
#pragma unroll 1
            for (i32 n = first; n < k.end; n += CONV_STEP, parity ^= 1) {
                load_step(k, n + AHEAD * CONV_STEP, next_row, next_residual_row);
                next_row = next_row + CONV_STEP < num_rows ? next_row + CONV_STEP : 0;
                next_residual_row = next_residual_row + CONV_STEP < RESIDUAL_ROWS ? next_residual_row + CONV_STEP : 0;
                copy_async_wait<AHEAD>();
                uint4 x[CONV_STEP];
                u32 state[CONV_STEP];
#pragma unroll
                for (int u = 0; u < CONV_STEP; u++) {
                    x[u] = make_uint4(0, 0, 0, 0);
                    state[u] = n + u < k.end ? tokens[n + u].state : 0;
                    if (state[u] & ALIVE && k.has_columns) x[u] = shared_load_u32x4(k.rows + (row + u) * ROW_BYTES);
                }
                const float2 rstd = rstd_of(a.numbers, x, groups + parity * CONV_STEP * WARPS);
#pragma unroll
                for (int u = 0; u < CONV_STEP; u++) {
                    if (n + u >= k.end) continue;
                    uint4 own = make_uint4(0, 0, 0, 0);
                    if (state[u] & ALIVE) own = normed(x[u], u ? rstd.y : rstd.x, w.norm);
                    shared_store_u32x4(k.rows + (row + u) * ROW_BYTES, own);
                    if (n + u < k.begin) continue;
                    if (state[u] & PLAIN)
                        finish_plain(k, n + u, row + u, residual_row + u, x[u], own, u ? rstd.y : rstd.x, w);
                    else
                        finish(k, n + u, row + u, residual_row + u, x[u], own, u ? rstd.y : rstd.x, w);
                }
                row = row + CONV_STEP < num_rows ? row + CONV_STEP : 0;
                residual_row = residual_row + CONV_STEP < RESIDUAL_ROWS ? residual_row + CONV_STEP : 0;
            }
        }
        __syncthreads();                                    /* groups have been read */
#pragma unroll 1
        for (i32 n = reach; n < reach + tile_tokens; n++) {
            const token &of = tokens[n];
            if (!(of.state & WRITES_LATER) || of.depth > 0) continue;
            store_last(k, of, base + n, w, groups);
            __syncthreads();
        }
    }
    pdl_trigger();
}
