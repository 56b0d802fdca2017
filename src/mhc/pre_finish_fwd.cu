/* SPDX-License-Identifier: MIT
 * pre_finish_fwd.cu - parts of a projection, and the residual, to gates, comb and the sublayer's input.
 *   computes  as common/partials.h, common/gates.h and common/mhc.h say; out as pre_apply_mix_fwd. The last warp has
 *             Sinkhorn, a lane a row of the logits, then all lanes all steps; the others have the columns meanwhile
 *   launch    grid num_tokens (blocks stride), block: up to ROWS_MAX_THREADS for units of 8 columns, and a warp
 *   moves     2 * (STREAMS + 1) bytes per column; 4 per row and part
 *   macros    STREAMS 1..8; GROUPS 1 (pre), 2 (and post), 3 (and comb); HAS_VECTORS 0, 1: as common/rows.cuh says */
#include "mhc/common/rows.cuh"
#include "mhc/pre_finish_fwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && GROUPS >= 1 && GROUPS <= 3 &&
              (HAS_VECTORS == 0 || HAS_VECTORS == 1), "a macro is out of range");

enum { GATES = (GROUPS > 1 ? 2 : 1) * STREAMS, ROWS = GROUPS == 3 ? STREAMS * (STREAMS + 2) : GATES };

struct shared { float sums[ROWS + 1], pre[STREAMS]; };

DEV void load_units(const pre_finish_fwd_args &a, i64 t, i64 unit, i64 units, uint4 (&x)[STREAMS])
{
#pragma unroll
    for (int i = 0; i < STREAMS; i++) {
        x[i] = make_uint4(0, 0, 0, 0);
        if (unit < units)
            x[i] = load_unit(a.residual.data + t * a.residual.token + i * a.residual.stream, unit * ROWS_UNIT,
                             a.hidden);
    }
}

DEV uint4 collapsed(const float (&pre)[STREAMS], const uint4 (&x)[STREAMS])
{
    float made[8];
#pragma unroll
    for (int c = 0; c < 8; c++) {
        float in[STREAMS];
#pragma unroll
        for (int i = 0; i < STREAMS; i++) in[i] = column(x[i], c);
        made[c] = rows_apply(pre, in, STREAMS);
    }
    return pack(made);
}

DEV void make_comb(const pre_finish_fwd_args &a, const shared &s, i64 t, float r)
{
    const int lane = (int)threadIdx.x % 32, row = min(lane, STREAMS - 1);
    float logits[STREAMS];
    mhc_matrix m;
#pragma unroll
    for (int o = 0; o < STREAMS; o++) {
        const int j = (2 + row) * STREAMS + o;
        logits[o] = mhc_logit(s.sums[j] * r, a.scale[2], a.base[j]);
    }
    mhc_sinkhorn_row(logits, STREAMS, a.sinkhorn_eps);
#pragma unroll
    for (int i = 0; i < STREAMS * STREAMS; i++)
        m.e[i / STREAMS][i % STREAMS] = __shfl_sync(FULL, logits[i % STREAMS], i / STREAMS);
    mhc_sinkhorn_steps(&m, STREAMS, a.repeat, a.sinkhorn_eps);
#pragma unroll
    for (int i = 0; i < STREAMS; i++) {
        if (lane != i) continue;
#pragma unroll
        for (int o = 0; o < STREAMS; o++)
            a.gates[2][(t * STREAMS + i) * STREAMS + o] =
                tgl_one_nan(mhc_sinkhorn_product(m.e[i][o], m.u[i], m.v[o]));
    }
}

extern "C" __global__ void __launch_bounds__(ROWS_MAX_THREADS + 32) pre_finish_fwd(
    const __grid_constant__ pre_finish_fwd_args a)
{
    SHARED(shared, s);
    const int tid = (int)threadIdx.x, column_threads = (int)blockDim.x - 32;
    const bool has_columns = tid < column_threads;
    const i64 units = (a.hidden + ROWS_UNIT - 1) / ROWS_UNIT;
    pdl_wait();
#pragma unroll 1
    for (i64 t = blockIdx.x; t < a.num_tokens; t += gridDim.x) {
        uint4 x[STREAMS];
        load_units(a, t, has_columns ? tid : units, units, x);         /* on their way while gates are made */
        for (int j = tid; j <= ROWS; j += (int)blockDim.x) s.sums[j] = pre_finish_sum(&a, t, j, ROWS);
        __syncthreads();
        const float r = projection_rms(s.sums[ROWS], a.columns, a.rms_eps);
        if (tid < GATES) {
            const float gate = pre_finish_gate(&a, tid, STREAMS, s.sums[tid], r);
            float *const to = tid < STREAMS ? a.gates[0] : a.gates[1];
            if (tid < STREAMS) s.pre[tid] = gate;
            if (to) to[t * STREAMS + tid % STREAMS] = gate;
        }
        __syncthreads();
        if (has_columns) {
            float pre[STREAMS];
#pragma unroll
            for (int i = 0; i < STREAMS; i++) pre[i] = s.pre[i];
#pragma unroll 1
            for (i64 unit = tid; unit < units; unit += column_threads) {
                const uint4 made = collapsed(pre, x);
                load_units(a, t, unit + column_threads, units, x);
                store_unit(a.out.data + t * a.out.token, unit * ROWS_UNIT, a.hidden, made);
            }
        } else if (GROUPS == 3 && a.gates[2]) {
            make_comb(a, s, t, r);
        }
        __syncthreads();                        /* before the next token's sums */
    }
    pdl_trigger();
}
