/* SPDX-License-Identifier: MIT
 * pre_apply_mix_fwd.cu - a weighted sum of a token's streams.
 *   computes  out[t] = sum over i of mix[t][i] * x[t][i], in order by fma, in f32, rounded once
 *   launch    grid (blocks of columns, at most 65535 tokens, over which blocks stride), block up to
 *             ROWS_COLUMN_THREADS, a unit of 8 columns per thread
 *   moves     2 * (1 + STREAMS) bytes per column, 4 * STREAMS per token
 *   macros    STREAMS 1..8; HAS_VECTORS 0, 1: as common/rows.cuh says */
#include "mhc/common/rows.cuh"
#include "mhc/pre_apply_mix_fwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && (HAS_VECTORS == 0 || HAS_VECTORS == 1),
              "a macro is out of range");

extern "C" __global__ void __launch_bounds__(ROWS_COLUMN_THREADS)
    pre_apply_mix_fwd(const __grid_constant__ pre_apply_mix_fwd_args a)
{
    const i64 first = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * ROWS_UNIT;
    pdl_wait();
    if (first < a.hidden)
#pragma unroll 1
        for (i64 t = blockIdx.y; t < a.num_tokens; t += gridDim.y) {
            uint4 x[STREAMS];
            float mix[STREAMS], made[8];
#pragma unroll
            for (int i = 0; i < STREAMS; i++)
                x[i] = load_unit_ahead(a.x.data + t * a.x.token + i * a.x.stream, first, a.hidden);
            load_numbers(a.mix + t * STREAMS, a.has_mix_vectors, mix);
#pragma unroll
            for (int c = 0; c < 8; c++) {
                float in[STREAMS];
#pragma unroll
                for (int i = 0; i < STREAMS; i++) in[i] = column(x[i], c);
                made[c] = rows_apply(mix, in, STREAMS);
            }
            store_unit(a.out.data + t * a.out.token, first, a.hidden, pack(made));
        }
    pdl_trigger();
}
