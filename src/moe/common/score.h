/* SPDX-License-Identifier: MIT
 * score.h - the scoring functions, on the CPU and on CUDA: exp, log1p, sqrtf and IEEE division in exactly
 * these forms, nothing fused. Results differ only where exp or log1p do: kernels use CUDA's, the CPU those of
 * numerics/, which vectorise. */
#ifndef TEGULA_MOE_SCORE_H
#define TEGULA_MOE_SCORE_H

#include "numerics/base.h"

#ifndef __CUDACC__
#include <math.h>

#include "numerics/exp.h"
#include "numerics/log1p.h"
#endif

/* The values of tgl_moe_scoring, for kernels. */
#define TGL_SIGMOID 0
#define TGL_SQRTSOFTPLUS 1
#define TGL_SOFTMAX 2
#define TGL_IDENTITY 3

/* Of a row: the max of its logits and the sum of exp(x - max), both without NaN. */
typedef struct { float max, sum; } tgl_softmax;

#ifdef __CUDACC__
TGL_INLINE float tgl_score_exp(float x) { return expf(x); }
TGL_INLINE float tgl_softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
#else
TGL_INLINE float tgl_score_exp(float x) { return tgl_exp(x); }
TGL_INLINE float tgl_softplus(float x) { return tgl_select_f32(x > 20.0f, x, tgl_log1p(tgl_exp(x))); }
#endif

/* NaN stays NaN; softmax is NaN for +inf and for rows of -inf. */
TGL_INLINE float tgl_raw_score(int scoring, float x, tgl_softmax row)
{
    if (scoring == TGL_SIGMOID) return 1.0f / (1.0f + tgl_score_exp(-x));
    if (scoring == TGL_SQRTSOFTPLUS) return sqrtf(tgl_softplus(x));
    if (scoring == TGL_SOFTMAX) return tgl_score_exp(x - row.max) / row.sum;
    return x;
}

/* The score that weights are made of: NaN becomes 0. */
TGL_INLINE float tgl_score(int scoring, float x, tgl_softmax row)
{
    const float score = tgl_raw_score(scoring, x, row);
    return score == score ? score : 0.0f;
}

/* The key that experts are ranked by: the score, or for softmax the logit, plus the bias. NaN ranks as
 * -inf. */
TGL_INLINE float tgl_score_key(int scoring, float x, float bias)
{
    const tgl_softmax none = { 0.0f, 1.0f };
    return (scoring == TGL_SOFTMAX ? x : tgl_raw_score(scoring, x, none)) + bias;
}

#endif
