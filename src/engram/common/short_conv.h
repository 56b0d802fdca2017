/* SPDX-License-Identifier: MIT
 * short_conv.h - what forward and backward of the short convolution share: their tensors, the order of sums, the
 * arithmetic of an element. A row is one stream of one token. Read by C and by kernels: both give the same bits. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_H
#define TEGULA_ENGRAM_SHORT_CONV_H

#include "engram/common/gate.h"
#include "engram/common/silu.h"
#include "engram/common/windows.h"

#define CONV_MAX_TAPS 64
#define CONV_VECTOR 8 /* columns of a vector, the last one of a row maybe shorter */
#define CONV_GROUP 32 /* vectors whose sums are added as a tree */

/* f32 or bf16 */
typedef struct {
    const void *data;
    int64_t stride;
    int32_t is_bf16;
} conv_weights;

TGL_INLINE float conv_weight_at(const conv_weights *w, int64_t i)
{
    return w->is_bf16 ? tgl_bf16_to_f32(((const uint16_t *)w->data)[i]) : ((const float *)w->data)[i];
}

typedef struct {
    float hidden; /* columns of a row */
    float eps;
    int32_t is_zero_centered; /* norm_weight is stored minus 1 */
    int32_t has_activation, adds_input;
} conv_numbers;

/* Of a row: the sum of squares has an order that depends on the number of columns alone. The columns of a vector are
 * added one after the other, with one fma each; vectors of a group of CONV_GROUP as a tree, vector i and i + 16, then
 * i + 8, 4, 2, 1; then the groups in order. */
TGL_INLINE float conv_rstd(const conv_numbers *n, float sum_of_squares)
{
    return tgl_rsqrt(sum_of_squares / n->hidden + n->eps);
}

TGL_INLINE float conv_norm_weight(const conv_numbers *n, float w) { return n->is_zero_centered ? 1.0f + w : w; }

/* What is convolved: rounded to bf16, as the ring keeps it, so that no result depends on where a sequence is cut. */
TGL_INLINE float conv_normed(float x, float rstd, float norm_weight) { return x * rstd * norm_weight; }

TGL_INLINE float conv_rounded(float v) { return tgl_bf16_to_f32(tgl_bf16_from_f32(v)); }

/* The product of two, and what is added to it: `first`, -0 if there is nothing, in the same fma; then `second`. round_each:
 * after every step but the last one, which callers round. */
TGL_INLINE float conv_added(float a, float b, float first, int has_second, float second, int round_each)
{
    const float y = round_each ? conv_rounded(a * b) + first : fmaf(a, b, first);
    if (!has_second) return y;
    return (round_each ? conv_rounded(y) : y) + second;
}

/* From z to the result, given the sigmoid of z. */
TGL_INLINE float conv_result(const conv_numbers *n, float z, float sigmoid, float x, int has_residual, float residual,
                             int round_each)
{
    const float a = n->has_activation ? conv_bounded(z) : z, b = n->has_activation ? sigmoid : 1.0f;
    const float first = n->adds_input ? x : has_residual ? residual : -0.0f;
    return conv_added(a, b, first, n->adds_input && has_residual, residual, round_each);
}

#endif
