/* SPDX-License-Identifier: MIT
 * sinkhorn_bwd.cu - the gradient of Sinkhorn's logits.
 *   computes  as sinkhorn_bwd.h says: the forward again, which keeps its factors in shared memory, then all steps
 *             backwards. A thread has a row, a lane of the first warp all steps of a token
 *   launch    grid ceil(num_tokens / MHC_SINKHORN_TOKENS) (blocks stride over tokens), block
 *             MHC_SINKHORN_THREADS(STREAMS), shared memory for sinkhorn_bwd_slots(repeat) * 2 * STREAMS floats of each
 *             token
 *   moves     12 * STREAMS^2 bytes per token
 *   macros    STREAMS 1..8 */
#include "mhc/common/tokens.cuh"
#include "mhc/sinkhorn_bwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && MHC_SINKHORN_TOKENS == 32, "STREAMS is 1..8");

DEV void run_steps(const sinkhorn_bwd_args &a, const token_numbers<STREAMS * STREAMS> &matrices,
                   token_numbers<STREAMS * STREAMS> &grads, unsigned char *memory)
{
    const sinkhorn_history history = { (float *)memory + threadIdx.x, MHC_SINKHORN_TOKENS };
    mhc_matrix m;
    sinkhorn_grads d;
    get_matrix<STREAMS>(matrices, m.e);
    get_matrix<STREAMS>(grads, d.e);
    sinkhorn_bwd_steps(&m, &d, STREAMS, a.repeat, a.eps, &history);
#pragma unroll
    for (int i = 0; i < STREAMS * STREAMS; i++) grads.v[i][threadIdx.x] = d.e[i / STREAMS][i % STREAMS];
}

/* One block an SM would do: so that the compiler spends registers on overlapping the steps. */
extern "C" __global__ void __launch_bounds__(MHC_SINKHORN_THREADS(STREAMS), 1)
    sinkhorn_bwd(const __grid_constant__ sinkhorn_bwd_args a)
{
    SHARED_DYNAMIC(memory, 16);
    SHARED(token_numbers<STREAMS * STREAMS>, matrices);
    SHARED(token_numbers<STREAMS * STREAMS>, grads);
    const int token = (int)threadIdx.x / STREAMS, i = (int)threadIdx.x % STREAMS;
    pdl_wait();
    pdl_trigger();
#pragma unroll 1
    for (i64 first = (i64)blockIdx.x * MHC_SINKHORN_TOKENS; first < a.num_tokens;
         first += (i64)gridDim.x * MHC_SINKHORN_TOKENS) {
        const i64 t = first + token, at = (t * STREAMS + i) * STREAMS;
        float row[STREAMS] = { 0 }, d[STREAMS] = { 0 }, e[STREAMS];
        if (t < a.num_tokens) {
            load_row(a.x + at, a.has_vectors, row);
            load_row(a.grad_out + at, a.has_vectors, d);
        }
        const float rcp = mhc_softmax(row, STREAMS);
#pragma unroll
        for (int o = 0; o < STREAMS; o++) {
            e[o] = fmaf(row[o], rcp, a.eps);
            row[o] = row[o] * rcp;
        }
        matrices.put(token, i * STREAMS, e);
        grads.put(token, i * STREAMS, d);
        __syncthreads();
        if (threadIdx.x < 32) run_steps(a, matrices, grads, memory);
        __syncthreads();
        grads.get(token, i * STREAMS, d);
        sinkhorn_bwd_softmax(row, d, STREAMS);
        if (t < a.num_tokens) store_row(a.grad_x + at, a.has_vectors, d);
    }
}
