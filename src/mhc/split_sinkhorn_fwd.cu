/* SPDX-License-Identifier: MIT
 * split_sinkhorn_fwd.cu - mixes to gates and comb.
 *   computes  as common/gates.h and common/mhc.h say. Warp i has pre gate, post gate and row of comb of stream i, of 32
 *             tokens; the first warp has all their steps of Sinkhorn
 *   launch    grid ceil(num_tokens / MHC_SINKHORN_TOKENS) (blocks stride over tokens), block
 *             MHC_SINKHORN_THREADS(STREAMS)
 *   moves     8 bytes per column
 *   macros    STREAMS 1..8 */
#include "mhc/common/tokens.cuh"
#include "mhc/split_sinkhorn_fwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && MHC_SINKHORN_TOKENS == 32, "STREAMS is 1..8");

extern "C" __global__ void __launch_bounds__(MHC_SINKHORN_THREADS(STREAMS)) split_sinkhorn_fwd(
    const __grid_constant__ split_sinkhorn_fwd_args a)
{
    SHARED(token_numbers<STREAMS * STREAMS>, matrices);
    SHARED(token_numbers<2 * STREAMS>, factors);
    const gates_fwd_args &g = a.gates;
    const int warp = (int)threadIdx.x / 32, column = (2 + warp) * STREAMS;
    pdl_wait();
    pdl_trigger();
    const float scales[] = { g.scale[0], g.scale[1], g.scale[2] };
    const float bases[] = { g.base[warp], g.base[STREAMS + warp] };
    float base[STREAMS];
    load_row(g.base + column, a.has_vectors, base);
#pragma unroll 1
    for (i64 first = (i64)blockIdx.x * MHC_SINKHORN_TOKENS; first < g.num_tokens;
         first += (i64)gridDim.x * MHC_SINKHORN_TOKENS) {
        const i64 t = first + threadIdx.x % 32;
        const float *const mixes = g.mixes + t * g.row_stride;
        float row[STREAMS] = { 0 }, mix[2] = { 0 };
        if (t < g.num_tokens) {
            load_row(mixes + column, a.has_vectors, row);
            mix[0] = mixes[warp], mix[1] = mixes[STREAMS + warp];
        }
#pragma unroll
        for (int o = 0; o < STREAMS; o++) row[o] = mhc_logit(row[o], scales[2], base[o]);
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
        if (t < g.num_tokens)
#pragma unroll
            for (int group = 0; group < 2; group++)
                g.out[group][t * STREAMS + warp] =
                    gates_of(&g.numbers, group, mhc_logit(mix[group], scales[group], bases[group]));
        __syncthreads();
        float v[STREAMS];
        factors.get(STREAMS, v);
#pragma unroll
        for (int o = 0; o < STREAMS; o++)
            row[o] = tgl_one_nan(mhc_sinkhorn_product(row[o], factors.v[warp][threadIdx.x % 32], v[o]));
        if (t < g.num_tokens) store_row(g.out[2] + (t * STREAMS + warp) * STREAMS, a.has_vectors, row);
    }
}
