/* SPDX-License-Identifier: MIT
 * swiglu_backward_and_per_token_cast.cuh - for the kernels of swiglu_backward_and_per_token_cast: one
 * element, the weight of a row and its gradient.
 *
 * A weight's gradient is a sum over a row, in the same order in all kernels and launches. Warp w of sum_warps
 * has steps w, w + sum_warps, ... of BACKWARD_STEP columns, and a lane the same BACKWARD_VECTOR columns of
 * each. A lane adds the columns of a step in order, then its steps; lanes add up in a tree; then warps in
 * order. */
#ifndef TEGULA_QUANT_SWIGLU_BACKWARD_AND_PER_TOKEN_CAST_CUH
#define TEGULA_QUANT_SWIGLU_BACKWARD_AND_PER_TOKEN_CAST_CUH

#include "device/reduce.cuh"
#include "quant/common/encode.cuh"
#include "quant/common/factors.cuh"
#include "quant/common/swiglu.cuh"
#include "quant/swiglu_backward_and_per_token_cast.h"

static_assert(IS_ROUNDED == 0 || IS_ROUNDED == 1, "IS_ROUNDED is 0 or 1");
static_assert(HAS_CLAMP == 0 || HAS_CLAMP == 1, "HAS_CLAMP is 0 or 1");

enum { VECTOR = BACKWARD_VECTOR, STEP = BACKWARD_STEP };

DEV float weight_at(const backward_args &a, i64 slot) { return slot >= 0 && slot < a.num_weights ? a.weight[slot] : 0; }

/* One element. IS_SMALL: its gate is small (swiglu.cuh); IS_CLAMPED: something may be clamped. */
template <bool IS_SMALL, bool IS_CLAMPED>
DEV tgl_swiglu_grads differentiate(float gate, float up, float grad, float weight, float clamp)
{
    const float l = IS_CLAMPED ? tgl_swiglu_gate(gate, clamp) : gate;
    const float r = IS_CLAMPED ? tgl_swiglu_up(up, clamp) : up;
    const float divisor = IS_SMALL ? swiglu_small_divisor(l) : tgl_swiglu_divisor(l);
    const float sigmoid = IS_SMALL ? swiglu_small_reciprocal(divisor) : 1.0f / divisor;
    const float silu = IS_SMALL ? swiglu_small_quotient(l, divisor, sigmoid) : l / divisor;
    tgl_swiglu_grads g = tgl_swiglu_grads_of(l, r, sigmoid, silu, grad, weight);
    if (IS_CLAMPED && tgl_swiglu_cuts_gate(gate, clamp)) g.gate_grad = 0;
    if (IS_CLAMPED && tgl_swiglu_cuts_up(up, clamp)) g.up_grad = 0;
    return g;
}

/* The row of a slot. A row that names the slot of another row does not write weight_grad. */
DEV i32 row_of_slot(const backward_args &a, i64 slot)
{
    return slot >= 0 && slot < a.num_weights ? a.token_topk_to_pos[slot] : -1;
}

/* Stores the gradient of a row's weight, from the sums of all threads of the block, sum_warps warps. */
DEV void store_weight_grad(const backward_args &a, i64 slot, bool is_its_slot, float sum)
{
    SHARED(float[BACKWARD_WARPS], of_warps);
    sum = lanes_sum_by_halves<32>(sum);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0 && is_its_slot) {
        for (u32 w = 1; w < blockDim.x / 32; w++) sum += of_warps[w];
        a.weight_grad[slot] = sum;
    }
}

/* Clears those of a block's slots that no row stores. */
DEV void clear_slots(const backward_args &a)
{
    const i64 begin = (i64)blockIdx.x * BACKWARD_SLOTS, end = min((i64)a.num_weights, begin + BACKWARD_SLOTS);
    for (i64 slot = begin + threadIdx.x; slot < end; slot += blockDim.x) {
        const i64 row = a.token_topk_to_pos[slot];
        const bool has_row = row >= 0 && row < a.num_rows && a.pos_to_token_topk[row] == slot;
        if (!has_row) a.weight_grad[slot] = 0;
    }
}

#endif
