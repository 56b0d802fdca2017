/* SPDX-License-Identifier: MIT
 * split_sinkhorn_fwd.cu - mixes to gates and comb.
 *   computes  as common/gates.h and common/mhc.h say. A thread has pre gate, post gate and row of comb of
 *             a stream, a lane of the first warp all steps of Sinkhorn of a token
 *   launch    grid ceil(num_tokens / MHC_SINKHORN_TOKENS) (blocks stride over tokens), block
 *             MHC_SINKHORN_THREADS(STREAMS)
 *   moves     8 bytes per column
 *   macros    STREAMS 1..8 */
#include "mhc/common/tokens.cuh"
#include "mhc/split_sinkhorn_fwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && MHC_SINKHORN_TOKENS == 32, "STREAMS is 1..8");

/* One block an SM would do: so that the compiler spends registers on overlapping the steps. */
extern "C" __global__ void __launch_bounds__(MHC_SINKHORN_THREADS(STREAMS), 1)
    split_sinkhorn_fwd(const __grid_constant__ split_sinkhorn_fwd_args a)
{
    SHARED(token_numbers<STREAMS * STREAMS>, matrices);
    SHARED(token_numbers<2 * STREAMS>, factors);
    const gates_fwd_args &g = a.gates;
    const int token = (int)threadIdx.x / STREAMS, i = (int)threadIdx.x % STREAMS, column = (2 + i) * STREAMS;
    pdl_wait();
    pdl_trigger();
    const float scales[] = { g.scale[0], g.scale[1], g.scale[2] };
    const float bases[] = { g.base[i], g.base[STREAMS + i] };
    float base[STREAMS];
    load_row(g.base + column, a.has_vectors, base);
#pragma unroll 1
    for (i64 first = (i64)blockIdx.x * MHC_SINKHORN_TOKENS; first < g.num_tokens;
         first += (i64)gridDim.x * MHC_SINKHORN_TOKENS) {
        const i64 t = first + token;
        const float *const mixes = g.mixes + t * g.row_stride;
        float row[STREAMS] = { 0 }, mix[2] = { 0 };
        if (t < g.num_tokens) {
            load_row(mixes + column, a.has_vectors, row);
            mix[0] = mixes[i], mix[1] = mixes[STREAMS + i];
        }
#pragma unroll
        for (int o = 0; o < STREAMS; o++) row[o] = mhc_logit(row[o], scales[2], base[o]);
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
        if (t < g.num_tokens)
#pragma unroll
            for (int group = 0; group < 2; group++)
                g.out[group][t * STREAMS + i] =
                    gates_of(&g.numbers, group, mhc_logit(mix[group], scales[group], bases[group]));
        __syncthreads();
        float v[STREAMS];
        factors.get(token, STREAMS, v);
#pragma unroll
        for (int o = 0; o < STREAMS; o++) row[o] = tgl_one_nan(mhc_sinkhorn_product(row[o], factors.v[i][token], v[o]));
        if (t < g.num_tokens) store_row(g.out[2] + (t * STREAMS + i) * STREAMS, a.has_vectors, row);
    }
}
