/* SPDX-License-Identifier: MIT
 * expand_bwd.cu - the sum of a token's streams.
 *   computes  grad_x[t] = sum over i of grad_out[t][i], in order, in f32, rounded once
 *   launch    grid (blocks of columns, at most 65535 tokens, over which blocks stride), block up to
 *             ROWS_COLUMN_THREADS, a unit of 8 columns per thread
 *   moves     2 * (1 + STREAMS) bytes per column
 *   macros    STREAMS 1..8; HAS_VECTORS 0, 1: as common/rows.cuh says */
#include "mhc/common/rows.cuh"
#include "mhc/expand_bwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && (HAS_VECTORS == 0 || HAS_VECTORS == 1),
              "a macro is out of range");

extern "C" __global__ void __launch_bounds__(ROWS_COLUMN_THREADS) expand_bwd(const __grid_constant__ expand_bwd_args a)
{
    const i64 first = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * ROWS_UNIT;
    pdl_wait();
    if (first < a.hidden)
#pragma unroll 1
        for (i64 t = blockIdx.y; t < a.num_tokens; t += gridDim.y) {
            uint4 v[STREAMS];
#pragma unroll
            for (int i = 0; i < STREAMS; i++)
                v[i] = load_unit_ahead(a.grad_out.data + t * a.grad_out.token + i * a.grad_out.stream, first, a.hidden);
            float sum[8];
#pragma unroll
            for (int c = 0; c < 8; c++) {
                sum[c] = 0;
#pragma unroll
                for (int i = 0; i < STREAMS; i++) sum[c] += column(v[i], c);
            }
            store_unit(a.grad_x.data + t * a.grad_x.token, first, a.hidden, pack(sum));
        }
    pdl_trigger();
}
