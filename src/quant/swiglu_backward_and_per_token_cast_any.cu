/* SPDX-License-Identifier: MIT
 * swiglu_backward_and_per_token_cast_any.cu - swiglu_backward_and_per_token_cast.cu for blocks of any width
 * and data of any alignment.
 *   launch    grid of more than clearing_blocks, block as there
 *   moves     as there, but reads x and grad_out three times
 *   macros    IS_ROUNDED, HAS_CLAMP
 *
 * A block has a row. First each thread adds up its columns' part of the weight's gradient, and stores what
 * needs no factor. Then teams (team.cuh) take blocks of columns, and compute gradients for the factors and
 * again for the codes. */
#include "quant/common/team.cuh"
#include "quant/swiglu_backward_and_per_token_cast.cuh"

typedef struct { float gate, up, grad; } element;
DEV element element_at(const backward_args &a, i64 row, i64 col)
{
    const u8 *x = a.x + row * a.x_row_bytes + col;
    const i64 k = col / a.block_cols;
    float v[4];
    decode_e4m3x4(x[0] | (u32)x[a.num_cols] << 8, v);
    return { v[0] * tgl_sf_get(&a.x_sf, row, k), v[1] * tgl_sf_get(&a.x_sf, row, a.num_blocks + k),
             low_bf16(a.grad_out[row * a.grad_stride + col]) };
}

DEV tgl_swiglu_grads grads_at(const backward_args &a, i64 row, i64 col, float weight)
{
    const element e = element_at(a, row, col);
    return differentiate<false, HAS_CLAMP>(e.gate, e.up, e.grad, weight, a.clamp);
}

/* Stores the bf16 outputs, and returns the thread's part of the weight's gradient. */
DEV float store_values(const backward_args &a, i64 row, float weight)
{
    const i64 first = threadIdx.x / 32 * STEP + threadIdx.x % 32 * VECTOR;
    float sum = 0;
    for (i64 begin = first; begin < a.num_cols; begin += (i64)(blockDim.x / 32) * STEP) {
        float of_step = 0;
        for (i64 col = begin; col < min((i64)a.num_cols, begin + VECTOR); col++) {
            const element e = element_at(a, row, col);
            const tgl_swiglu_grads g = differentiate<false, HAS_CLAMP>(e.gate, e.up, e.grad, weight, a.clamp);
            of_step = fmaf(e.grad, g.activation, of_step);
            a.out[row * a.num_cols + col] = (u16)pack_bf16(g.activation * weight, 0);
            a.x_grad[row * 2 * a.num_cols + col] = (u16)pack_bf16(g.gate_grad, 0);
            a.x_grad[(row * 2 + 1) * a.num_cols + col] = (u16)pack_bf16(g.up_grad, 0);
        }
        sum += of_step;
    }
    return sum;
}

/* Stores the factor of a block, from the amax of each thread, and returns its inverse. */
DEV float scale_block(const backward_args &a, const team &t, i64 row, i64 k, float amax)
{
    const tgl_scale scale = scale_of<TGL_FORMAT_E4M3, IS_ROUNDED>(max_of_team(t, amax));
    if (t.rank == 0) store_factor(a.sf, row, k, k == 2 * a.num_blocks - 1, scale.sf);
    return scale.inv;
}

DEV void cast_block(const backward_args &a, const team &t, i64 row, i64 k, float weight)
{
    const i64 begin = k * a.block_cols, end = min((i64)a.num_cols, begin + a.block_cols);
    float gate_max = 0, up_max = 0;
    for (i64 col = begin + t.rank; col < end; col += t.size) {
        const tgl_swiglu_grads g = grads_at(a, row, col, weight);
        gate_max = fmaxf(gate_max, fabsf(g.gate_grad));
        up_max = fmaxf(up_max, fabsf(g.up_grad));
    }
    const float gate_inv = scale_block(a, t, row, k, gate_max);
    const float up_inv = scale_block(a, t, row, a.num_blocks + k, up_max);
    for (i64 col = begin + t.rank; col < end; col += t.size) {
        const tgl_swiglu_grads g = grads_at(a, row, col, weight);
        const u32 codes = encode_e4m3x4(g.gate_grad * gate_inv, g.up_grad * up_inv, 0, 0);
        a.x_grad_fp8[row * 2 * a.num_cols + col] = (u8)codes;
        a.x_grad_fp8[(row * 2 + 1) * a.num_cols + col] = (u8)(codes >> 8);
    }
}

extern "C" __global__ void __launch_bounds__(32 * BACKWARD_WARPS, 3)
    swiglu_backward_and_per_token_cast_any(const backward_args a)
{
    const team t = team_for(a.block_cols);
    pdl_wait();
    if (blockIdx.x < a.clearing_blocks) {
        clear_slots(a);
    } else {
        const i64 blocks = gridDim.x - a.clearing_blocks;
        for (i64 row = blockIdx.x - a.clearing_blocks; row < a.num_rows; row += blocks) {
            const i64 slot = a.pos_to_token_topk[row];
            const float weight = weight_at(a, slot), sum = store_values(a, row, weight);
            for (i64 k = t.index; k < a.num_blocks; k += t.count) cast_block(a, t, row, k, weight);
            store_weight_grad(a, slot, row_of_slot(a, slot) == row, sum);
            __syncthreads(); /* the sums are read before the next row's are written */
        }
    }
    pdl_trigger();
}
