/* SPDX-License-Identifier: MIT
 * mhc.h - the arithmetic of manifold hyper-connections, for C and for kernels: one order of operations for every op, so
 * that fused ops equal separate ones, and a CPU equals a GPU, to the bit.
 *
 * X has n streams of h columns; comb is [input stream, output stream]. tree(l[0] ... l[m - 1]): padded with +0 to a
 * power of two, neighbours added, and so on. Functions take n as an argument: a kernel passes a constant, and arrays
 * become registers. */
#ifndef TEGULA_MHC_H_COMMON
#define TEGULA_MHC_H_COMMON

#include "mhc/common/mhc_limits.h"
#include "numerics/bf16.h"
#include "numerics/exp.h"
#include "numerics/fma.h"

#ifdef __CUDACC__
#define MHC_UNROLL _Pragma("unroll")
#define MHC_KEEP_LOOP _Pragma("unroll 1")
#else
#define MHC_UNROLL
#define MHC_KEEP_LOOP
#endif

TGL_INLINE float mhc_tree(const float *l, int n) /* n <= 8 */
{
    const float l1 = n > 1 ? l[1] : 0.0f, l2 = n > 2 ? l[2] : 0.0f, l3 = n > 3 ? l[3] : 0.0f;
    if (n <= 1) return l[0];
    if (n <= 2) return l[0] + l1;
    const float low = (l[0] + l1) + (l2 + l3);
    if (n <= 4) return low;
    const float l5 = n > 5 ? l[5] : 0.0f, l6 = n > 6 ? l[6] : 0.0f, l7 = n > 7 ? l[7] : 0.0f;
    return low + ((l[4] + l5) + (l6 + l7));
}

/* 1 / x within 0.64 ulp for x from 2^-126 to 2^126, in operations that every processor has; NaN stays NaN. Short of a
 * hardware reciprocal, whose latency and rate are the slowest part of a chain of them. */
TGL_INLINE float mhc_rcp(float x)
{
    float r = tgl_f32_from_bits(0x7ef31000u - tgl_f32_to_bits(x));
    float e = tgl_fma(-x, r, 1.0f);
    r = tgl_fma(r, tgl_fma(e, e, e), r);
    e = tgl_fma(-x, r, 1.0f);
    return tgl_fma(r, e, r);
}

/* Of n numbers, step by step: their chains overlap. */
TGL_INLINE void mhc_rcps(const float *x, int n, float *to)
{
    float e[MHC_MAX_STREAMS];
    MHC_UNROLL
    for (int i = 0; i < n; i++) to[i] = tgl_f32_from_bits(0x7ef31000u - tgl_f32_to_bits(x[i]));
    MHC_UNROLL
    for (int i = 0; i < n; i++) e[i] = tgl_fma(-x[i], to[i], 1.0f);
    MHC_UNROLL
    for (int i = 0; i < n; i++) e[i] = tgl_fma(e[i], e[i], e[i]);
    MHC_UNROLL
    for (int i = 0; i < n; i++) to[i] = tgl_fma(to[i], e[i], to[i]);
    MHC_UNROLL
    for (int i = 0; i < n; i++) e[i] = tgl_fma(-x[i], to[i], 1.0f);
    MHC_UNROLL
    for (int i = 0; i < n; i++) to[i] = tgl_fma(to[i], e[i], to[i]);
}

/* ---- gates ---- A mix m, its group's scale and its base make z = m * scale + base. */

TGL_INLINE float mhc_logit(float mix, float scale, float base) { return tgl_fma(mix, scale, base); }
TGL_INLINE float mhc_sigmoid(float z) { return 1.0f / (1.0f + tgl_exp(-z)); }
TGL_INLINE float mhc_pre_gate(float sigmoid, float pre_eps) { return sigmoid + pre_eps; }
TGL_INLINE float mhc_post_gate(float sigmoid, float post_mult, float post_eps)
{
    const float gate = sigmoid * post_mult;
    return post_eps != 0 ? gate + post_eps : gate;
}
/* d is the gradient of the gate; for post times post_mult. */
TGL_INLINE float mhc_gate_slope(float z, float d)
{
    const float s = mhc_sigmoid(z);
    return (d * s) * (1.0f - s);
}

/* ---- Sinkhorn ----
 * With E = softmax(logits) + eps over rows, the matrix after any step is E[i][o] * u[i] * v[o]. A step over columns,
 * A[i][o] /= sum over i of A[i][o] + eps, is 1 / v[o] = eps / v[o] + sum over i of E[i][o] * u[i]: with w = 1 / v a few
 * fma and a reciprocal. Rows likewise with p = 1 / u. */
typedef struct {
    float e[MHC_MAX_STREAMS][MHC_MAX_STREAMS]; /* logits, then E */
    float u[MHC_MAX_STREAMS], v[MHC_MAX_STREAMS], p[MHC_MAX_STREAMS], w[MHC_MAX_STREAMS];
} mhc_matrix;

/* A row of logits to exp(row - max), whose tree's reciprocal is returned: softmax is their product. */
TGL_INLINE float mhc_softmax(float *row, int n)
{
    float top = row[0];
    MHC_UNROLL
    for (int o = 1; o < n; o++) top = row[o] > top ? row[o] : top;
    MHC_UNROLL
    for (int o = 0; o < n; o++) row[o] = tgl_exp(row[o] - top);
    return mhc_rcp(mhc_tree(row, n));
}

TGL_INLINE void mhc_sinkhorn_row(float *row, int n, float eps) /* logits to a row of E */
{
    const float rcp = mhc_softmax(row, n);
    MHC_UNROLL
    for (int o = 0; o < n; o++) row[o] = tgl_fma(row[o], rcp, eps);
}
TGL_INLINE void mhc_sinkhorn_logits(mhc_matrix *m, int n, float eps)
{
    MHC_UNROLL
    for (int i = 0; i < n; i++) mhc_sinkhorn_row(m->e[i], n, eps);
}

/* The first step, over columns. */
TGL_INLINE void mhc_sinkhorn_begin(mhc_matrix *m, int n, float eps)
{
    MHC_UNROLL
    for (int o = 0; o < n; o++) {
        float column[MHC_MAX_STREAMS];
        MHC_UNROLL
        for (int i = 0; i < n; i++) column[i] = m->e[i][o];
        m->w[o] = mhc_tree(column, n) + eps;
        m->v[o] = mhc_rcp(m->w[o]);
        m->p[o] = m->u[o] = 1.0f;
    }
}

/* Rows, then columns. Of all sums together, term by term: their chains overlap. */
TGL_INLINE void mhc_sinkhorn_repeat(mhc_matrix *m, int n, float eps)
{
    MHC_UNROLL
    for (int i = 0; i < n; i++) m->p[i] = eps * m->p[i];
    MHC_UNROLL
    for (int o = 0; o < n; o++) {
        MHC_UNROLL
        for (int i = 0; i < n; i++) m->p[i] = tgl_fma(m->e[i][o], m->v[o], m->p[i]);
    }
    mhc_rcps(m->p, n, m->u);
    MHC_UNROLL
    for (int o = 0; o < n; o++) m->w[o] = eps * m->w[o];
    MHC_UNROLL
    for (int i = 0; i < n; i++) {
        MHC_UNROLL
        for (int o = 0; o < n; o++) m->w[o] = tgl_fma(m->e[i][o], m->u[i], m->w[o]);
    }
    mhc_rcps(m->w, n, m->v);
}

TGL_INLINE void mhc_sinkhorn_steps(mhc_matrix *m, int n, int repeat, float eps) /* repeat >= 1 */
{
    mhc_sinkhorn_begin(m, n, eps);
    MHC_KEEP_LOOP
    for (int r = 1; r < repeat; r++) mhc_sinkhorn_repeat(m, n, eps);
}
TGL_INLINE float mhc_sinkhorn_product(float e, float u, float v) { return (e * u) * v; }

TGL_INLINE void mhc_sinkhorn(mhc_matrix *m, int n, int repeat, float eps) /* e: logits, then the result */
{
    mhc_sinkhorn_logits(m, n, eps);
    mhc_sinkhorn_steps(m, n, repeat, eps);
    MHC_UNROLL
    for (int i = 0; i < n; i++) {
        MHC_UNROLL
        for (int o = 0; o < n; o++) m->e[i][o] = mhc_sinkhorn_product(m->e[i][o], m->u[i], m->v[o]);
    }
}

#endif
