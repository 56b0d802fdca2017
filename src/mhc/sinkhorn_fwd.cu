/* SPDX-License-Identifier: MIT
 * sinkhorn_fwd.cu - logits to a nearly doubly stochastic matrix.
 *   computes  as common/mhc.h says. A thread has a row, a lane of the first warp all steps of a token
 *   launch    grid ceil(num_tokens / MHC_SINKHORN_TOKENS) (blocks stride over tokens), block
 *             MHC_SINKHORN_THREADS(STREAMS)
 *   moves     8 * STREAMS^2 bytes per token
 *   macros    STREAMS 1..8 */
#include "mhc/common/tokens.cuh"
#include "mhc/sinkhorn_fwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && MHC_SINKHORN_TOKENS == 32, "STREAMS is 1..8");

/* One block an SM would do: so that the compiler spends registers on overlapping the steps. */
extern "C" __global__ void __launch_bounds__(MHC_SINKHORN_THREADS(STREAMS), 1)
    sinkhorn_fwd(const __grid_constant__ sinkhorn_fwd_args a)
{
    SHARED(token_numbers<STREAMS * STREAMS>, matrices);
    SHARED(token_numbers<2 * STREAMS>, factors);
    const int token = (int)threadIdx.x / STREAMS, i = (int)threadIdx.x % STREAMS;
    pdl_wait();
    pdl_trigger();
#pragma unroll 1
    for (i64 first = (i64)blockIdx.x * MHC_SINKHORN_TOKENS; first < a.num_tokens;
         first += (i64)gridDim.x * MHC_SINKHORN_TOKENS) {
        const i64 t = first + token, at = (t * STREAMS + i) * STREAMS;
        float row[STREAMS] = { 0 };
        if (t < a.num_tokens) load_row(a.x + at, a.has_vectors, row);
        mhc_sinkhorn_row(row, STREAMS, a.eps);
        matrices.put(token, i * STREAMS, row);
        __syncthreads();
        if (threadIdx.x < 32) {
            mhc_matrix m;
            get_matrix<STREAMS>(matrices, m.e);
            mhc_sinkhorn_steps(&m, STREAMS, a.repeat, a.eps);
#pragma unroll
            for (int k = 0; k < STREAMS; k++)
                factors.v[k][threadIdx.x] = m.u[k], factors.v[STREAMS + k][threadIdx.x] = m.v[k];
        }
        __syncthreads();
        float v[STREAMS];
        factors.get(token, STREAMS, v);
#pragma unroll
        for (int o = 0; o < STREAMS; o++) row[o] = tgl_one_nan(mhc_sinkhorn_product(row[o], factors.v[i][token], v[o]));
        if (t < a.num_tokens) store_row(a.out + at, a.has_vectors, row);
    }
}
