/* SPDX-License-Identifier: MIT
 * split_sinkhorn_bwd.cu - gradients of mixes, scale and base from those of both gates and of comb.
 *   computes  the gradient of comb's logits as sinkhorn_bwd.h says, then all others as common/gates_bwd.cuh says. Of a
 *             chunk of tokens a thread has a row of a matrix, a lane all steps of a token; the gradients stay in shared
 *             memory
 *   launch    grid of chunks, at least one (blocks stride over chunks), block SPLIT_SINKHORN_BWD_THREADS(STREAMS), shared
 *             memory of split_sinkhorn_bwd_bytes(STREAMS, repeat)
 *   moves     12 bytes per column and token; partial sums
 *   macros    STREAMS 1..8 */
#include "device/integer.cuh"
#include "mhc/common/tokens.cuh"
#include "mhc/split_sinkhorn_bwd.h"

#define GROUPS 3
#define THREADS SPLIT_SINKHORN_BWD_THREADS(STREAMS)
#include "mhc/common/gates_bwd.cuh"

enum { AT_ONCE = SPLIT_SINKHORN_BWD_TOKENS(STREAMS), SQUARE = STREAMS * STREAMS };
static_assert(AT_ONCE * STREAMS <= THREADS && GATES_CHUNK == 64, "a thread has a row");

typedef token_numbers<SQUARE> matrices; /* of 32 tokens */

/* All steps of a token: a lane each of the first warps. */
DEV void run_steps(const split_sinkhorn_bwd_args &a, const matrices &of_warp, matrices &grads, float *memory)
{
    const int lane = (int)threadIdx.x % 32;
    const sinkhorn_history history = { memory + threadIdx.x, AT_ONCE };
    mhc_matrix m;
    sinkhorn_grads d;
#pragma unroll
    for (int i = 0; i < SQUARE; i++) {
        m.e[i / STREAMS][i % STREAMS] = of_warp.v[i][lane];
        d.e[i / STREAMS][i % STREAMS] = grads.v[i][lane];
    }
    sinkhorn_bwd_steps(&m, &d, STREAMS, a.repeat, a.eps, &history);
#pragma unroll
    for (int i = 0; i < SQUARE; i++) grads.v[i][lane] = d.e[i / STREAMS][i % STREAMS];
}

/* Tokens begin .. begin + AT_ONCE - 1 of a chunk of `count` tokens from `first` on: the gradient of their logits. Past
 * the last token they are zeros. */
DEV void run_sinkhorn(const split_sinkhorn_bwd_args &a, i64 first, int begin, int count,
                      matrices (&of_warp)[AT_ONCE / 32], matrices (&grads)[GATES_CHUNK / 32], float *memory)
{
    const gates_bwd_args &g = a.gates;
    const int token = (int)threadIdx.x / STREAMS, i = (int)threadIdx.x % STREAMS, column = (2 + i) * STREAMS;
    const int t = begin + token;
    float row[STREAMS] = { 0 }, d[STREAMS] = { 0 };
    if (token < AT_ONCE) {
        float e[STREAMS], base[STREAMS];
        if (t < count) {
            load_row(g.mixes + (first + t) * g.row_stride + column, a.has_vectors, row);
            load_row(g.base + column, a.has_vectors, base);
            load_row(g.grad_out[2] + (first + t) * SQUARE + i * STREAMS, a.has_vectors, d);
#pragma unroll
            for (int o = 0; o < STREAMS; o++) row[o] = gates_of(&g.numbers, 2, mhc_logit(row[o], g.scale[2], base[o]));
        }
        const float rcp = mhc_softmax(row, STREAMS);
#pragma unroll
        for (int o = 0; o < STREAMS; o++) {
            e[o] = fmaf(row[o], rcp, a.eps);
            row[o] = row[o] * rcp;
        }
        of_warp[token / 32].put(token % 32, i * STREAMS, e);
        grads[t / 32].put(t % 32, i * STREAMS, d);
    }
    __syncthreads();
    if (threadIdx.x < AT_ONCE) run_steps(a, of_warp[threadIdx.x / 32], grads[(begin + (int)threadIdx.x) / 32], memory);
    __syncthreads();
    if (token < AT_ONCE) {
        grads[t / 32].get(t % 32, i * STREAMS, d);
        sinkhorn_bwd_softmax(row, d, STREAMS);
        grads[t / 32].put(t % 32, i * STREAMS, d);
    }
}

/* The gradients of gates that arrive, and those of logits. */
struct given_or_made {
    given others;
    const matrices (&grads)[GATES_CHUNK / 32];
    __device__ __forceinline__ float operator()(int t) const
    {
        const struct column &c = others.c;
        return c.group == 2 && c.grad ? grads[t / 32].v[c.j - 2 * STREAMS][t % 32] : others(t);
    }
};

/* One block an SM would do: so that the compiler spends registers on overlapping the steps. */
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    split_sinkhorn_bwd(const __grid_constant__ split_sinkhorn_bwd_args a)
{
    SHARED_DYNAMIC(memory, 16);
    SHARED(matrices[AT_ONCE / 32], of_warp);
    SHARED(matrices[GATES_CHUNK / 32], grads);
    SHARED(u32, is_last);
    const gates_bwd_args &g = a.gates;
    const i64 num_chunks = ceil_div(g.num_tokens, GATES_CHUNK);
    pdl_wait();
    u32 before = 0; /* blocks that have started: fetched now, needed at the end */
    if (threadIdx.x == 0) before = atomic_inc_relaxed(g.started, gridDim.x - 1);
#pragma unroll 1
    for (i64 chunk = blockIdx.x; chunk < num_chunks; chunk += gridDim.x) {
        const i64 first = chunk * GATES_CHUNK;
        const int count = (int)min((i64)GATES_CHUNK, g.num_tokens - first);
        if (g.grad_out[2]) {
#pragma unroll 1
            for (int begin = 0; begin < count; begin += AT_ONCE)
                run_sinkhorn(a, first, begin, count, of_warp, grads, (float *)memory);
            __syncthreads();
        }
#pragma unroll 1
        for (int thread = (int)threadIdx.x; thread / 32 * 32 < LANES * COLUMNS; thread += THREADS) { /* warps */
            const struct column c = column_of(g, thread);
            run_chunk(g, c, first, count, g.partial + chunk * SUMS, given_or_made{ { c, first }, grads });
        }
        __syncthreads(); /* all have read the gradients */
    }
    if (threadIdx.x == 0) is_last = before == gridDim.x - 1;
    __syncthreads();
    if (is_last) finish(g, num_chunks, *(double (*)[GATES_CHUNK_STRANDS][SUMS])memory);
    pdl_trigger();
}
