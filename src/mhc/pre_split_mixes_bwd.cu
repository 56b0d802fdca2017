/* SPDX-License-Identifier: MIT
 * pre_split_mixes_bwd.cu - gradients of mixes, scale and base; also those of a head.
 *   computes  as common/gates.h says. A block has a chunk of tokens: it writes their grad_mixes, and a thread per
 *             column and sum adds them up. The last block to arrive adds the chunks
 *   launch    grid of chunks, at least one (blocks stride over chunks), block GATES_THREADS
 *   moves     12 bytes per column and token; partial sums
 *   macros    STREAMS 1..8; GROUPS 1 (pre), 2 (and post), 3 (and comb) */
#include "device/ptx.cuh"
#include "mhc/common/gates.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && GROUPS >= 1 && GROUPS <= 3, "a macro is out of range");

enum { COLUMNS = GROUPS == 3 ? STREAMS * (STREAMS + 2) : GROUPS * STREAMS, ELEMENTS = GATES_CHUNK * COLUMNS,
       SUMS = 2 * COLUMNS, LOADS = (ELEMENTS + GATES_THREADS - 1) / GATES_THREADS,
       TILE = 2 * ELEMENTS > 8192 ? 2 * ELEMENTS : 8192, TILE_CHUNKS = 8192 / SUMS,
       TILE_LOADS = (TILE_CHUNKS * SUMS + GATES_THREADS - 1) / GATES_THREADS };
static_assert(SUMS <= GATES_THREADS, "a thread per sum");

/* The chunk's g and mixes to shared memory, its grad_mixes to memory. A thread reads all of its elements before it
 * computes with the first. */
DEV void spread_chunk(const gates_bwd_args &a, i64 first, int count, float *g, float *mixes)
{
    const int tid = (int)threadIdx.x;
    float d[LOADS], m[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const int k = tid + i * GATES_THREADS, t = k / COLUMNS, j = k % COLUMNS, group = gates_group(j, STREAMS);
        const float *grad = group == 0 ? a.grad_out[0] : group == 1 ? a.grad_out[1] : a.grad_out[2];
        d[i] = m[i] = 0;
        if (t < count) {
            m[i] = a.mixes[(first + t) * a.row_stride + j];
            if (grad) d[i] = grad[(first + t) * (group == 2 ? STREAMS * STREAMS : STREAMS) + j - group * STREAMS];
        }
    }
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const int k = tid + i * GATES_THREADS;
        if (k < ELEMENTS) g[k] = d[i], mixes[k] = m[i];
    }
#pragma unroll 2
    for (int k = tid; k < count * COLUMNS; k += GATES_THREADS) {
        const int j = k % COLUMNS, group = gates_group(j, STREAMS);
        const float scale = a.scale[group], z = mhc_logit(mixes[k], scale, a.base[j]);
        const float slope = gates_slope(&a.numbers, group, z, g[k]);
        a.grad_mixes[first * COLUMNS + k] = tgl_one_nan(slope * scale);
        g[k] = slope;
    }
}

DEV float sum_of_chunk(int count, const float *g, const float *mixes)
{
    const bool is_of_scale = threadIdx.x >= COLUMNS;
    const int j = (int)threadIdx.x - (is_of_scale ? COLUMNS : 0);
    float sum = 0;
#pragma unroll 16
    for (int t = 0; t < count; t++)
        sum = is_of_scale ? fmaf(g[t * COLUMNS + j], mixes[t * COLUMNS + j], sum) : sum + g[t * COLUMNS + j];
    return sum;
}

/* Adds the chunks in order, and leaves zeros. */
DEV double sum_of_chunks(const gates_bwd_args &a, i64 num_chunks, float *tile)
{
    double sum = 0;
#pragma unroll 1
    for (i64 begin = 0; begin < num_chunks; begin += TILE_CHUNKS) {
        const int count = (int)min((i64)TILE_CHUNKS, num_chunks - begin);
        float *const from = a.partial + begin * SUMS;
        float v[TILE_LOADS];                    /* all loads before the first store, which they would wait for */
#pragma unroll
        for (int i = 0; i < TILE_LOADS; i++) {
            const int k = (int)threadIdx.x + i * GATES_THREADS;
            v[i] = k < count * SUMS ? __uint_as_float(load_relaxed_u32(from + k)) : 0.0f;
        }
        __syncthreads();                        /* the tile before has been added */
#pragma unroll
        for (int i = 0; i < TILE_LOADS; i++) {
            const int k = (int)threadIdx.x + i * GATES_THREADS;
            if (k < count * SUMS) tile[k] = v[i], from[k] = 0;
        }
        __syncthreads();
        if (threadIdx.x < SUMS) {
#pragma unroll 16
            for (int i = 0; i < count; i++) sum += (double)tile[i * SUMS + threadIdx.x];
        }
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(GATES_THREADS) pre_split_mixes_bwd(
    const __grid_constant__ gates_bwd_args a)
{
    SHARED(float[TILE], tile);
    SHARED(double[COLUMNS], of_scale);
    SHARED(u32, is_last);
    const int tid = (int)threadIdx.x;
    const i64 num_chunks = (a.num_tokens + GATES_CHUNK - 1) / GATES_CHUNK;
    pdl_wait();
#pragma unroll 1
    for (i64 chunk = blockIdx.x; chunk < num_chunks; chunk += gridDim.x) {
        const i64 first = chunk * GATES_CHUNK;
        const int count = (int)min((i64)GATES_CHUNK, a.num_tokens - first);
        __syncthreads();                        /* the chunk before has been added */
        spread_chunk(a, first, count, tile, tile + ELEMENTS);
        __syncthreads();
        if (tid < SUMS) a.partial[chunk * SUMS + tid] = sum_of_chunk(count, tile, tile + ELEMENTS);
    }
    __syncthreads();
    if (tid == 0) is_last = atomic_inc_acq_rel(a.arrived, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (is_last) {
        const double sum = sum_of_chunks(a, num_chunks, tile);
        if (tid < COLUMNS) a.grad_base[tid] = tgl_one_nan((float)sum);
        else if (tid < SUMS) of_scale[tid - COLUMNS] = sum;
        __syncthreads();
        if (tid < GROUPS) {
            double total = 0;
#pragma unroll 1
            for (int j = 0; j < COLUMNS; j++)
                if (gates_group(j, STREAMS) == tid) total += of_scale[j];
            a.grad_scale[tid] = tgl_one_nan((float)total);
        }
    }
    pdl_trigger();
}
