/* SPDX-License-Identifier: MIT
 * expand_fwd.cu - a token's row to all of its streams.
 *   computes  out[t][i] = x[t], bits
 *   launch    grid (blocks of columns, at most 65535 tokens, over which blocks stride), block up to
 *             ROWS_COLUMN_THREADS, a unit of 8 columns of up to two tokens at a time per thread
 *   moves     2 * (1 + STREAMS) bytes per column; of f32, a number is two columns
 *   macros    STREAMS 1..8; HAS_VECTORS 0, 1: as common/rows.cuh says */
#include "mhc/common/rows.cuh"
#include "mhc/expand_fwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && (HAS_VECTORS == 0 || HAS_VECTORS == 1),
              "a macro is out of range");

DEV void store_streams(const expand_fwd_args &a, i64 token, i64 first, const uint4 &v)
{
#pragma unroll
    for (int i = 0; i < STREAMS; i++)
        store_unit(a.out.data + token * a.out.token + i * a.out.stream, first, a.columns, v);
}

extern "C" __global__ void __launch_bounds__(ROWS_COLUMN_THREADS) expand_fwd(const __grid_constant__ expand_fwd_args a)
{
    const i64 first = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * ROWS_UNIT;
    pdl_wait();
    if (first < a.columns)
#pragma unroll 1
        for (i64 t = blockIdx.y; t < a.num_tokens; t += 2 * (i64)gridDim.y) {
            const i64 second = t + gridDim.y;
            const uint4 v = load_unit(a.x.data + t * a.x.token, first, a.columns);
            if (second < a.num_tokens)
                store_streams(a, second, first, load_unit(a.x.data + second * a.x.token, first, a.columns));
            store_streams(a, t, first, v);
        }
    pdl_trigger();
}
