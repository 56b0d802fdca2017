/* SPDX-License-Identifier: MIT
 * post_fwd.cu - the output of a sublayer into all streams, which may be mixed.
 *   computes  out[t][o] = post_mix[t][o] * x[t] + sum over i of comb_mix[t][i][o] * residual[t][i], in order by fma, in
 *             f32, rounded once; without comb_mix post_mix[t][o] * x[t] + residual[t][o]
 *   launch    grid (blocks of columns, at most 65535 tokens, over which blocks stride), block up to
 *             ROWS_COLUMN_THREADS, a unit of 8 columns per thread
 *   moves     2 * (1 + 2 * STREAMS) bytes per column, 4 * (STREAMS + STREAMS^2) per token
 *   macros    STREAMS 1..8; HAS_COMB 0, 1; HAS_VECTORS 0, 1: as common/rows.cuh says */
#include "mhc/common/rows.cuh"
#include "mhc/post_fwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && (HAS_COMB == 0 || HAS_COMB == 1) &&
                  (HAS_VECTORS == 0 || HAS_VECTORS == 1),
              "a macro is out of range");

extern "C" __global__ void __launch_bounds__(ROWS_COLUMN_THREADS) post_fwd(const __grid_constant__ post_fwd_args a)
{
    const i64 first = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * ROWS_UNIT;
    pdl_wait();
    if (first < a.hidden)
#pragma unroll 1
        for (i64 t = blockIdx.y; t < a.num_tokens; t += gridDim.y) {
            uint4 x[STREAMS]; /* read before out is written, which may be residual */
            float gate[STREAMS], comb[HAS_COMB ? STREAMS * STREAMS : 1];
            const uint4 y = load_unit(a.x.data + t * a.x.token, first, a.hidden);
#pragma unroll
            for (int i = 0; i < STREAMS; i++)
                x[i] = load_own_unit(a.residual.data + t * a.residual.token + i * a.residual.stream, first, a.hidden);
            load_numbers(a.post_mix + t * STREAMS, a.has_mix_vectors, gate);
            if (HAS_COMB) load_numbers(a.comb_mix + t * (STREAMS * STREAMS), a.has_mix_vectors, comb);
#pragma unroll
            for (int o = 0; o < STREAMS; o++) {
                float made[8];
#pragma unroll
                for (int c = 0; c < 8; c++) {
                    float in[STREAMS];
#pragma unroll
                    for (int i = 0; i < STREAMS; i++) in[i] = column(x[i], c);
                    made[c] = HAS_COMB ? rows_post(gate[o], column(y, c), comb, in, STREAMS, o)
                                       : post_alone(gate[o], column(y, c), in[o]);
                }
                store_unit(a.out.data + t * a.out.token + o * a.out.stream, first, a.hidden, pack(made));
            }
        }
    pdl_trigger();
}
