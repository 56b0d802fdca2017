/* SPDX-License-Identifier: MIT
 * expand_fwd.cu - a token's row to all of its streams.
 *   computes  out[t][i] = x[t], bits
 *   launch    grid (blocks of columns, at most 65535 tokens, over which blocks stride), block up to
 *             ROWS_COLUMN_THREADS, a unit of 8 columns per thread
 *   moves     2 * (1 + STREAMS) bytes per column
 *   macros    STREAMS 1..8; HAS_VECTORS 0, 1: as common/rows.cuh says */
#include "mhc/common/rows.cuh"
#include "mhc/expand_fwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && (HAS_VECTORS == 0 || HAS_VECTORS == 1),
              "a macro is out of range");

extern "C" __global__ void __launch_bounds__(ROWS_COLUMN_THREADS) expand_fwd(const __grid_constant__ expand_fwd_args a)
{
    const i64 first = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * ROWS_UNIT;
    pdl_wait();
    if (first < a.hidden)
#pragma unroll 1
        for (i64 t = blockIdx.y; t < a.num_tokens; t += gridDim.y) {
            const uint4 v = load_unit(a.x.data + t * a.x.token, first, a.hidden);
#pragma unroll
            for (int i = 0; i < STREAMS; i++)
                store_unit(a.out.data + t * a.out.token + i * a.out.stream, first, a.hidden, v);
        }
    pdl_trigger();
}
