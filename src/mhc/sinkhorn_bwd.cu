/* SPDX-License-Identifier: MIT
 * sinkhorn_bwd.cu - the gradient of Sinkhorn's logits, one thread per token.
 *   computes  as sinkhorn_bwd.h says: the forward again, which keeps its factors in shared memory, then all steps
 *             backwards
 *   launch    grid ceil(num_tokens / MHC_SINKHORN_THREADS) (blocks stride over tokens), block MHC_SINKHORN_THREADS,
 *             shared memory for sinkhorn_bwd_slots(repeat) * 2 * STREAMS floats of each thread
 *   moves     12 * STREAMS^2 bytes per token
 *   macros    STREAMS 1..8 */
#include "mhc/common/tokens.cuh"
#include "mhc/sinkhorn_bwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS, "STREAMS is 1..8");

extern "C" __global__ void __launch_bounds__(MHC_SINKHORN_THREADS) sinkhorn_bwd(
    const __grid_constant__ sinkhorn_bwd_args a)
{
    SHARED_DYNAMIC(memory, 16);
    const sinkhorn_history history = { (float *)memory + threadIdx.x, MHC_SINKHORN_THREADS };
    pdl_wait();
    pdl_trigger();
#pragma unroll 1
    for (i64 t = (i64)blockIdx.x * MHC_SINKHORN_THREADS + threadIdx.x; t < a.num_tokens;
         t += (i64)gridDim.x * MHC_SINKHORN_THREADS) {
        const i64 at = t * (STREAMS * STREAMS);
        mhc_matrix m;
        sinkhorn_grads d;
        load_token<STREAMS>(a.x + at, a.has_vectors, m.e);
        load_token<STREAMS>(a.grad_out + at, a.has_vectors, d.e);
        mhc_sinkhorn_logits(&m, STREAMS, a.eps);
        sinkhorn_bwd_steps(&m, &d, STREAMS, a.repeat, a.eps, &history);
        load_token<STREAMS>(a.x + at, a.has_vectors, m.e);      /* again, instead of as many registers */
#pragma unroll
        for (int i = 0; i < STREAMS; i++) sinkhorn_bwd_softmax(m.e[i], d.e[i], STREAMS);
        store_token<STREAMS>(a.grad_x + at, a.has_vectors, d.e);
    }
}
