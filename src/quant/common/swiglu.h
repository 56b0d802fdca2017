/* SPDX-License-Identifier: MIT
 * swiglu.h - SwiGLU and its gradients, each step rounded to f32; for C, and, with CUDA's expf, for
 * kernels. */
#ifndef TEGULA_QUANT_SWIGLU_H
#define TEGULA_QUANT_SWIGLU_H

#include "numerics/base.h"
#include "numerics/fma.h"
#ifndef __CUDACC__
#include "numerics/exp.h"
#endif

/* `clamp` is infinite if there is no clamp value. A NaN stays. */
TGL_INLINE float tgl_swiglu_gate(float gate, float clamp) { return tgl_select_f32(gate > clamp, clamp, gate); }
TGL_INLINE float tgl_swiglu_up(float up, float clamp)
{
    const float below = tgl_select_f32(up > clamp, clamp, up);
    return tgl_select_f32(below < -clamp, -clamp, below);
}

/* 1 + exp(-gate) */
TGL_INLINE float tgl_swiglu_divisor(float gate)
{
#ifdef __CUDACC__
    return 1.0f + expf(-gate);
#else
    return 1.0f + tgl_exp(-gate);
#endif
}

/* Gate and up are clamped; the divisor is the gate's. */
TGL_INLINE float tgl_swiglu(float gate, float up, float divisor) { return gate / divisor * up; }

/* The backward pass; `grad` is the gradient of activation * weight. The gradient of a clamped value is +0. */
typedef struct { float activation, gate_grad, up_grad; } tgl_swiglu_grads;

/* sigmoid = 1 / divisor and silu = gate / divisor, both rounded; slope = 1 + gate * (1 - sigmoid), rounded
 * once. */
TGL_INLINE tgl_swiglu_grads tgl_swiglu_grads_by(float gate, float up, float sigmoid, float silu, float slope,
                                                float grad, float weight)
{
    const float weighted = grad * weight * sigmoid;
    tgl_swiglu_grads g;
    g.activation = silu * up;
    g.gate_grad = weighted * up * slope;
    g.up_grad = weighted * gate;
    return g;
}

TGL_INLINE tgl_swiglu_grads tgl_swiglu_grads_of(float gate, float up, float sigmoid, float silu, float grad,
                                                float weight)
{
    const float slope = tgl_fma(gate, 1.0f - sigmoid, 1.0f);
    return tgl_swiglu_grads_by(gate, up, sigmoid, silu, slope, grad, weight);
}

TGL_INLINE tgl_swiglu_grads tgl_swiglu_backward(float gate, float up, float divisor, float grad, float weight)
{
    return tgl_swiglu_grads_of(gate, up, 1.0f / divisor, gate / divisor, grad, weight);
}

TGL_INLINE int tgl_swiglu_cuts_gate(float gate, float clamp) { return gate > clamp; }
TGL_INLINE int tgl_swiglu_cuts_up(float up, float clamp) { return (up > clamp) | (up < -clamp); }

#endif
