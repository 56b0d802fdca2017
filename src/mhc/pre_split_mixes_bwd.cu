/* SPDX-License-Identifier: MIT
 * pre_split_mixes_bwd.cu - gradients of mixes, scale and base; also those of a head.
 *   computes  as common/gates.h says. A block has a chunk of tokens, a thread a strand of it in one column; strands are
 *             neighbouring lanes. The last block to arrive adds the chunks, a thread a strand of one sum
 *   launch    grid of chunks, at least one (blocks stride over chunks), block GATES_BWD_THREADS of the columns
 *   moves     12 bytes per column and token; partial sums
 *   macros    STREAMS 1..8; GROUPS 1 (pre), 2 (and post), 3 (and comb) */
#include "device/ptx.cuh"
#include "mhc/common/gates.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && GROUPS >= 1 && GROUPS <= 3, "a macro is out of range");

enum { COLUMNS = GROUPS == 3 ? STREAMS * (STREAMS + 2) : GROUPS * STREAMS, SUMS = 2 * COLUMNS,
       THREADS = GATES_BWD_THREADS(COLUMNS), STRANDS = GATES_STRANDS, TOKENS = GATES_CHUNK / STRANDS,
       LOADS = 32 };            /* of chunks, in flight: all of 8192 tokens */
static_assert(GATES_CHUNK_STRANDS * SUMS <= THREADS, "a thread per sum and strand");

/* What does not depend on the chunk: a thread's column. */
struct column { const float *grad; i64 grad_stride; float scale, base; int j, group; };

DEV struct column column_of(const gates_bwd_args &a)
{
    struct column c;
    c.j = min((int)threadIdx.x / STRANDS, COLUMNS - 1);
    c.group = gates_group(c.j, STREAMS);
    c.grad = c.group == 0 ? a.grad_out[0] : c.group == 1 ? a.grad_out[1] : a.grad_out[2];
    c.grad_stride = c.group == 2 ? STREAMS * STREAMS : STREAMS;
    c.scale = a.scale[c.group], c.base = a.base[c.j];
    return c;
}

/* Tokens first .. first + count - 1: their grad_mixes, and the chunk's sums to `to`, [2][COLUMNS]. */
DEV void run_chunk(const gates_bwd_args &a, const struct column &c, i64 first, int count, float *to)
{
    const int strand = (int)threadIdx.x % STRANDS;
    const bool is_column = threadIdx.x < STRANDS * COLUMNS;
    float d[TOKENS], m[TOKENS], of_base = 0, of_scale = 0;
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {          /* all loads before the first use */
        const int t = strand + i * STRANDS;
        d[i] = m[i] = 0;
        if (t < count && is_column) {
            m[i] = a.mixes[(first + t) * a.row_stride + c.j];
            if (c.grad) d[i] = c.grad[(first + t) * c.grad_stride + c.j - c.group * STREAMS];
        }
    }
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
        const int t = strand + i * STRANDS;
        if (t >= count || !is_column) continue;
        const float slope = gates_slope(&a.numbers, c.group, mhc_logit(m[i], c.scale, c.base), d[i]);
        a.grad_mixes[(first + t) * COLUMNS + c.j] = tgl_one_nan(slope * c.scale);
        of_base += slope;
        of_scale = fmaf(slope, m[i], of_scale);
    }
#pragma unroll
    for (int lanes = 1; lanes < STRANDS; lanes *= 2) {
        of_base += __shfl_xor_sync(FULL, of_base, lanes);
        of_scale += __shfl_xor_sync(FULL, of_scale, lanes);
    }
    if (is_column && strand < 2) to[strand * COLUMNS + c.j] = strand == 0 ? of_base : of_scale;
}

/* Adds the chunks of a strand in order, and leaves zeros. */
DEV double sum_of_strand(const gates_bwd_args &a, i64 num_chunks, int strand, int which)
{
    double sum = 0;
#pragma unroll 1
    for (i64 begin = strand; begin < num_chunks; begin += LOADS * GATES_CHUNK_STRANDS) {
        float v[LOADS];                         /* all loads before the first store, which they would wait for */
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const i64 chunk = begin + i * GATES_CHUNK_STRANDS;
            v[i] = chunk < num_chunks ? __uint_as_float(load_relaxed_u32(a.partial + chunk * SUMS + which)) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const i64 chunk = begin + i * GATES_CHUNK_STRANDS;
            if (chunk >= num_chunks) continue;
            a.partial[chunk * SUMS + which] = 0;
            sum += (double)v[i];
        }
    }
    return sum;
}

DEV void finish(const gates_bwd_args &a, i64 num_chunks, double (&sums)[GATES_CHUNK_STRANDS][SUMS])
{
    const int tid = (int)threadIdx.x;
    if (tid < GATES_CHUNK_STRANDS * SUMS)
        sums[tid / SUMS][tid % SUMS] = sum_of_strand(a, num_chunks, tid / SUMS, tid % SUMS);
    __syncthreads();
    if (tid < SUMS) {
        const double sum = (sums[0][tid] + sums[1][tid]) + (sums[2][tid] + sums[3][tid]);
        if (tid < COLUMNS) a.grad_base[tid] = tgl_one_nan((float)sum);
        else sums[0][tid] = sum;
    }
    __syncthreads();
    if (tid < GROUPS) {
        const double *const from = sums[0] + COLUMNS + tid * STREAMS;
        double total = 0;
#pragma unroll
        for (int j = 0; j < (GROUPS == 3 ? STREAMS * STREAMS : STREAMS); j++)
            if (tid == 2 || j < STREAMS) total += from[j];
        a.grad_scale[tid] = tgl_one_nan((float)total);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) pre_split_mixes_bwd(const __grid_constant__ gates_bwd_args a)
{
    SHARED(double[GATES_CHUNK_STRANDS][SUMS], sums);
    SHARED(u32, is_last);
    const i64 num_chunks = (a.num_tokens + GATES_CHUNK - 1) / GATES_CHUNK;
    pdl_wait();
    if (threadIdx.x == 0) prefetch_l2(a.arrived);
    const struct column c = column_of(a);
#pragma unroll 1
    for (i64 chunk = blockIdx.x; chunk < num_chunks; chunk += gridDim.x) {
        const i64 first = chunk * GATES_CHUNK;
        run_chunk(a, c, first, (int)min((i64)GATES_CHUNK, a.num_tokens - first), a.partial + chunk * SUMS);
    }
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomic_inc_acq_rel(a.arrived, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (is_last) finish(a, num_chunks, sums);
    pdl_trigger();
}
