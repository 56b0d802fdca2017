/* SPDX-License-Identifier: MIT
 * reduce_fused.cu - the weighted sum of every token's rows.
 *   computes  sum = 0; for k = 0, 1, ... with p = token_topk_to_pos[t][k] a position:
 *             sum = fma(x[p], topk_weights[t][k] * x_sf[p], sum); out[t] = sum * sf
 *   launch    grid (chunks of a row, ceil(num_tokens / tokens)), block up to THREADS
 *   moves     per token hidden * (x's bytes for each of its rows + out's), 4 bytes per slot, weight and x_sf
 *   macros    X_TYPE, OUT_TYPE REDUCE_F32, REDUCE_BF16, REDUCE_F16, REDUCE_E4M3; UNITS 1.. per thread;
 *             ROWS 1.. loaded at once; HAS_VECTORS 0, 1: a unit is a vector (16 bytes) of x
 *             rather than a column; THREADS 32..1024
 *
 * Each warp loads the slots of its tokens, one per lane, and continues with those that have a row; ROWS rows
 * are loaded before the first is added. So empty slots cost nothing and loads are independent. */
#include "moe/reduce_fused.h"

static_assert(ROWS >= 1, "ROWS is 1 or more");

#include "moe/reduce_fused.cuh"

/* Adds the rows of the slots in `lanes`, in order. x points to the thread's first unit, the others are `step`
 * bytes apart; is_mine: within the row. */
DEV void add_rows(float (&sum)[UNITS][COLS], const reduce_args &p, const slots &s, u32 lanes, const u8 *x, int step,
                  const bool (&is_mine)[UNITS])
{
    const i64 row_bytes = p.x_stride * X_BYTES;
#pragma unroll 1
    while (lanes) {
        const int rows = __popc(lanes); /* those past ROWS wait for the next turn */
        x_unit v[ROWS][UNITS];
        int lane[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= rows) continue;
            lane[r] = take_lane(lanes);
            const u8 *row = x + __shfl_sync(FULL, s.position, lane[r]) * row_bytes;
#pragma unroll
            for (int i = 0; i < UNITS; i++)
                if (is_mine[i]) v[r][i] = load(row + i * step);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= rows) continue;
            const float factor = __shfl_sync(FULL, s.factor, lane[r]);
#pragma unroll
            for (int i = 0; i < UNITS; i++) add(sum[i], v[r][i], factor);
        }
    }
}

/* The block's chunk of `tokens` rows of out; their slots are loaded at once. */
DEV void reduce(const reduce_args &p, i64 first_token, int tokens)
{
    const int step = COLS * (int)blockDim.x;
    const i64 first = (i64)blockIdx.x * UNITS * step + COLS * (int)threadIdx.x;
    bool is_mine[UNITS];
#pragma unroll
    for (int i = 0; i < UNITS; i++) is_mine[i] = first + i * step < p.hidden;
    const u8 *x = (const u8 *)p.x + first * X_BYTES;
    const float sf = p.sf ? *p.sf : 1;
    slots s;
#pragma unroll 1
    for (int token = 0; token < tokens; token++) {
        const i64 t = first_token + token;
        float sum[UNITS][COLS] = {};
#pragma unroll 1
        for (i64 k = 0; k < p.num_topk; k += 32) {
            const int count = (int)min(p.num_topk - k, (i64)32);
            if (token == 0) {
                s = load_slots(p, t, k, tokens * count);
                scale_slots(p, s);
            }
            const u32 lanes = s.valid & FULL >> (32 - count) << token * count;
            add_rows(sum, p, s, lanes, x, step * X_BYTES, is_mine);
        }
        store_sums(sum, p, sf, t, first, step, is_mine);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) reduce_fused(const reduce_args p)
{
    pdl_wait();
#pragma unroll 1
    for (i64 t = (i64)blockIdx.y * p.tokens; t < p.num_tokens; t += (i64)gridDim.y * p.tokens)
        reduce(p, t, (int)min((i64)p.tokens, p.num_tokens - t));
    pdl_trigger();
}
