/* SPDX-License-Identifier: MIT
 * sinkhorn_fwd.cu - logits to a nearly doubly stochastic matrix, one thread per token.
 *   computes  as common/mhc.h says
 *   launch    grid ceil(num_tokens / MHC_SINKHORN_THREADS) (blocks stride over tokens), block MHC_SINKHORN_THREADS
 *   moves     8 * STREAMS^2 bytes per token
 *   macros    STREAMS 1..8 */
#include "mhc/common/tokens.cuh"
#include "mhc/sinkhorn_fwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS, "STREAMS is 1..8");

extern "C" __global__ void __launch_bounds__(MHC_SINKHORN_THREADS) sinkhorn_fwd(
    const __grid_constant__ sinkhorn_fwd_args a)
{
    pdl_wait();
    pdl_trigger();
#pragma unroll 1
    for (i64 t = (i64)blockIdx.x * MHC_SINKHORN_THREADS + threadIdx.x; t < a.num_tokens;
         t += (i64)gridDim.x * MHC_SINKHORN_THREADS) {
        mhc_matrix m;
        load_token<STREAMS>(a.x + t * (STREAMS * STREAMS), a.has_vectors, m.e);
        mhc_sinkhorn(&m, STREAMS, a.repeat, a.eps);
#pragma unroll
        for (int i = 0; i < STREAMS * STREAMS; i++)
            m.e[i / STREAMS][i % STREAMS] = tgl_one_nan(m.e[i / STREAMS][i % STREAMS]);
        store_token<STREAMS>(a.out + t * (STREAMS * STREAMS), a.has_vectors, m.e);
    }
}
