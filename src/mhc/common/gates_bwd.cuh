/* SPDX-License-Identifier: MIT
 * gates_bwd.cuh - gradients of mixes, scale and base, as common/gates.h says, for kernels in which a block has a chunk
 * of tokens, a thread a strand of it in one column at a time; strands are neighbouring lanes. The last block to start
 * adds the chunks, a thread a strand of one sum, as they come: all others run, so it need not be the last to end, and
 * words that are 0 until they are there need no fence.
 *   macros    STREAMS 1..8; GROUPS 1 (pre), 2 (and post), 3 (and comb); THREADS of a block, whole warps */
#ifndef TEGULA_MHC_GATES_BWD_CUH
#define TEGULA_MHC_GATES_BWD_CUH

#include "device/ptx.cuh"
#include "mhc/common/gates.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && GROUPS >= 1 && GROUPS <= 3, "a macro is out of range");

enum {
    COLUMNS = GROUPS == 3 ? STREAMS * (STREAMS + 2) : GROUPS * STREAMS,
    SUMS = 2 * COLUMNS,
    LANES = GATES_BWD_LANES(COLUMNS),
    STRANDS = GATES_STRANDS / LANES,
    TOKENS = GATES_CHUNK / LANES, /* of a lane, which has them of STRANDS strands in turn */
    LOADS = 16                    /* of chunks, in flight: all of 8192 tokens */
};
static_assert(GATES_STRANDS == 16 && GATES_CHUNK_STRANDS == 8 && THREADS % 32 == 0, "as the sums are added");

/* What does not depend on the chunk: a thread's column. */
struct column {
    const float *grad;
    i64 grad_stride;
    float scale, base;
    int j, group;
    bool is_there;
};

/* thread: of as many as all columns have */
DEV struct column column_of(const gates_bwd_args &a, int thread)
{
    struct column c;
    c.is_there = thread < LANES * COLUMNS;
    c.j = min(thread / LANES, COLUMNS - 1);
    c.group = gates_group(c.j, STREAMS);
    c.grad = c.group == 0 ? a.grad_out[0] : c.group == 1 ? a.grad_out[1] : a.grad_out[2];
    c.grad_stride = c.group == 2 ? STREAMS * STREAMS : STREAMS;
    c.scale = a.scale[c.group], c.base = a.base[c.j];
    return c;
}

/* A sum as a word that is not 0, for the block that waits for it. */
DEV u32 word_of(float v) { return ~__float_as_uint(tgl_one_nan(v)); }
DEV float float_of(u32 word) { return __uint_as_float(~word); }

/* The gradients that arrive, of token t of a chunk. */
struct given {
    const struct column &c;
    i64 first;
    __device__ __forceinline__ float operator()(int t) const
    {
        return c.grad ? c.grad[(first + t) * c.grad_stride + c.j - c.group * STREAMS] : 0.0f;
    }
};

/* Tokens first .. first + count - 1: the chunk's sums to `to`, [2][COLUMNS], then grad_mixes. */
template <class GRADS>
DEV void run_chunk(const gates_bwd_args &a, const struct column &c, i64 first, int count, u32 *to, const GRADS &grads)
{
    const int lane = (int)threadIdx.x % LANES;
    float d[TOKENS], m[TOKENS], of_base[STRANDS] = { 0 }, of_scale[STRANDS] = { 0 };
#pragma unroll
    for (int i = 0; i < TOKENS; i++) { /* all loads before the first use */
        const int t = lane + i * LANES;
        d[i] = m[i] = 0;
        if (t < count && c.is_there) {
            m[i] = a.mixes[(first + t) * a.row_stride + c.j];
            d[i] = grads(t);
        }
    }
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
        const int t = lane + i * LANES;
        if (t >= count || !c.is_there) continue;
        d[i] = gates_slope(&a.numbers, c.group, mhc_logit(m[i], c.scale, c.base), d[i]);
        of_base[i % STRANDS] += d[i];
        of_scale[i % STRANDS] = fmaf(d[i], m[i], of_scale[i % STRANDS]);
    }
#pragma unroll
    for (int lanes = 1; lanes < LANES; lanes *= 2)
#pragma unroll
        for (int i = 0; i < STRANDS; i++) {
            of_base[i] += __shfl_xor_sync(FULL, of_base[i], lanes);
            of_scale[i] += __shfl_xor_sync(FULL, of_scale[i], lanes);
        }
    if (c.is_there && lane < 2) {
        const float sums[] = { STRANDS == 2 ? of_base[0] + of_base[STRANDS - 1] : of_base[0],
                               STRANDS == 2 ? of_scale[0] + of_scale[STRANDS - 1] : of_scale[0] };
        store_relaxed_u32(to + lane * COLUMNS + c.j, word_of(lane == 0 ? sums[0] : sums[1]));
    }
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
        const int t = lane + i * LANES;
        if (t < count && c.is_there) a.grad_mixes[(first + t) * COLUMNS + c.j] = tgl_one_nan(d[i] * c.scale);
    }
}

/* Adds the chunks of a strand in order, when they are there, and leaves zeros. */
DEV double sum_of_strand(const gates_bwd_args &a, i64 num_chunks, int strand, int which)
{
    double sum = 0;
#pragma unroll 1
    for (i64 begin = strand; begin < num_chunks; begin += LOADS * GATES_CHUNK_STRANDS) {
        u32 v[LOADS];
        bool is_missing;
#pragma unroll 1
        do {
            is_missing = false;
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                const i64 chunk = begin + i * GATES_CHUNK_STRANDS;
                v[i] = chunk < num_chunks ? load_relaxed_u32(a.partial + chunk * SUMS + which) : word_of(0.0f);
            }
#pragma unroll
            for (int i = 0; i < LOADS; i++) is_missing |= v[i] == 0;
        } while (is_missing);
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const i64 chunk = begin + i * GATES_CHUNK_STRANDS;
            if (chunk >= num_chunks) continue;
            store_relaxed_u32(a.partial + chunk * SUMS + which, 0);
            sum += (double)float_of(v[i]);
        }
    }
    return sum;
}

DEV void finish(const gates_bwd_args &a, i64 num_chunks, double (&sums)[GATES_CHUNK_STRANDS][SUMS])
{
    const int tid = (int)threadIdx.x, group = THREADS - 1 - tid;
#pragma unroll 1
    for (int k = tid; k < GATES_CHUNK_STRANDS * SUMS; k += THREADS)
        sums[k / SUMS][k % SUMS] = sum_of_strand(a, num_chunks, k / SUMS, k % SUMS);
    __syncthreads();
#pragma unroll 1
    for (int k = tid; k < SUMS; k += THREADS) {
        const double sum = gates_chunk_tree(&sums[0][k], SUMS);
        if (k < COLUMNS) a.grad_base[k] = tgl_one_nan((float)sum);
        else sums[0][k] = sum;
    }
    __syncthreads();
    if (group < GROUPS) {
        const double *const from = sums[0] + COLUMNS + group * STREAMS;
        double total = 0;
#pragma unroll 4
        for (int i = 0; i < (group == 2 ? STREAMS * STREAMS : STREAMS); i++) total += from[i];
        a.grad_scale[group] = tgl_one_nan((float)total);
    }
}

#endif
