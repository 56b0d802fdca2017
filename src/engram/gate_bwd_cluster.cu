/* SPDX-License-Identifier: MIT
 * gate_bwd_cluster.cu - the gradients of the gate: the blocks of a cluster split the columns; sm_90 and up.
 *   computes  as gate_bwd.cu
 *   launch    grid num_partials * BLOCKS, cluster BLOCKS (1: none), block of a thread per vector (8 columns) and a
 *             warp that loads; dynamic shared memory of `stages` tokens: grad_out, x and k of all streams, and v
 *   moves     10 bytes per element of x, 4 of v, once each; weights and partials once
 *   macros    WEIGHTS, ZERO_CENTERED as common/gate.cuh says; STREAMS 1..GATE_CLUSTER_STREAMS; BLOCKS 1, 2, 4
 *
 * A thread has one vector in all streams: its weights, and the sums of their gradient over all tokens of the partial,
 * stay in registers, and grad_v needs no other thread. What all blocks need to know of a token is the sums of
 * grad_out * v, STREAMS numbers for each warp. Every warp, even one past the last column, stores its sums in all blocks
 * of the cluster, which count the bytes; a block alone counts its warps. grad_v is computed meanwhile. Sums have two
 * buffers: a warp stores those of a token after it has seen those of the token before from all warps, which then have
 * read those of the one before that. Neighbouring clusters have neighbouring tokens, so that together they sweep
 * memory: on an H200 (2026-11), 4096 tokens take 330 us (7168 columns) and 123 (2560), with tokens of a partial in a
 * row 334 and 133. */
#include "engram/common/gate.cuh"
#include "engram/common/row_sum.cuh"
#include "engram/gate_bwd.h"

static_assert(STREAMS >= 1 && STREAMS <= GATE_CLUSTER_STREAMS, "STREAMS is 1..GATE_CLUSTER_STREAMS");
static_assert(BLOCKS == 1 || BLOCKS == 2 || BLOCKS == 4, "BLOCKS is 1, 2 or 4");

#if __CUDA_ARCH__ >= 900
/* A stage: rows of `pitch` bytes: grad_out of all streams, then x, then k, then v. */
enum { GRAD_OUT = 0, X = STREAMS, K = 2 * STREAMS, V = 3 * STREAMS, ROWS = 3 * STREAMS + 1 };
typedef struct {
    u32 stages, loaded, freed, pitch, bytes;
    i64 column;
} ring;

/* The rows of every token of the partial, by one lane of the loading warp. */
DEV void load_tokens(const gate_bwd_args &a, const ring &r, i64 partial)
{
    int stage = 0;
    u32 parity = 0;
    bool is_full = false; /* all stages have been filled once */
#pragma unroll 1
    for (i64 t = partial; t < a.num_tokens; t += a.num_partials) {
        const u32 bar = r.loaded + 8 * stage, to = r.stages + (u32)(stage * ROWS) * r.pitch;
        if (is_full) mbar_wait(r.freed + 8 * stage, parity ^ 1);
        mbar_expect(bar, ROWS * r.bytes);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const u16 *from = i < X   ? row_of(a.grad_out, t, i)
                              : i < K ? row_of(a.x, t, i - X)
                              : i < V ? row_of(a.k, t, i - K)
                                      : row_of(a.v, t, 0);
            if (r.bytes) bulk_load(to + (u32)i * r.pitch, from + r.column, r.bytes, bar);
        }
        stage = stage + 1 < a.stages ? stage + 1 : 0;
        if (stage == 0) parity ^= 1, is_full = true;
    }
}

/* Lane h has stream h's numbers of a token. */
typedef struct {
    float dot, gate, rstd_x, rstd_k;
    bool is_masked;
} saved;
DEV saved load_saved(const gate_bwd_args &a, i64 t)
{
    const int lane = (int)threadIdx.x % 32;
    saved s = { 0, 0, 0, 0, a.image_token_mask && a.image_token_mask[t] };
    if (lane < STREAMS) {
        const i64 row = t * STREAMS + lane;
        s.dot = a.dot[row], s.gate = a.gate_score[row], s.rstd_x = a.rstd_x[row], s.rstd_k = a.rstd_k[row];
    }
    return s;
}

/* A lane's vector of grad_out, one stream after the other: its sum with v, and its part of grad_v. Sums of the warp's
 * group of vectors go to all blocks. */
DEV uint4 send_sums(u32 from, u32 pitch, bool is_mine, float gate, float4 *to, u32 bar)
{
    const uint4 none = make_uint4(0, 0, 0, 0), v = is_mine ? shared_load_u32x4(from + V * pitch) : none;
    float4 sums = make_float4(0, 0, 0, 0);
    float grad_v[GATE_VECTOR] = {};
#pragma unroll
    for (int h = 0; h < STREAMS; h++) {
        const uint4 go = is_mine ? shared_load_u32x4(from + (GRAD_OUT + h) * pitch) : none;
        const float g = __shfl_sync(FULL, gate, h);
        float sum = 0;
#pragma unroll
        for (int i = 0; i < GATE_VECTOR; i++) {
            sum = fmaf(column(go, i), column(v, i), sum);
            grad_v[i] = fmaf(column(go, i), g, grad_v[i]);
        }
        sum = group_sum(sum);
        (h == 0 ? sums.x : h == 1 ? sums.y : h == 2 ? sums.z : sums.w) = sum;
    }
    const u32 block = threadIdx.x % 32;
    if (BLOCKS > 1 && block < BLOCKS)
        cluster_store_async(cluster_map(shared_address(to), block), sums, cluster_map(bar, block));
    if (BLOCKS == 1 && block == 0) {
        *to = sums;
        mbar_arrive(bar);
    }
    return pack(grad_v);
}

DEV void run(const gate_bwd_args &a)
{
    enum { MOST_GROUPS = GATE_CLUSTER_THREADS / GATE_GROUP * BLOCKS };
    SHARED_DYNAMIC(memory, 128);
    SHARED(u64[2 * GATE_CLUSTER_STAGES + 2], bars); /* of stages loaded, of stages freed, of sums */
    SHARED(float4[2 * MOST_GROUPS], sums);
    const int tid = (int)threadIdx.x, warp = tid / 32, warps = (int)blockDim.x / 32 - 1;
    const i64 partial = blockIdx.x / BLOCKS, rank = blockIdx.x % BLOCKS;
    const i64 block_columns = (i64)warps * GATE_GROUP * GATE_VECTOR, column_0 = rank * block_columns;
    const i64 columns = max((i64)0, min(block_columns, a.hidden - column_0));
    const int groups = (int)((a.hidden + GATE_GROUP * GATE_VECTOR - 1) / (GATE_GROUP * GATE_VECTOR));
    const ring r = { shared_address(memory), shared_address(bars), shared_address(bars + GATE_CLUSTER_STAGES),
                     (u32)block_columns * 2, (u32)columns * 2,     column_0 };
    const u32 exchanged = shared_address(bars + 2 * GATE_CLUSTER_STAGES);
    if (tid == 0) {
#pragma unroll 1
        for (int i = 0; i < a.stages; i++) {
            mbar_init(r.loaded + 8 * i, 1);
            mbar_init(r.freed + 8 * i, (u32)warps);
        }
        const u32 arrivals = BLOCKS > 1 ? 1 : (u32)warps;
        mbar_init(exchanged, arrivals);
        mbar_init(exchanged + 8, arrivals);
        mbar_init_fence();
    }
    __syncthreads();
    if (BLOCKS > 1) cluster_arrive_relaxed(); /* mbarriers are initialised; loads wait for no other block */
    pdl_wait();
    if (warp == warps) {
        if (tid % 32 == 0) load_tokens(a, r, partial);
    } else {
        const i64 at = column_0 + (i64)tid * GATE_VECTOR;
        const bool is_mine = at < a.hidden; /* else the thread has zeros */
        const int group = (int)rank * warps + warp;
        float w[STREAMS][GATE_VECTOR], grad_w[STREAMS][GATE_VECTOR];
#pragma unroll
        for (int h = 0; h < STREAMS; h++) {
#pragma unroll
            for (int i = 0; i < GATE_VECTOR; i++) w[h][i] = grad_w[h][i] = 0;
            if (is_mine) load_weights(a.weights, h, at / GATE_VECTOR, w[h]);
        }
        saved next = { 0, 0, 0, 0, false };
        if (partial < a.num_tokens) next = load_saved(a, partial);
        int stage = 0, num_exchanged = 0;
        u32 parity = 0;
        if (BLOCKS > 1) cluster_wait(); /* mbarriers of all blocks are initialised */
#pragma unroll 1
        for (i64 t = partial; t < a.num_tokens; t += a.num_partials) {
            const saved s = next;
            if (t + a.num_partials < a.num_tokens) next = load_saved(a, t + a.num_partials);
            const u32 from = r.stages + (u32)(stage * ROWS) * r.pitch + 16 * tid;
            mbar_wait(r.loaded + 8 * stage, parity);
            gate_slopes mine = {};
            if (!s.is_masked) {
                const int buffer = num_exchanged % 2;
                const u32 bar = exchanged + 8 * buffer;
                if (BLOCKS > 1 && tid == 0) mbar_expect(bar, (u32)(warps * BLOCKS) * 16);
                float4 *const to = sums + buffer * MOST_GROUPS;
                const uint4 grad_v = send_sums(from, r.pitch, is_mine, s.gate, to + group, bar);
                if (is_mine && a.grad_v.data) store_u32x4(row_of(a.grad_v, t, 0) + at, grad_v);
                mine = gate_slopes_of(&a.numbers, s.dot, s.gate, s.rstd_x, s.rstd_k);
                if (BLOCKS > 1) mbar_wait_cluster(bar, num_exchanged / 2 % 2);
                else mbar_wait(bar, num_exchanged / 2 % 2);
                num_exchanged++;
                const float *const of_stream = (const float *)to + tid % 4;
                float grad_gate = 0;
#pragma unroll 4
                for (int i = 0; i < groups; i++) grad_gate += of_stream[4 * i];
                gate_set_q(&mine, grad_gate);
            } else if (is_mine && a.grad_v.data) {
                store_u32x4(row_of(a.grad_v, t, 0) + at, make_uint4(0, 0, 0, 0));
            }
#pragma unroll
            for (int h = 0; h < STREAMS; h++) {
                gate_slopes slopes = {};
                slopes.q = __shfl_sync(FULL, mine.q, h);
                slopes.a_x = __shfl_sync(FULL, mine.a_x, h), slopes.a_k = __shfl_sync(FULL, mine.a_k, h);
                if (!is_mine) continue;
                const uint4 go = shared_load_u32x4(from + (GRAD_OUT + h) * r.pitch);
                const uint4 x = shared_load_u32x4(from + (X + h) * r.pitch);
                const uint4 k = shared_load_u32x4(from + (K + h) * r.pitch);
                float grad_x[GATE_VECTOR], grad_k[GATE_VECTOR];
#pragma unroll
                for (int i = 0; i < GATE_VECTOR; i++) {
                    const float xi = column(x, i), ki = column(k, i);
                    grad_x[i] = gate_grad_x(&slopes, column(go, i), xi, ki, w[h][i], a.has_residual);
                    grad_k[i] = gate_grad_k(&slopes, xi, ki, w[h][i]);
                    if (!s.is_masked) grad_w[h][i] = gate_grad_w(&slopes, xi, ki, grad_w[h][i]);
                }
                const uint4 none = make_uint4(0, 0, 0, 0), masked = a.has_residual ? go : none;
                if (a.grad_x.data) store_u32x4(row_of(a.grad_x, t, h) + at, s.is_masked ? masked : pack(grad_x));
                if (a.grad_k.data) store_u32x4(row_of(a.grad_k, t, h) + at, s.is_masked ? none : pack(grad_k));
            }
            __syncwarp(); /* all lanes have read the stage */
            if (tid % 32 == 0) mbar_arrive(r.freed + 8 * stage);
            stage = stage + 1 < a.stages ? stage + 1 : 0;
            if (stage == 0) parity ^= 1;
        }
        if (a.grad_w_partial && is_mine) {
#pragma unroll
            for (int h = 0; h < STREAMS; h++) {
                float *to = a.grad_w_partial + (partial * STREAMS + h) * a.hidden + at;
#pragma unroll
                for (int i = 0; i < GATE_VECTOR; i += 4)
                    *(float4 *)(to + i) = make_float4(tgl_one_nan(grad_w[h][i]), tgl_one_nan(grad_w[h][i + 1]),
                                                      tgl_one_nan(grad_w[h][i + 2]), tgl_one_nan(grad_w[h][i + 3]));
            }
        }
    }
    /* A block ends without asking the others: it has waited for all that they store into it. */
}
#endif

extern "C" __global__ void __launch_bounds__(GATE_CLUSTER_THREADS + 32)
    gate_bwd_cluster(const __grid_constant__ gate_bwd_args a)
{
#if __CUDA_ARCH__ >= 900
    run(a);
    pdl_trigger();
#endif
}
