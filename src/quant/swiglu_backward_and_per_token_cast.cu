/* SPDX-License-Identifier: MIT
 * swiglu_backward_and_per_token_cast.cu - all that follows from the gradient of SwiGLU's output, in blocks of
 * 8 to 256 columns, in registers.
 *   computes  per element the weighted activation as bf16 and the gradients of gate and up (swiglu.h) as bf16
 *             and as e4m3 with a factor per BLOCK_COLS columns; per row the gradient of its weight
 *   launch    grid clearing_blocks + num_rows, block of 1 .. BACKWARD_WARPS warps, by num_cols alone
 *   moves     per row 12 * num_cols bytes, factors in and out (8 * num_cols / BLOCK_COLS bytes each as f32)
 *             and a map's 4; per slot of weight_grad 12
 *   macros    IS_ROUNDED, HAS_CLAMP; BLOCK_COLS 8, 16 ... 256; X_SF_KIND and SF_KIND, TGL_SF_*: where factors
 *             of x and of x_grad_fp8 lie
 *
 * A block has a row. Its warps take turns at steps; each asks for its next one's data as soon as it needs
 * this one's no more. Addresses are aligned to vectors (8 codes, 8 bf16), columns of both halves are below
 * 2^31. */
#include "quant/swiglu_backward_and_per_token_cast.cuh"

#if !defined(BLOCK_COLS) || !defined(X_SF_KIND) || !defined(SF_KIND)
#ifdef __CUDACC_RTC__
#error "BLOCK_COLS, X_SF_KIND or SF_KIND is not defined"
#endif
#define BLOCK_COLS 128
#define X_SF_KIND TGL_SF_ROWS
#define SF_KIND TGL_SF_ROWS
#endif
static_assert(BLOCK_COLS >= 8 && BLOCK_COLS <= BACKWARD_MAX_BLOCK && (BLOCK_COLS & (BLOCK_COLS - 1)) == 0,
              "BLOCK_COLS is 8, 16 ... 256");
static_assert(X_SF_KIND >= TGL_SF_ROWS && X_SF_KIND <= TGL_SF_PACKED && SF_KIND >= TGL_SF_ROWS &&
                  SF_KIND <= TGL_SF_PACKED,
              "kinds are TGL_SF_*");

enum {
    LANES = BLOCK_COLS / VECTOR,
    /* blocks of BACKWARD_WARPS on an SM, whose registers then suffice; sm_12x spills with 7 */
    RESIDENT = HAS_CLAMP || __CUDA_ARCH__ >= 1200 ? 6 : 7
};

/* Where a lane is in its row; what it reads is a step ahead. */
typedef struct {
    const u8 *x;                    /* the gates; the ups and their gradients are num_cols further */
    const u16 *grad_out;
    u16 *out, *x_grad;
    u8 *x_grad_fp8;
} place;

DEV place place_of(const backward_args &a, i64 row, u32 col)
{
    const i64 in_out = row * a.num_cols + col, in_grad = row * 2 * a.num_cols + col;
    return { a.x + row * a.x_row_bytes + col, a.grad_out + row * a.grad_stride + col, a.out + in_out,
             a.x_grad + in_grad, a.x_grad_fp8 + in_grad };
}

/* A lane's codes and their factors. */
typedef struct {
    uint2 gates, ups;
    u32 gate_factor, up_factor;     /* the elements that have them */
} inputs;

DEV void load_codes(const backward_args &a, const tgl_sf &sf, const u8 *x, u32 col, inputs &in)
{
    const u32 k = col / BLOCK_COLS;
    in.gates = load_stream_u32x2(x);
    in.ups = load_stream_u32x2(x + a.num_cols);
    in.gate_factor = load_element(sf, 0, k);
    in.up_factor = load_element(sf, 0, (u32)a.num_blocks + k);
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
template <bool IS_SMALL, bool IS_CLAMPED>
DEV void differentiate_all(float (&gates)[VECTOR], float (&ups)[VECTOR], const uint4 &grads, float weight,
                           float clamp, float (&activations)[VECTOR], float &sum)
{
    const u32 words[4] = { grads.x, grads.y, grads.z, grads.w };
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const float grad = i % 2 ? high_bf16(words[i / 2]) : low_bf16(words[i / 2]);
        const tgl_swiglu_grads g =
            differentiate<IS_SMALL, IS_CLAMPED>(gates[i], ups[i], grad, weight, clamp);
        sum = fmaf(grad, g.activation, sum);
        activations[i] = g.activation * weight;
        gates[i] = g.gate_grad;
        ups[i] = g.up_grad;
    }
}

/* The inverse factors of two blocks, of gates and of ups, whose magnitudes LANES lanes have; stores both
 * factors. Even lanes go on with the one block and odd lanes with the other, so that the same instructions do
 * both. */
typedef struct { float gates, ups; } inverses;
DEV inverses store_factors(const backward_args &a, const tgl_sf &sf, u32 k, u32 gates_max, u32 ups_max)
{
    const u32 num_blocks = (u32)a.num_blocks, up_k = num_blocks + k, lane = threadIdx.x % LANES;
    const bool exists = k < num_blocks, is_last = k == num_blocks - 1;
    if (LANES == 1) {
        const tgl_scale gates = scale_of<TGL_FORMAT_E4M3, IS_ROUNDED>(__uint_as_float(gates_max));
        const tgl_scale ups = scale_of<TGL_FORMAT_E4M3, IS_ROUNDED>(__uint_as_float(ups_max));
        if (exists) {
            store_factor(sf, 0, k, false, gates.sf);
            store_factor(sf, 0, up_k, is_last, ups.sf);
        }
        return { gates.inv, ups.inv };
    }
    const bool has_ups = lane % 2;
    u32 amax = has_ups ? ups_max : gates_max;
    amax = max(amax, __shfl_xor_sync(FULL, has_ups ? gates_max : ups_max, 1));
#pragma unroll
    for (int offset = 2; offset < LANES; offset *= 2) amax = max(amax, __shfl_xor_sync(FULL, amax, offset));
    const tgl_scale scale = scale_of<TGL_FORMAT_E4M3, IS_ROUNDED>(__uint_as_float(amax));
    const float other = __shfl_xor_sync(FULL, scale.inv, 1);
    if (exists && lane < 2) store_factor(sf, 0, has_ups ? up_k : k, has_ups && is_last, scale.sf);
    return { has_ups ? other : scale.inv, has_ups ? scale.inv : other };
}

/* The gradients of a half of a row. */
DEV void store_grads(u16 *x_grad, u8 *x_grad_fp8, float inv, const float (&v)[VECTOR])
{
    float s[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) s[i] = v[i] * inv;
    *(uint4 *)x_grad = pack_bf16x8(v);
    *(uint2 *)x_grad_fp8 = make_uint2(encode_e4m3x4(s[0], s[1], s[2], s[3]),
                                      encode_e4m3x4(s[4], s[5], s[6], s[7]));
}

DEV void run_row(const backward_args &a, i64 row)
{
    const u32 first = threadIdx.x / 32 * STEP, stride = blockDim.x / 32 * STEP, num_cols = (u32)a.num_cols;
    const tgl_sf x_sf = row_of_factors<X_SF_KIND>(a.x_sf, row), sf = row_of_factors<SF_KIND>(a.sf, row);
    u32 col = first + threadIdx.x % 32 * VECTOR;
    place at = place_of(a, row, col);
    inputs in = { { 0, 0 }, { 0, 0 }, 0, 0 };
    uint4 grads = { 0, 0, 0, 0 };
    if (col < num_cols) {
        load_codes(a, x_sf, at.x, col, in);
        grads = load_stream_u32x4(at.grad_out);
    }
    const i64 slot = a.pos_to_token_topk[row];
    const float weight = weight_at(a, slot);
    /* for the thread that stores the sum; nothing waits for it before */
    const i32 its_row = threadIdx.x == 0 ? row_of_slot(a, slot) : -1;
    float sum = 0;
#pragma unroll 1
    for (u32 begin = first; begin < num_cols; begin += stride) {
        const u32 k = col / BLOCK_COLS;
        const bool exists = col < num_cols, has_next = col + stride < num_cols;
        const float gate_factor = factor_of_element(x_sf, in.gate_factor, k);
        const float up_factor = factor_of_element(x_sf, in.up_factor, (u32)a.num_blocks + k);
        float gates[VECTOR], ups[VECTOR], activations[VECTOR], with_step = sum;
        decode(in.gates, gate_factor, gates);
        decode(in.ups, up_factor, ups);
        at.x += stride;
        at.grad_out += stride;
        if (has_next) load_codes(a, x_sf, at.x, col + stride, in);
        /* The largest code tells of all. Where there is a clamp value, factors on both sides of it are usual,
         * and a warp goes one way with all lanes. */
        const float most = TGL_E4M3_MAX * fabsf(gate_factor), most_up = TGL_E4M3_MAX * fabsf(up_factor);
        const bool is_small = HAS_CLAMP ? __all_sync(FULL, most <= SWIGLU_SMALL) : most <= SWIGLU_SMALL;
        if (is_small && !(HAS_CLAMP && __any_sync(FULL, fmaxf(most, most_up) > a.clamp)))
            differentiate_all<true, false>(gates, ups, grads, weight, a.clamp, activations, with_step);
        else if (HAS_CLAMP && is_small)
            differentiate_all<true, HAS_CLAMP>(gates, ups, grads, weight, a.clamp, activations, with_step);
        else
            differentiate_all<false, HAS_CLAMP>(gates, ups, grads, weight, a.clamp, activations, with_step);
        if (has_next) grads = load_stream_u32x4(at.grad_out);
        if (exists) {
            sum = with_step;
            *(uint4 *)at.out = pack_bf16x8(activations);
        }
        const inverses inv =
            store_factors(a, sf, k, exists ? __float_as_uint(amax_of_values(gates)) : 0,
                          exists ? __float_as_uint(amax_of_values(ups)) : 0);
        if (exists) {
            store_grads(at.x_grad, at.x_grad_fp8, inv.gates, gates);
            store_grads(at.x_grad + a.num_cols, at.x_grad_fp8 + a.num_cols, inv.ups, ups);
        }
        col += stride;
        at.out += stride;
        at.x_grad += stride;
        at.x_grad_fp8 += stride;
    }
    store_weight_grad(a, slot, its_row == (i32)row, sum);
}

extern "C" __global__ void __launch_bounds__(32 * BACKWARD_WARPS, RESIDENT)
swiglu_backward_and_per_token_cast(const backward_args a)
{
    pdl_wait();
    if (blockIdx.x < a.clearing_blocks) clear_slots(a);
    else run_row(a, blockIdx.x - a.clearing_blocks);
    pdl_trigger();
}
