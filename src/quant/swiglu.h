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

/* Of a gate and an up that are clamped. */
TGL_INLINE float tgl_swiglu(float gate, float up) { return gate / tgl_swiglu_divisor(gate) * up; }

/* What the backward pass makes of an element; `grad` is the gradient of activation * weight. */
typedef struct { float activation, gate_grad, up_grad; } tgl_swiglu_grads;

TGL_INLINE tgl_swiglu_grads tgl_swiglu_backward(float gate, float up, float grad, float weight, float clamp)
{
    const float a = tgl_swiglu_gate(gate, clamp), b = tgl_swiglu_up(up, clamp);
    const float divisor = tgl_swiglu_divisor(a), sigmoid = 1.0f / divisor;
    const float weighted = grad * weight * sigmoid;
    const float gate_grad = weighted * b * tgl_fma(a, 1.0f - sigmoid, 1.0f);
    const float up_grad = weighted * a;
    tgl_swiglu_grads g;
    g.activation = a / divisor * b;
    g.gate_grad = tgl_select_f32(gate > clamp, 0.0f, gate_grad);
    g.up_grad = tgl_select_f32((up > clamp) | (up < -clamp), 0.0f, up_grad);
    return g;
}

#ifndef __CUDACC__
#include "quant/cast.h"

/* The CPU's loops over a row of x: num_cols gates, then as many ups. */

/* Activations of `count` columns from `col` on. */
void tgl_activate(const tgl_values *x, int64_t num_cols, int64_t row, int64_t col, int64_t count, float clamp,
                  float *to);

/* Adds the numbers of gates above the clamp value, of ups above it and of ups below its negative. */
void tgl_count_clamped(const tgl_values *x, int64_t num_cols, int64_t row, float clamp, int64_t counts[3]);
#endif
#endif
