/* SPDX-License-Identifier: MIT
 * post_bwd.cu - gradients of post.
 *   computes  grad_residual[t][i] = sum over o of comb_mix[t][i][o] * grad_out[t][o];
 *             grad_x[t] = sum over o of post_mix[t][o] * grad_out[t][o]; both in order by fma from +0, in f32, rounded
 *             once; grad_comb_mix[t][i][o] = sum of residual[t][i] * grad_out[t][o] over columns,
 *             grad_post_mix[t][o] that of x[t] * grad_out[t][o], as common/rows.h says
 *   launch    grid num_tokens (blocks stride), block up to ROWS_MAX_THREADS, a unit of 8 columns per thread and sweep
 *   moves     2 * (2 + 3 * STREAMS) bytes per column, without comb 2 * (2 + STREAMS)
 *   macros    STREAMS 1..8; HAS_COMB 0 (grad_x and grad_post_mix alone), 1; HAS_VECTORS 0, 1: as common/rows.cuh says */
#include "mhc/common/rows.cuh"
#include "mhc/post_bwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && (HAS_COMB == 0 || HAS_COMB == 1) &&
                  (HAS_VECTORS == 0 || HAS_VECTORS == 1),
              "a macro is out of range");

enum { MIXED = HAS_COMB ? STREAMS : 0, VALUES = STREAMS * (1 + MIXED) }; /* streams of the residual; a token's sums */

/* Sums over columns of this thread's unit of v with each stream of d, over the warp: to values first .. first + STREAMS
 * - 1 of a group. */
DEV void add_products(row_sums<VALUES> &sums, const uint4 &v, const uint4 (&d)[STREAMS], int first, int group)
{
    float dot[STREAMS], sum;
#pragma unroll
    for (int o = 0; o < STREAMS; o++) {
        dot[o] = 0;
#pragma unroll
        for (int c = 0; c < 8; c++) dot[o] = fmaf(column(v, c), column(d[o], c), dot[o]);
    }
    const int value = warp_trees(dot, (int)threadIdx.x % 32, sum);
    if (value >= 0) sums.of_warp[first + value][group] = sum;
}

DEV uint4 mixed(const float (&mix)[STREAMS], const uint4 (&d)[STREAMS])
{
    float made[8];
#pragma unroll
    for (int c = 0; c < 8; c++) {
        float in[STREAMS];
#pragma unroll
        for (int o = 0; o < STREAMS; o++) in[o] = column(d[o], c);
        made[c] = rows_apply(mix, in, STREAMS);
    }
    return pack(made);
}

extern "C" __global__ void __launch_bounds__(ROWS_MAX_THREADS) post_bwd(const __grid_constant__ post_bwd_args a)
{
    SHARED(row_sums<VALUES>, sums);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    const i64 units = (a.hidden + ROWS_UNIT - 1) / ROWS_UNIT;
    const i64 spans = units <= ROWS_SPAN ? 1 : (units + ROWS_SPAN - 1) / ROWS_SPAN;
    pdl_wait();
#pragma unroll 1
    for (i64 t = blockIdx.x; t < a.num_tokens; t += gridDim.x) {
        if (threadIdx.x == 0) { /* first needed when all columns are there */
            prefetch_l2(a.post_mix + t * STREAMS);
            if (HAS_COMB) prefetch_l2(a.comb_mix + t * (STREAMS * STREAMS));
        }
#pragma unroll 1
        for (i64 span = 0; span < spans; span++) {
#pragma unroll 1
            for (int group = warp; group < ROWS_WARPS; group += warps) {
                const i64 unit = span * ROWS_SPAN + group * 32 + lane, first = unit * ROWS_UNIT;
                if (unit - lane >= units) {
                    clear_group(sums, group);
                    continue;
                }
                const bool is_there = unit < units;
                uint4 d[STREAMS], x[STREAMS], y = make_uint4(0, 0, 0, 0);
#pragma unroll
                for (int o = 0; o < STREAMS; o++) d[o] = x[o] = y;
                if (is_there) {
                    y = load_unit_ahead(a.x.data + t * a.x.token, first, a.hidden);
#pragma unroll
                    for (int o = 0; o < STREAMS; o++) {
                        d[o] = load_unit_ahead(a.grad_out.data + t * a.grad_out.token + o * a.grad_out.stream, first,
                                               a.hidden);
                        if (HAS_COMB)
                            x[o] = load_unit_ahead(a.residual.data + t * a.residual.token + o * a.residual.stream,
                                                   first, a.hidden);
                    }
                }
                add_products(sums, y, d, 0, group);
#pragma unroll
                for (int i = 0; i < MIXED; i++) add_products(sums, x[i], d, (i + 1) * STREAMS, group);
                if (is_there) {
                    float mix[STREAMS];
                    load_numbers(a.post_mix + t * STREAMS, a.has_mix_vectors, mix);
                    store_unit(a.grad_x.data + t * a.grad_x.token, first, a.hidden, mixed(mix, d));
#pragma unroll
                    for (int i = 0; i < MIXED; i++) {
                        load_numbers(a.comb_mix + (t * STREAMS + i) * STREAMS, a.has_mix_vectors, mix);
                        store_unit(a.grad_residual.data + t * a.grad_residual.token + i * a.grad_residual.stream, first,
                                   a.hidden, mixed(mix, d));
                    }
                }
            }
            __syncthreads();
            add_span<STREAMS>(sums, span, spans, a.grad_post_mix + t * STREAMS,
                              a.grad_comb_mix + t * (STREAMS * STREAMS));
            __syncthreads();
        }
    }
    pdl_trigger();
}
