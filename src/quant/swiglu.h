/* SPDX-License-Identifier: MIT
 * swiglu.h - the activation of a gate and an up, and its gradients, each step rounded to f32; for C and, with
 * CUDA's expf, for kernels. */
#ifndef TEGULA_QUANT_SWIGLU_H
#define TEGULA_QUANT_SWIGLU_H

#include "numerics/base.h"
#include "numerics/fma.h"
#ifndef __CUDACC__
#include "numerics/exp.h"
#endif

/* Without a clamp value, `clamp` is infinite. A NaN stays: it is neither above nor below. */
TGL_INLINE float tgl_swiglu_gate(float gate, float clamp)
{
    return tgl_select_f32(gate > clamp, clamp, gate);
}
TGL_INLINE float tgl_swiglu_up(float up, float clamp)
{
    const float below = tgl_select_f32(up > clamp, clamp, up);
    return tgl_select_f32(below < -clamp, -clamp, below);
}

/* 1 + exp(-gate), what the gate and 1 are divided by. */
TGL_INLINE float tgl_swiglu_divisor(float gate)
{
#ifdef __CUDACC__
    return 1.0f + expf(-gate);
#else
    return 1.0f + tgl_exp(-gate);
#endif
}

/* Of a gate, which the divisor is of, and an up, both clamped. */
TGL_INLINE float tgl_swiglu(float gate, float up, float divisor) { return gate / divisor * up; }

/* What the backward pass makes of them; `grad` is the gradient of activation * weight. A gradient is +0 where
 * the clamp cuts the value. */
typedef struct { float activation, gate_grad, up_grad; } tgl_swiglu_grads;

TGL_INLINE tgl_swiglu_grads tgl_swiglu_backward(float gate, float up, float divisor, float grad, float weight)
{
    const float sigmoid = 1.0f / divisor, weighted = grad * weight * sigmoid;
    tgl_swiglu_grads g;
    g.activation = tgl_swiglu(gate, up, divisor);
    g.gate_grad = weighted * up * tgl_fma(gate, 1.0f - sigmoid, 1.0f);
    g.up_grad = weighted * gate;
    return g;
}

TGL_INLINE int tgl_swiglu_cuts_gate(float gate, float clamp) { return gate > clamp; }
TGL_INLINE int tgl_swiglu_cuts_up(float up, float clamp) { return (up > clamp) | (up < -clamp); }

#ifndef __CUDACC__
#include "quant/cast.h"

/* The CPU's loops over a row of x: num_cols gates, then as many ups. */

/* Is every gate and up within the clamp value, and every gate's exp a normal number? Then a shorter loop has
 * the same results; it is what nearly all rows get. */
bool tgl_swiglu_is_small(const void *gates, const void *ups, bool is_bf16, int64_t count, float clamp);

/* Activations of `count` columns from `col` on. */
void tgl_activate(const tgl_values *x, int64_t num_cols, int64_t row, int64_t col, int64_t count, float clamp,
                  float *to);

/* Adds the numbers of gates above the clamp value, of ups above it and of ups below its negative. */
void tgl_count_clamped(const tgl_values *x, int64_t num_cols, int64_t row, float clamp, int64_t counts[3]);
#endif
#endif
