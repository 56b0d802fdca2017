/* SPDX-License-Identifier: MIT
 * swiglu_backward_and_per_token_cast.cu - all that follows from the gradient of SwiGLU's output, in blocks of
 * 8 to 256 columns, in registers.
 *   computes  per element the weighted activation as bf16 and the gradients of gate and up (swiglu.h) as bf16
 *             and as e4m3 with a factor per BLOCK_COLS columns; per row the gradient of its weight
 *   launch    grid clearing_blocks + num_rows, block of 1 .. BACKWARD_WARPS warps, by num_cols alone
 *   moves     per row 12 * num_cols bytes, factors in and out (8 * num_cols / BLOCK_COLS bytes each as f32)
 *             and a map's 4; per slot of weight_grad 12
 *   macros    IS_ROUNDED, HAS_CLAMP; BLOCK_COLS 8, 16 ... 256
 *
 * A block has a row. Its warps take turns at steps; each asks for its next one's data before it works on this
 * one's. Addresses are aligned to vectors (8 codes, 8 bf16), columns of both halves are below 2^31. */
#include "quant/swiglu_backward_and_per_token_cast.cuh"

#ifndef BLOCK_COLS
#ifdef __CUDACC_RTC__
#error "BLOCK_COLS is not defined"
#endif
#define BLOCK_COLS 128
#endif
static_assert(BLOCK_COLS >= 8 && BLOCK_COLS <= BACKWARD_MAX_BLOCK && (BLOCK_COLS & (BLOCK_COLS - 1)) == 0,
              "BLOCK_COLS is 8, 16 ... 256");

enum {
    LANES = BLOCK_COLS / VECTOR,
#if __CUDA_ARCH__ >= 900
    RESIDENT = 4                    /* blocks of an SM, whose registers then suffice */
#else
    RESIDENT = 3                    /* conversions of e4m3 take some */
#endif
};

/* What a lane reads of a step. */
typedef struct {
    uint2 gates, ups;               /* codes */
    uint4 grads;                    /* bf16 */
    float gate_factor, up_factor;
} inputs;

DEV inputs load_inputs(const backward_args &a, i64 row, u32 col)
{
    inputs in = { { 0, 0 }, { 0, 0 }, { 0, 0, 0, 0 }, 0, 0 };
    if (col < (u32)a.num_cols) {
        const u8 *x = a.x + row * a.x_row_bytes + col;
        const u32 k = col / BLOCK_COLS;
        in.gates = load_stream_u32x2(x);
        in.ups = load_stream_u32x2(x + a.num_cols);
        in.grads = load_stream_u32x4(a.grad_out + row * a.grad_stride + col);
        in.gate_factor = tgl_sf_get(&a.x_sf, row, k);
        in.up_factor = tgl_sf_get(&a.x_sf, row, (u32)a.num_blocks + k);
    }
    return in;
}

DEV void decode(uint2 codes, float factor, float (&v)[VECTOR])
{
    float low[4], high[4];
    decode_e4m3x4(codes.x, low);
    decode_e4m3x4(codes.y, high);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = low[i] * factor;
        v[i + 4] = high[i] * factor;
    }
}

DEV float amax_of_values(const float (&v)[VECTOR])
{
    float m = 0;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) m = fmaxf(m, fabsf(v[i]));
    return m;
}

DEV uint4 pack_bf16x8(const float (&v)[VECTOR])
{
    return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                      pack_bf16(v[6], v[7]));
}

/* Gates become their gradients, ups theirs, and activations come out; adds to the sum. */
template <bool IS_SMALL>
DEV void differentiate_all(float (&gates)[VECTOR], float (&ups)[VECTOR], const uint4 &grads, float weight,
                           float clamp, float (&activations)[VECTOR], float &sum)
{
    const u32 words[4] = { grads.x, grads.y, grads.z, grads.w };
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const float grad = i % 2 ? high_bf16(words[i / 2]) : low_bf16(words[i / 2]);
        const tgl_swiglu_grads g = differentiate<IS_SMALL>(gates[i], ups[i], grad, weight, clamp);
        sum = fmaf(grad, g.activation, sum);
        activations[i] = g.activation * weight;
        gates[i] = g.gate_grad;
        ups[i] = g.up_grad;
    }
}

/* The gradients of a half of a row, from column `col` of both halves on; k is the column of their factor. */
DEV void store_grads(const backward_args &a, i64 row, u32 col, u32 k, bool exists, const float (&v)[VECTOR])
{
    const u32 amax = max_of_lanes<LANES>(__float_as_uint(amax_of_values(v)));
    const tgl_scale scale = scale_of<TGL_FORMAT_E4M3, IS_ROUNDED>(__uint_as_float(amax));
    if (!exists) return;
    const i64 at = row * 2 * a.num_cols + col;
    store_stream_u32x4(a.x_grad + at, pack_bf16x8(v));
    float s[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) s[i] = v[i] * scale.inv;
    store_stream_u32x2(a.x_grad_fp8 + at, make_uint2(encode_e4m3x4(s[0], s[1], s[2], s[3]),
                                                     encode_e4m3x4(s[4], s[5], s[6], s[7])));
    if (threadIdx.x % LANES == 0) store_factor(a.sf, row, k, k == 2 * (u32)a.num_blocks - 1, scale.sf);
}

DEV void run_step(const backward_args &a, i64 row, u32 col, const inputs &in, float weight, float &sum)
{
    const u32 num_cols = (u32)a.num_cols, k = col / BLOCK_COLS;
    const bool exists = col < num_cols;
    float gates[VECTOR], ups[VECTOR], activations[VECTOR];
    decode(in.gates, in.gate_factor, gates);
    decode(in.ups, in.up_factor, ups);
    if (amax_of_values(gates) <= SWIGLU_SMALL)
        differentiate_all<true>(gates, ups, in.grads, weight, a.clamp, activations, sum);
    else
        differentiate_all<false>(gates, ups, in.grads, weight, a.clamp, activations, sum);
    if (exists) store_stream_u32x4(a.out + row * a.num_cols + col, pack_bf16x8(activations));
    store_grads(a, row, col, k, exists, gates);
    store_grads(a, row, num_cols + col, (u32)a.num_blocks + k, exists, ups);
}

DEV void run_row(const backward_args &a, i64 row)
{
    const u32 first = threadIdx.x / 32 * STEP, in_step = threadIdx.x % 32 * VECTOR;
    const u32 stride = blockDim.x / 32 * STEP;
    const i64 slot = a.pos_to_token_topk[row];
    inputs in = load_inputs(a, row, first + in_step);
    const float weight = weight_at(a, slot);
    const bool is_its_slot = is_slot_of(a, slot, row);      /* known when the sum is */
    float sum = 0;
#pragma unroll 1
    for (u32 begin = first; begin < (u32)a.num_cols; begin += stride) {
        const inputs next = load_inputs(a, row, begin + stride + in_step);
        run_step(a, row, begin + in_step, in, weight, sum);
        in = next;
    }
    store_weight_grad(a, slot, is_its_slot, sum);
}

extern "C" __global__ void __launch_bounds__(32 * BACKWARD_WARPS, RESIDENT)
swiglu_backward_and_per_token_cast(const backward_args a)
{
    pdl_wait();
    if (blockIdx.x < a.clearing_blocks) clear_slots(a);
    else run_row(a, blockIdx.x - a.clearing_blocks);
    pdl_trigger();
}
