/* SPDX-License-Identifier: MIT
 * gate_bwd.h - what the CPU loop, the host and the kernels of gate_bwd agree on. */
#ifndef TEGULA_ENGRAM_GATE_BWD_H
#define TEGULA_ENGRAM_GATE_BWD_H

#include "engram/common/gate.h"

typedef struct {
    gate_in grad_out, x, k, v;
    gate_weights weights;
    const uint8_t *image_token_mask; /* NULL: none */
    const float *dot, *gate_score, *rstd_x, *rstd_k;
    gate_out grad_x, grad_k, grad_v;
    float *grad_w_partial; /* [num_partials, num_streams, hidden]; NULL: not wanted */
    gate_numbers numbers;
    int64_t num_tokens, num_streams, hidden;
    int64_t num_partials; /* partial p has tokens p, p + num_partials, ... */
    int32_t has_residual;
    int32_t stages; /* gate_bwd_cluster: tokens in flight */
} gate_bwd_args;

/* The sum of grad_out * v over a row has an order that depends on the number of columns alone: the columns of a vector
 * one after the other, with one fma each; vectors of a group of GATE_GROUP as a tree, vector i and i + 16, then i +
 * 8, 4, 2, 1; then the groups in order. */

/* What a row's gradients are made of. */
typedef struct {
    float gate, slope, q, a_x, a_k;
    int is_flat; /* q is 0 */
} gate_slopes;

/* All but q, which gate_set_q() makes of the row's sum of grad_out * v: kernels wait for that one meanwhile. */
TGL_INLINE gate_slopes gate_slopes_of(const gate_numbers *n, float dot, float gate, float rstd_x, float rstd_k)
{
    const float s = gate_scaled(n, dot, rstd_x, rstd_k), magnitude = gate_magnitude(s);
    const float slope = 0.5f * (n->scale * rstd_x * rstd_k) / sqrtf(magnitude);
    const int is_flat = magnitude < n->clamp_value || s == 0;
    const float a_x = dot * rstd_x * rstd_x / n->hidden, a_k = dot * rstd_k * rstd_k / n->hidden;
    const gate_slopes made = { gate, slope, 0, a_x, a_k, is_flat };
    return made;
}
TGL_INLINE void gate_set_q(gate_slopes *s, float grad_gate)
{
    s->q = s->is_flat ? 0.0f : grad_gate * s->gate * (1.0f - s->gate) * s->slope;
}

TGL_INLINE float gate_grad_x(const gate_slopes *s, float grad_out, float x, float k, float w, int has_residual)
{
    const float inner = fmaf(-x, s->a_x, k * w);
    return has_residual ? fmaf(s->q, inner, grad_out) : s->q * inner;
}
TGL_INLINE float gate_grad_k(const gate_slopes *s, float x, float k, float w) { return s->q * fmaf(-k, s->a_k, x * w); }
TGL_INLINE float gate_grad_w(const gate_slopes *s, float x, float k, float sum) { return fmaf(s->q * x, k, sum); }

#define GATE_BWD_THREADS 256
/* gate_bwd_cluster. An SM has one block: two of half the threads, in clusters of 4, took 415 us on an H200 (2026-11)
 * where one took 339 (4096 x 7168). */
#define GATE_CLUSTER_STREAMS 4   /* max */
#define GATE_CLUSTER_BLOCKS 4    /* of a cluster, max */
#define GATE_CLUSTER_THREADS 448 /* of a block that have columns, max */
#define GATE_CLUSTER_STAGES 2    /* tokens in shared memory; 3 and 4, where there is room, take as long */

/* Partials that keep 132 SMs busy with clusters of two blocks, for rows of GATE_PARTIALS_COLUMNS columns and more;
 * shorter rows take as many more as they are shorter, up to GATE_MAX_PARTIALS: the sum over partials is serial. */
#define GATE_PARTIALS 66
#define GATE_PARTIALS_COLUMNS 3584
#define GATE_MAX_PARTIALS 528

#endif
