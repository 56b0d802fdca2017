/* SPDX-License-Identifier: MIT
 * pre_split_mixes_bwd.cu - gradients of mixes, scale and base; also those of a head.
 *   computes  as common/gates_bwd.cuh says
 *   launch    grid of chunks, at least one (blocks stride over chunks), block GATES_BWD_THREADS of the columns
 *   moves     12 bytes per column and token; partial sums
 *   macros    STREAMS 1..8; GROUPS 1 (pre), 2 (and post), 3 (and comb) */
#define THREADS GATES_BWD_THREADS(COLUMNS)
#include "device/integer.cuh"
#include "mhc/common/gates_bwd.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) pre_split_mixes_bwd(const __grid_constant__ gates_bwd_args a)
{
    SHARED(double[GATES_CHUNK_STRANDS][SUMS], sums);
    SHARED(u32, is_last);
    const i64 num_chunks = ceil_div(a.num_tokens, GATES_CHUNK);
    pdl_wait();
    u32 before = 0; /* blocks that have started: fetched now, needed at the end */
    if (threadIdx.x == 0) before = atomic_inc_relaxed(a.started, gridDim.x - 1);
    const struct column c = column_of(a, (int)threadIdx.x);
#pragma unroll 1
    for (i64 chunk = blockIdx.x; chunk < num_chunks; chunk += gridDim.x) {
        const i64 first = chunk * GATES_CHUNK;
        run_chunk(a, c, first, (int)min((i64)GATES_CHUNK, a.num_tokens - first), a.partial + chunk * SUMS,
                  given{ c, first });
    }
    if (threadIdx.x == 0) is_last = before == gridDim.x - 1;
    __syncthreads();
    if (is_last) finish(a, num_chunks, sums);
    pdl_trigger();
}
