/* SPDX-License-Identifier: MIT
 * sinkhorn_fwd.cu - logits to a nearly doubly stochastic matrix.
 *   computes  as common/mhc.h says. A warp has a row of 32 tokens, the first warp all their steps
 *   launch    grid ceil(num_tokens / MHC_SINKHORN_TOKENS) (blocks stride over tokens), block
 *             MHC_SINKHORN_THREADS(STREAMS)
 *   moves     8 * STREAMS^2 bytes per token
 *   macros    STREAMS 1..8 */
#include "mhc/common/tokens.cuh"
#include "mhc/sinkhorn_fwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && MHC_SINKHORN_TOKENS == 32, "STREAMS is 1..8");

extern "C" __global__ void __launch_bounds__(MHC_SINKHORN_THREADS(STREAMS)) sinkhorn_fwd(
    const __grid_constant__ sinkhorn_fwd_args a)
{
    SHARED(token_numbers<STREAMS * STREAMS>, matrices);
    SHARED(token_numbers<2 * STREAMS>, factors);
    const int warp = (int)threadIdx.x / 32;
    pdl_wait();
    pdl_trigger();
#pragma unroll 1
    for (i64 first = (i64)blockIdx.x * MHC_SINKHORN_TOKENS; first < a.num_tokens;
         first += (i64)gridDim.x * MHC_SINKHORN_TOKENS) {
        const i64 t = first + threadIdx.x % 32, at = (t * STREAMS + warp) * STREAMS;
        float row[STREAMS] = { 0 };
        if (t < a.num_tokens) load_row(a.x + at, a.has_vectors, row);
        mhc_sinkhorn_row(row, STREAMS, a.eps);
        matrices.put(warp * STREAMS, row);
        __syncthreads();
        if (warp == 0) {
            mhc_matrix m;
            get_matrix<STREAMS>(matrices, m.e);
            mhc_sinkhorn_steps(&m, STREAMS, a.repeat, a.eps);
#pragma unroll
            for (int i = 0; i < STREAMS; i++)
                factors.v[i][threadIdx.x] = m.u[i], factors.v[STREAMS + i][threadIdx.x] = m.v[i];
        }
        __syncthreads();
        float v[STREAMS];
        factors.get(STREAMS, v);
#pragma unroll
        for (int o = 0; o < STREAMS; o++)
            row[o] = tgl_one_nan(mhc_sinkhorn_product(row[o], factors.v[warp][threadIdx.x % 32], v[o]));
        if (t < a.num_tokens) store_row(a.out + at, a.has_vectors, row);
    }
}
