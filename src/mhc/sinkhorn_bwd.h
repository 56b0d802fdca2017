/* SPDX-License-Identifier: MIT
 * sinkhorn_bwd.h - the steps of Sinkhorn backwards, for C and for the kernel. */
#ifndef TEGULA_MHC_SINKHORN_BWD_H
#define TEGULA_MHC_SINKHORN_BWD_H

#include "mhc/sinkhorn_fwd.h"

/* Repeats whose u and v are kept at a time, so that any number of repeats takes bounded memory: of those before, the
 * forward runs again. */
#define MHC_SINKHORN_SPAN 31

typedef struct {
    const float *grad_out, *x;
    float *grad_x;
    int64_t num_tokens;
    int32_t num_streams, repeat, has_vectors;
    float eps;
} sinkhorn_bwd_args;

/* Slots of u and v: those of a span, and of the repeat before it. One more is first, for what does not fit in the
 * registers of a thread with 8 streams. */
TGL_INLINE int32_t sinkhorn_bwd_slots(int32_t repeat)
{
    return (repeat - 1 < MHC_SINKHORN_SPAN ? repeat - 1 : MHC_SINKHORN_SPAN) + 2;
}

/* Slot s has u and v in kept[((s + 1) * 2n + i) * stride] and kept[((s + 1) * 2n + n + o) * stride]. */
typedef struct {
    float *kept;
    int32_t stride;
} sinkhorn_history;

TGL_INLINE void sinkhorn_keep(const sinkhorn_history *h, int slot, const mhc_matrix *m, int n)
{
    float *to = h->kept + (slot + 1) * 2 * n * h->stride;
    MHC_UNROLL
    for (int i = 0; i < n; i++) to[i * h->stride] = m->u[i], to[(n + i) * h->stride] = m->v[i];
}
TGL_INLINE void sinkhorn_recall_v(const sinkhorn_history *h, int slot, mhc_matrix *m, int n)
{
    const float *from = h->kept + (slot * 2 + 3) * n * h->stride;
    MHC_UNROLL
    for (int o = 0; o < n; o++) m->v[o] = from[o * h->stride];
}
TGL_INLINE void sinkhorn_recall_u(const sinkhorn_history *h, int slot, mhc_matrix *m, int n)
{
    const float *from = h->kept + (slot + 1) * 2 * n * h->stride;
    MHC_UNROLL
    for (int i = 0; i < n; i++) m->u[i] = from[i * h->stride];
}

/* Gradients: of E, u, v, and what a later step adds to those of w and p. */
typedef struct {
    float e[MHC_MAX_STREAMS][MHC_MAX_STREAMS];
    float u[MHC_MAX_STREAMS], v[MHC_MAX_STREAMS], later[2 * MHC_MAX_STREAMS];
} sinkhorn_grads;

TGL_INLINE float *sinkhorn_later(const sinkhorn_history *h, sinkhorn_grads *d, int n, int i)
{
    return n < MHC_MAX_STREAMS ? &d->later[i] : &h->kept[i * h->stride];
}

/* d->e: the gradient of out */
TGL_INLINE void sinkhorn_bwd_output(const mhc_matrix *m, sinkhorn_grads *d, int n, const sinkhorn_history *h)
{
    MHC_UNROLL
    for (int i = 0; i < n; i++) {
        d->u[i] = d->v[i] = 0.0f;
        *sinkhorn_later(h, d, n, i) = *sinkhorn_later(h, d, n, n + i) = 0.0f;
    }
    MHC_UNROLL
    for (int i = 0; i < n; i++) {
        MHC_UNROLL
        for (int o = 0; o < n; o++) {
            const float g = d->e[i][o] * m->e[i][o];
            d->u[i] = tgl_fma(g, m->v[o], d->u[i]);
            d->v[o] = tgl_fma(g, m->u[i], d->v[o]);
            d->e[i][o] = (d->e[i][o] * m->u[i]) * m->v[o];
        }
    }
}

/* w[o] = eps * w_before[o] + sum over i of E[i][o] * u[i], v = 1 / w */
TGL_INLINE void sinkhorn_bwd_columns(const mhc_matrix *m, sinkhorn_grads *d, int n, float eps,
                                     const sinkhorn_history *h)
{
    MHC_UNROLL
    for (int o = 0; o < n; o++) {
        float *later = sinkhorn_later(h, d, n, o);
        const float dw = tgl_fma(-(d->v[o] * m->v[o]), m->v[o], *later);
        *later = eps * dw;
        d->v[o] = 0.0f;
        MHC_UNROLL
        for (int i = 0; i < n; i++) {
            d->e[i][o] = tgl_fma(dw, m->u[i], d->e[i][o]);
            d->u[i] = tgl_fma(dw, m->e[i][o], d->u[i]);
        }
    }
}

/* p[i] = eps * p_before[i] + sum over o of E[i][o] * v[o], u = 1 / p; m->v is that v */
TGL_INLINE void sinkhorn_bwd_rows(const mhc_matrix *m, sinkhorn_grads *d, int n, float eps, const sinkhorn_history *h)
{
    MHC_UNROLL
    for (int i = 0; i < n; i++) {
        float *later = sinkhorn_later(h, d, n, n + i);
        const float dp = tgl_fma(-(d->u[i] * m->u[i]), m->u[i], *later);
        *later = eps * dp;
        d->u[i] = 0.0f;
        MHC_UNROLL
        for (int o = 0; o < n; o++) {
            d->e[i][o] = tgl_fma(dp, m->v[o], d->e[i][o]);
            d->v[o] = tgl_fma(dp, m->e[i][o], d->v[o]);
        }
    }
}

/* m->e: E; d->e: the gradient of out, then that of E. */
TGL_INLINE void sinkhorn_bwd_steps(mhc_matrix *m, sinkhorn_grads *d, int n, int repeat, float eps,
                                   const sinkhorn_history *h)
{
    int end = repeat;
    do { /* repeats begin .. end - 1 */
        const int begin = end > MHC_SINKHORN_SPAN + 1 ? end - MHC_SINKHORN_SPAN : 1;
        MHC_UNROLL
        for (int i = 0; i < n; i++) d->u[i] = 0.0f; /* as it is: fewer registers during the forward */
        mhc_sinkhorn_begin(m, n, eps);
        MHC_KEEP_LOOP
        for (int r = 1; r < begin; r++) mhc_sinkhorn_repeat(m, n, eps);
        sinkhorn_keep(h, 0, m, n);
        MHC_KEEP_LOOP
        for (int r = begin; r < end; r++) {
            mhc_sinkhorn_repeat(m, n, eps);
            sinkhorn_keep(h, r - begin + 1, m, n);
        }
        if (end == repeat) sinkhorn_bwd_output(m, d, n, h);
        MHC_KEEP_LOOP
        for (int r = end - 1; r >= begin; r--) {
            sinkhorn_recall_u(h, r - begin + 1, m, n);
            sinkhorn_bwd_columns(m, d, n, eps, h);
            sinkhorn_recall_v(h, r - begin, m, n);
            sinkhorn_bwd_rows(m, d, n, eps, h);
        }
        end = begin;
    } while (end > 1);
    MHC_UNROLL
    for (int o = 0; o < n; o++) { /* the first step, where u is 1 */
        const float dw = tgl_fma(-(d->v[o] * m->v[o]), m->v[o], *sinkhorn_later(h, d, n, o));
        MHC_UNROLL
        for (int i = 0; i < n; i++) d->e[i][o] = d->e[i][o] + dw;
    }
}

/* A row's softmax, and the gradient of E to that of the logits. */
TGL_INLINE void sinkhorn_bwd_softmax(const float *softmax, float *d, int n)
{
    float dot = 0.0f;
    MHC_UNROLL
    for (int o = 0; o < n; o++) dot = tgl_fma(d[o], softmax[o], dot);
    MHC_UNROLL
    for (int o = 0; o < n; o++) d[o] = tgl_one_nan((d[o] - dot) * softmax[o]);
}

#ifndef __CUDACC__
/* A token's logits x, [n, n], and the gradient of its matrix; grad_x may be either. */
TGL_INLINE void sinkhorn_bwd_token(const float *grad_out, const float *x, int n, int32_t repeat, float eps,
                                   float *grad_x)
{
    float kept[(MHC_SINKHORN_SPAN + 2) * 2 * MHC_MAX_STREAMS], softmax[MHC_MAX_STREAMS][MHC_MAX_STREAMS];
    const sinkhorn_history history = { kept, 1 };
    mhc_matrix m;
    sinkhorn_grads d;
    for (int i = 0; i < n * n; i++) m.e[i / n][i % n] = x[i], d.e[i / n][i % n] = grad_out[i];
    for (int i = 0; i < n; i++) {
        const float rcp = mhc_softmax(m.e[i], n);
        for (int o = 0; o < n; o++) {
            softmax[i][o] = m.e[i][o] * rcp;
            m.e[i][o] = tgl_fma(m.e[i][o], rcp, eps);
        }
    }
    sinkhorn_bwd_steps(&m, &d, n, repeat, eps, &history);
    for (int i = 0; i < n; i++) {
        sinkhorn_bwd_softmax(softmax[i], d.e[i], n);
        for (int o = 0; o < n; o++) grad_x[i * n + o] = d.e[i][o];
    }
}
#endif

#endif
