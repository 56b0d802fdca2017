/* SPDX-License-Identifier: MIT
 * gate.h - what forward and backward of the gate share: their tensors, the order of sums, the arithmetic of a row. A
 * row is one stream of one token. Read by C and by kernels: both give the same bits. */
#ifndef TEGULA_ENGRAM_GATE_H
#define TEGULA_ENGRAM_GATE_H

#include "numerics/bf16.h"
#include "numerics/exp.h"
#include "numerics/rsqrt.h"
#ifndef __CUDACC__
#include <math.h>
#endif

/* ---- tensors ---- Strides are in elements, 0 where a dimension has size 1. */

typedef struct {
    const uint16_t *data;
    int64_t token, stream;
} gate_in;
typedef struct {
    uint16_t *data;
    int64_t token, stream;
} gate_out; /* data NULL: not wanted */

/* weight_hidden alone is the fused weight; both are multiplied. */
#define GATE_FUSED 0
#define GATE_BF16 1
#define GATE_F32 2
typedef struct {
    const void *hidden, *embed;
    int64_t hidden_stride, embed_stride;
    int32_t kind, is_zero_centered; /* macros of kernels */
    int32_t is_constant;            /* kernels may read them before they wait for the kernel before */
} gate_weights;

TGL_INLINE float gate_weight(float hidden, float embed, int is_zero_centered)
{
    return is_zero_centered ? (1.0f + hidden) * (1.0f + embed) : hidden * embed;
}

TGL_INLINE float gate_weight_at(const gate_weights *w, int kind, int is_zero_centered, int64_t h, int64_t i)
{
    const int64_t a = h * w->hidden_stride + i, b = h * w->embed_stride + i;
    if (kind == GATE_FUSED) return ((const float *)w->hidden)[a];
    if (kind == GATE_F32)
        return gate_weight(((const float *)w->hidden)[a], ((const float *)w->embed)[b], is_zero_centered);
    return gate_weight(tgl_bf16_to_f32(((const uint16_t *)w->hidden)[a]),
                       tgl_bf16_to_f32(((const uint16_t *)w->embed)[b]), is_zero_centered);
}

/* ---- a row ---- */

/* A row is cut into vectors of 8 columns, the last one maybe shorter. */
#define GATE_VECTOR 8
#define GATE_GROUP 32 /* sums that are added as a tree */

/* The forward adds the three sums of a row in an order that depends on the number of columns alone: vector c belongs to
 * slot c % GATE_SLOTS; a slot adds its vectors in order, column by column, with one fma each; slots of a group of
 * GATE_GROUP are added as a tree, slot i and i + 16, then i + 8, 4, 2, 1; then the groups in order. */
#define GATE_SLOTS 256

typedef struct {
    float hidden; /* columns of a row */
    float scale;  /* hidden^-0.5 */
    float eps, clamp_value;
    int32_t sign_of_zero; /* 0: the sign of 0 is 0; 1: its sign bit */
} gate_numbers;

TGL_INLINE float gate_rstd(const gate_numbers *n, float sum_of_squares)
{
    return tgl_rsqrt(sum_of_squares / n->hidden + n->eps);
}

TGL_INLINE float gate_scaled(const gate_numbers *n, float dot, float rstd_x, float rstd_k)
{
    return dot * rstd_x * rstd_k * n->scale;
}

TGL_INLINE float gate_magnitude(float s) { return tgl_f32_from_bits(tgl_f32_to_bits(s) & 0x7FFFFFFF); }

/* sigmoid(sign(s) * sqrt(max(|s|, clamp_value))); a NaN stays one. */
TGL_INLINE float gate_score_of(const gate_numbers *n, float s)
{
    const float magnitude = gate_magnitude(s);
    const float root = sqrtf(magnitude < n->clamp_value ? n->clamp_value : magnitude);
    const uint32_t sign = tgl_f32_to_bits(s) & 0x80000000u;
    const float u = s == 0 && !n->sign_of_zero ? 0.0f : tgl_f32_from_bits(tgl_f32_to_bits(root) | sign);
    return 1.0f / (1.0f + tgl_exp(-u));
}

/* x + g v with two roundings before that to bf16, as PyTorch computes it; without residual g v. */
TGL_INLINE float gate_result(float x, float v, float gate, int has_residual)
{
    const float added = gate * v;
    return has_residual ? x + added : added;
}

#endif
