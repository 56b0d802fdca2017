/* SPDX-License-Identifier: MIT
 * short_conv_fwd_row.cu - the short convolution of few rows: a block for each, which norms the rows that taps reach.
 *   computes  as tegula/engram.h says, sums in the order of common/short_conv.h
 *   launch    grid num_tokens * num_streams (block b: stream b % num_streams), block BLOCK_THREADS, dynamic shared
 *             memory of the rows that taps reach, of residual and of the stream's weights
 *   moves     2 bytes per element of residual and out, and of x or the ring for each tap
 *   macros    KERNEL_SIZE 1..CONV_WALK_TAPS; BLOCK_THREADS of a block, CONV_ROW_VECTORS vectors of columns each;
 *             ROUND_EACH 0, 1
 *
 * What counts is how often memory is waited for, and that all rows are there at once. Weights, the token's own row and
 * its residual are under way before its request is known, then the other rows. All go to shared memory, in vectors that
 * no other thread reads: so registers are few, and 4 blocks fit on an SM. The ring is written as in
 * short_conv_fwd.cu. */
#include "engram/short_conv_fwd.h"
#define MAX_NGRAM 0
#define ID_BYTES 4
#define PAST PAST_RING
#define PAST_BYTES 4
#include "engram/common/requests.cuh"
#include "engram/common/short_conv.cuh"

static_assert(KERNEL_SIZE >= 1 && KERNEL_SIZE <= CONV_WALK_TAPS, "KERNEL_SIZE is 1..CONV_WALK_TAPS");
static_assert(BLOCK_THREADS == CONV_FEW_THREADS || BLOCK_THREADS == CONV_SOME_THREADS ||
              BLOCK_THREADS == CONV_MANY_THREADS, "BLOCK_THREADS is one of three");
static_assert(ROUND_EACH == 0 || ROUND_EACH == 1, "ROUND_EACH is 0 or 1");

enum { LAST = KERNEL_SIZE - 1, VECTORS = CONV_ROW_VECTORS, GROUPS = VECTORS * BLOCK_THREADS / 32 };
static_assert(VECTORS == 2, "a warp adds two groups at once");

struct row {
    const short_conv_args &a;
    i64 h;
    u32 memory, vectors;
    int residual, norm, conv;   /* where they are in shared memory, behind the taps: a vector has 16 bytes of each */
    float *groups;              /* of this token and of the one before */
};

DEV u32 vector_of(int i) { return threadIdx.x + i * BLOCK_THREADS; }
DEV u32 shared_at(const row &k, int what, u32 vector) { return k.memory + (what * k.vectors + vector) * 16; }
DEV bool is_masked(const short_conv_args &a, i64 t)
{
    return a.requests.image_token_mask && a.requests.image_token_mask[t];
}
DEV const u16 *x_row(const row &k, i64 t) { return k.a.x.data + t * k.a.x.token + k.h * k.a.x.stream; }
DEV u16 *ring_row(const row &k, const tgl_request &r, i64 entry)
{
    return k.a.ring + conv_ring_row(&k.a, r.slot, entry, k.h);
}

/* Begins to load the thread's vectors of a row. */
DEV void load(const row &k, int what, const void *from)
{
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const u32 v = vector_of(i);
        if (v < k.vectors) copy_async_16(shared_at(k, what, v), (const u8 *)from + v * 16);
    }
}
DEV void load_own(const row &k, i64 t)
{
    const gate_in &residual = k.a.residual;
    load(k, LAST, x_row(k, t));
    if (residual.data) load(k, k.residual, residual.data + t * residual.token + k.h * residual.stream);
}
/* Weights of a vector, `pieces` of 16 bytes that follow each other in memory. */
DEV void load_pieces(const row &k, int what, const conv_weights &w, i64 first, int pieces)
{
    const int count = w.is_bf16 ? pieces : 2 * pieces;
    const u8 *const from = (const u8 *)w.data + first * (w.is_bf16 ? 2 : 4);
#pragma unroll 1
    for (int n = 0; n < VECTORS * count; n++) {
        const u32 v = vector_of(n / count), piece = n % count;
        if (v < k.vectors) copy_async_16(shared_at(k, what + piece, v), from + ((i64)v * count + piece) * 16);
    }
}
DEV void weights_of(const row &k, int what, const conv_weights &w, int piece, u32 v, float (&to)[CONV_VECTOR])
{
    if (w.is_bf16) {
        const uint4 some = shared_load_u32x4(shared_at(k, what + piece, v));
#pragma unroll
        for (int i = 0; i < CONV_VECTOR; i++) to[i] = column(some, i);
    } else {
        const float4 a = shared_load_f32x4(shared_at(k, what + 2 * piece, v));
        const float4 b = shared_load_f32x4(shared_at(k, what + 2 * piece + 1, v));
        to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
    }
}
DEV void norm_of(const row &k, u32 v, float (&norm)[CONV_VECTOR])
{
    weights_of(k, k.norm, k.a.norm, 0, v, norm);
#pragma unroll
    for (int i = 0; i < CONV_VECTOR; i++) norm[i] = conv_norm_weight(&k.a.numbers, norm[i]);
}

/* rstd of those rows of taps that are of x, bits of `from_x`, to all threads; a barrier. Lane j has that of row j. */
DEV float rstds_of(const row &k, u32 from_x, int parity)
{
    const int lane = threadIdx.x % 32;
    float *const groups = k.groups + parity * KERNEL_SIZE * GROUPS;
#pragma unroll
    for (int j = 0; j < KERNEL_SIZE; j++) {
        if (!(from_x >> j & 1)) continue;
        float s[VECTORS];
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            s[i] = 0;
            if (vector_of(i) < k.vectors) s[i] = squares_of(shared_load_u32x4(shared_at(k, j, vector_of(i))));
        }
        float sum = add_halves(s[0], s[1], 16);
#pragma unroll
        for (int half = 8; half > 0; half /= 2) sum += __shfl_xor_sync(FULL, sum, half);
        if (lane % 16 == 0) groups[j * GROUPS + vector_of(lane / 16) / 32] = sum;
    }
    __syncthreads();
    float total = 0;
    if (lane < KERNEL_SIZE && from_x >> lane & 1) {
#pragma unroll 5
        for (int i = 0; i < GROUPS; i++) total += groups[lane * GROUPS + i];
    }
    return conv_rstd(&k.a.numbers, total);
}

/* What a block does: `count` tokens from its own on, 0: another block has it. */
struct task { tgl_request r; i64 end; i32 count; bool has_request, writes, writes_last; };

DEV void store_ring(const row &k, const tgl_request &r, i64 number, u32 v, const uint4 &of) /* number: in the chunk */
{
    store_u32x4(ring_row(k, r, tgl_ring_entry(&k.a.requests, r.start + number)) + v * CONV_VECTOR, of);
}

DEV void run_row(const row &k, const task &of, i64 t, int parity)
{
    const short_conv_args &a = k.a;
    const tgl_request &r = of.r;
    const bool is_alive = of.has_request && !is_masked(a, t);   /* in all threads of the block */
    u32 from_x = is_alive ? 1u << LAST : 0, from_ring = 0;
#pragma unroll
    for (int j = 0; j < LAST; j++) {
        const i64 from = t - (i64)(LAST - j) * a.dilation, before = r.place.begin - from;
        if (!is_alive || before > r.reach || (before <= 0 && is_masked(a, from))) continue;
        const i64 entry = r.start - before + (r.start < before ? a.requests.ring_size : 0);
        load(k, j, before <= 0 ? x_row(k, from) : ring_row(k, r, entry));
        (before <= 0 ? from_x : from_ring) |= 1u << j;
    }
    copy_async_commit();
    copy_async_wait<0>();
    const float rstds = rstds_of(k, from_x, parity), own_rstd = __shfl_sync(FULL, rstds, LAST);
    if (a.rstd && threadIdx.x == 0) a.rstd[t * a.num_streams + k.h] = is_alive ? tgl_one_nan(own_rstd) : 0;
#pragma unroll 1
    for (int i = 0; i < VECTORS; i++) {
        const u32 v = vector_of(i), at = min(v, k.vectors - 1);
        const i64 channel = k.h * a.hidden + at * CONV_VECTOR;
        const uint4 none = make_uint4(0, 0, 0, 0);
        uint4 tap[KERNEL_SIZE], out = none;
        if (a.residual.data && v < k.vectors) out = shared_load_u32x4(shared_at(k, k.residual, v));
#pragma unroll
        for (int j = 0; j < KERNEL_SIZE; j++) {
            const float rstd = __shfl_sync(FULL, rstds, j);
            tap[j] = none;
            if (v >= k.vectors || !((from_x | from_ring) >> j & 1)) continue;
            tap[j] = shared_load_u32x4(shared_at(k, j, v));
            if (!(from_x >> j & 1)) continue;
            float norm[CONV_VECTOR];
            norm_of(k, v, norm);
            tap[j] = normed(tap[j], rstd, norm);
        }
        if (v >= k.vectors) continue;
        if (is_alive) {
            float z[CONV_VECTOR] = {};
            if (a.bias.data) load_vector(a.bias, channel, z);
#pragma unroll
            for (int n = 0; n < KERNEL_SIZE; n++) {         /* weights are in the order of columns, then taps */
                float some[CONV_VECTOR];
                weights_of(k, k.conv, a.conv, n, v, some);
#pragma unroll
                for (int m = 0; m < CONV_VECTOR; m++) {
                    const int c = (n * CONV_VECTOR + m) / KERNEL_SIZE, j = (n * CONV_VECTOR + m) % KERNEL_SIZE;
                    z[c] = fmaf(some[m], column(tap[j], c), z[c]);
                }
            }
            out = result_of(a.numbers, z, shared_load_u32x4(shared_at(k, LAST, v)), a.residual.data, out, ROUND_EACH);
        }
        store_u32x4(a.out.data + t * a.out.token + k.h * a.out.stream + v * CONV_VECTOR, out);
        if (of.writes) store_ring(k, r, t - r.place.begin, v, tap[LAST]);
    }
}

/* Token t, one of the last of a chunk, into the ring. */
DEV void store_last(const row &k, const tgl_request &r, i64 t, int parity)
{
    const bool is_alive = !is_masked(k.a, t);
    if (is_alive) load(k, LAST, x_row(k, t));
    copy_async_commit();
    copy_async_wait<0>();
    const float rstd = __shfl_sync(FULL, rstds_of(k, is_alive ? 1u << LAST : 0, parity), LAST);
#pragma unroll 1
    for (int i = 0; i < VECTORS; i++) {
        const u32 v = vector_of(i);
        if (v >= k.vectors) continue;
        float norm[CONV_VECTOR];
        norm_of(k, v, norm);
        const uint4 x = is_alive ? shared_load_u32x4(shared_at(k, LAST, v)) : make_uint4(0, 0, 0, 0);
        store_ring(k, r, t - r.place.begin, v, is_alive ? normed(x, rstd, norm) : x);
    }
}

DEV task task_of(const tgl_windows &w, const found_request &found, i64 t)
{
    task made = { { { -1, 0 }, -1, 0, 0 }, 0, 1, false, false, false };
    if (!is_in_request(w, found.r.place)) return made;
    made.r = found.r, made.end = found.end, made.has_request = true;
    const i64 q = found.end - found.r.place.begin;
    if (found.r.slot < 0 || !w.writes_ring) return made;
    made.writes = tgl_writes_apart(&w, q);
    if (made.writes) return made;
    const i64 together = min(q, (i64)w.max_ngram - 1), depth = t - found.r.place.begin;
    made.writes_last = depth == 0;
    if (depth == 0 && together > 0) made.count = (i32)together;
    if (depth > 0 && depth < together) made.count = 0;
    return made;
}

#if __CUDA_ARCH__ >= 900
enum { BLOCKS = CONV_ROW_BLOCKS(BLOCK_THREADS) };
#else
enum { BLOCKS = 1 };                                        /* sm_80 needs more registers, and has less shared memory */
#endif

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS) short_conv_fwd_row(
    const __grid_constant__ short_conv_args a)
{
    SHARED_DYNAMIC(memory, 128);
    SHARED(float[2 * KERNEL_SIZE * GROUPS], groups);
    SHARED(task, shared_task);
    typedef request_scratch<BLOCK_THREADS, true> scratch_of_block;
    SHARED(scratch_of_block, scratch);
    const i64 block = (i64)blockIdx.y * gridDim.x + blockIdx.x, t = block / a.num_streams;
    const int norm = KERNEL_SIZE + (a.residual.data ? 1 : 0), conv = norm + (a.norm.is_bf16 ? 1 : 2);
    const row k = { a, block - t * a.num_streams, shared_address(memory), (u32)a.hidden / CONV_VECTOR, KERNEL_SIZE,
                    norm, conv, groups };
    pdl_wait();
    if (t < a.num_tokens) {
        load_own(k, t);
        load_pieces(k, k.norm, a.norm, k.h * a.norm.stride, 1);
        load_pieces(k, k.conv, a.conv, k.h * a.hidden * KERNEL_SIZE, KERNEL_SIZE);
        const found_request found = find_request(a.requests, t, scratch);
        if (threadIdx.x == 0) shared_task = task_of(a.requests, found, t);
        __syncthreads();
        const task &of = shared_task;
        int parity = 0;
#pragma unroll 1
        for (i32 n = 0; n < of.count; n++, parity ^= 1) {
            if (n > 0) load_own(k, t + n);
            run_row(k, of, t + n, parity);
        }
        if (of.writes_last) {
#pragma unroll 1
            for (i64 at = max(t, of.end - a.requests.ring_size); at < of.end; at++, parity ^= 1)
                store_last(k, of.r, at, parity);
        }
        copy_async_commit();                                /* of a block that has nothing to do */
        copy_async_wait<0>();
    }
    pdl_trigger();
}
