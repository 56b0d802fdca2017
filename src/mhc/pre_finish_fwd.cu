/* SPDX-License-Identifier: MIT
 * pre_finish_fwd.cu - parts of a projection, and the residual, to gates, comb and the sublayer's input.
 *   computes  as common/partials.h, common/gates.h and common/mhc.h say; out as pre_apply_mix_fwd. The last warp has
 *             Sinkhorn, a lane a row of the logits, then a lane a token; the others have the columns meanwhile
 *   launch    grid of tiles of a.tile tokens (blocks stride), block: up to ROWS_MAX_THREADS for units of 8 columns, and
 *             a warp
 *   moves     2 * (STREAMS + 1) bytes per column; 4 per row and part
 *   macros    STREAMS 1..8; GROUPS 1 (pre), 2 (and post), 3 (and comb); HAS_VECTORS 0, 1: as common/rows.cuh says */
#include "mhc/common/rows.cuh"
#include "mhc/pre_finish_fwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && GROUPS >= 1 && GROUPS <= 3 &&
              (HAS_VECTORS == 0 || HAS_VECTORS == 1), "a macro is out of range");

enum { GATES = (GROUPS > 1 ? 2 : 1) * STREAMS, ROWS = GROUPS == 3 ? STREAMS * (STREAMS + 2) : GATES };

struct shared { float sums[PRE_FINISH_TILE][ROWS + 1], r[PRE_FINISH_TILE], pre[PRE_FINISH_TILE][STREAMS]; };

/* The residual's unit number k of the tile's `count` units. */
DEV void load_units(const pre_finish_fwd_args &a, i64 first, i64 k, i64 units, i64 count, uint4 (&x)[STREAMS])
{
    const i64 t = first + k / units, column = k % units * ROWS_UNIT;
#pragma unroll
    for (int i = 0; i < STREAMS; i++) {
        x[i] = make_uint4(0, 0, 0, 0);
        if (k < count)
            x[i] = load_unit(a.residual.data + t * a.residual.token + i * a.residual.stream, column, a.hidden);
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

DEV void make_combs(const pre_finish_fwd_args &a, const shared &s, i64 first, int tokens)
{
    const int lane = (int)threadIdx.x % 32, token = min(lane / STREAMS, tokens - 1), row = lane % STREAMS;
    float logits[STREAMS];
    mhc_matrix m;
#pragma unroll
    for (int o = 0; o < STREAMS; o++) {
        const int j = (2 + row) * STREAMS + o;
        logits[o] = mhc_logit(s.sums[token][j] * s.r[token], a.scale[2], a.base[j]);
    }
    mhc_sinkhorn_row(logits, STREAMS, a.sinkhorn_eps);
#pragma unroll
    for (int i = 0; i < STREAMS * STREAMS; i++)
        m.e[i / STREAMS][i % STREAMS] = __shfl_sync(FULL, logits[i % STREAMS], lane * STREAMS + i / STREAMS);
    mhc_sinkhorn_steps(&m, STREAMS, a.repeat, a.sinkhorn_eps);
    if (lane < tokens)
#pragma unroll
        for (int i = 0; i < STREAMS * STREAMS; i++)
            a.gates[2][(first + lane) * (STREAMS * STREAMS) + i] = tgl_one_nan(
                mhc_sinkhorn_product(m.e[i / STREAMS][i % STREAMS], m.u[i / STREAMS], m.v[i % STREAMS]));
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
    for (i64 first = (i64)blockIdx.x * a.tile; first < a.num_tokens; first += (i64)gridDim.x * a.tile) {
        const int tokens = (int)min((i64)a.tile, a.num_tokens - first);
        const i64 count = tokens * units;
        uint4 x[STREAMS];
        load_units(a, first, has_columns ? tid : count, units, count, x);      /* on their way while gates are made */
        for (int k = tid; k < tokens * (ROWS + 1); k += (int)blockDim.x)
            s.sums[k / (ROWS + 1)][k % (ROWS + 1)] = pre_finish_sum(&a, first + k / (ROWS + 1), k % (ROWS + 1), ROWS);
        __syncthreads();
        for (int k = tid; k < tokens * GATES; k += (int)blockDim.x) {
            const int token = k / GATES, j = k % GATES;
            const float r = projection_rms(s.sums[token][ROWS], a.columns, a.rms_eps);
            const float gate = pre_finish_gate(&a, j, STREAMS, s.sums[token][j], r);
            float *const to = j < STREAMS ? a.gates[0] : a.gates[1];
            if (j < STREAMS) s.pre[token][j] = gate;
            if (j == 0) s.r[token] = r;
            if (to) to[(first + token) * STREAMS + j % STREAMS] = gate;
        }
        __syncthreads();
        if (has_columns) {
#pragma unroll 1
            for (i64 k = tid; k < count; k += column_threads) {
                const int token = (int)(k / units);
                float pre[STREAMS];
#pragma unroll
                for (int i = 0; i < STREAMS; i++) pre[i] = s.pre[token][i];
                const uint4 made = collapsed(pre, x);
                load_units(a, first, k + column_threads, units, count, x);
                store_unit(a.out.data + (first + token) * a.out.token, (k - token * units) * ROWS_UNIT, a.hidden, made);
            }
        } else if (GROUPS == 3 && a.gates[2]) {
            make_combs(a, s, first, tokens);
        }
        __syncthreads();                        /* before the next tile's sums */
    }
    pdl_trigger();
}
