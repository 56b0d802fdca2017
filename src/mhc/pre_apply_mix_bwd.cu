/* SPDX-License-Identifier: MIT
 * pre_apply_mix_bwd.cu - gradients of a weighted sum of a token's streams.
 *   computes  grad_x[t][i] = mix[t][i] * grad_out[t] [+ grad_x[t][i]], by fma, in f32, rounded once;
 *             grad_mix[t][i] = sum of grad_out[t] * x[t][i] over columns, as common/rows.h says
 *   launch    grid num_tokens (blocks stride), block up to ROWS_MAX_THREADS, a unit of 8 columns per thread and sweep
 *   moves     2 * (1 + 2 * STREAMS) bytes per column, 2 * STREAMS more if it accumulates
 *   macros    STREAMS 1..8; HAS_VECTORS 0, 1: as common/rows.cuh says; ACCUMULATE 0, 1 */
#include "device/integer.cuh"
#include "mhc/common/rows.cuh"
#include "mhc/pre_apply_mix_bwd.h"

static_assert(STREAMS >= 1 && STREAMS <= MHC_MAX_STREAMS && (HAS_VECTORS == 0 || HAS_VECTORS == 1) &&
                  (ACCUMULATE == 0 || ACCUMULATE == 1),
              "a macro is out of range");

/* Blocks an SM that registers must allow; 0: no wish. 4 instead of 3 took 189 us instead of 191 on an H200 (2026-11,
 * 4096 x 7168, accumulating). */
enum { BLOCKS = HAS_VECTORS && STREAMS <= 4 ? 4 : 0 };

extern "C" __global__ void __launch_bounds__(ROWS_MAX_THREADS, BLOCKS)
    pre_apply_mix_bwd(const __grid_constant__ pre_apply_mix_bwd_args a)
{
    SHARED(row_sums<STREAMS>, sums);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    const i64 units = ceil_div(a.hidden, ROWS_UNIT);
    const i64 spans = units <= ROWS_SPAN ? 1 : ceil_div(units, ROWS_SPAN);
    pdl_wait();
#pragma unroll 1
    for (i64 t = blockIdx.x; t < a.num_tokens; t += gridDim.x) {
        float mix[STREAMS];
        load_numbers(a.mix + t * STREAMS, a.has_mix_vectors, mix);
#pragma unroll 1
        for (i64 span = 0; span < spans; span++) {
#pragma unroll 1
            for (int group = warp; group < ROWS_WARPS; group += warps) {
                const i64 unit = span * ROWS_SPAN + group * 32 + lane, first = unit * ROWS_UNIT;
                if (unit - lane >= units) {
                    clear_group(sums, group);
                    continue;
                }
                float dot[STREAMS], sum;
#pragma unroll
                for (int i = 0; i < STREAMS; i++) dot[i] = 0;
                if (unit < units) {
                    uint4 x[STREAMS], old[STREAMS];
                    const uint4 d = load_unit_ahead(a.grad_out.data + t * a.grad_out.token, first, a.hidden);
#pragma unroll
                    for (int i = 0; i < STREAMS; i++) {
                        x[i] = load_unit_ahead(a.x.data + t * a.x.token + i * a.x.stream, first, a.hidden);
                        if (ACCUMULATE)
                            old[i] = load_own_unit(a.grad_x.data + t * a.grad_x.token + i * a.grad_x.stream, first,
                                                   a.hidden);
                    }
#pragma unroll
                    for (int i = 0; i < STREAMS; i++) {
                        float made[8];
#pragma unroll
                        for (int c = 0; c < 8; c++) {
                            made[c] = fmaf(mix[i], column(d, c), ACCUMULATE ? column(old[i], c) : 0.0f);
                            dot[i] = fmaf(column(d, c), column(x[i], c), dot[i]);
                        }
                        store_unit(a.grad_x.data + t * a.grad_x.token + i * a.grad_x.stream, first, a.hidden,
                                   pack(made));
                    }
                }
                const int value = warp_trees(dot, lane, sum);
                if (value >= 0) sums.of_warp[value][group] = sum;
            }
            __syncthreads();
            add_span<STREAMS>(sums, span, spans, a.grad_mix + t * STREAMS, nullptr);
            __syncthreads();
        }
    }
    pdl_trigger();
}
