/* SPDX-License-Identifier: MIT
 * swiglu_backward_and_per_token_cast_cpu.h - for the plain and the fast loop of
 * swiglu_backward_and_per_token_cast. */
#ifndef TEGULA_QUANT_SWIGLU_BACKWARD_AND_PER_TOKEN_CAST_CPU_H
#define TEGULA_QUANT_SWIGLU_BACKWARD_AND_PER_TOKEN_CAST_CPU_H

#include "quant/common/activations.h"
#include "quant/swiglu_backward_and_per_token_cast.h"

typedef struct {
    int64_t num_rows, num_cols; /* of out */
    tgl_codes gate, up;         /* the halves of x */
    const uint16_t *grad_out;   /* bf16 */
    int64_t grad_stride;        /* row stride in elements */
    const float *weight;
    const int32_t *pos_to_token_topk, *token_topk_to_pos;
    int64_t num_weights;
    float clamp;       /* infinite: none */
    tgl_blocks blocks; /* of a half */
    tgl_scale_rule rule;
    tgl_sf sf;              /* of x_grad_fp8: columns of gates, then of ups */
    uint16_t *out, *x_grad; /* bf16 */
    uint8_t *x_grad_fp8;
    float *weight_grad;
    backward_args args;
} backward_problem;

static inline float tgl_backward_weight(const backward_problem *p, int64_t row)
{
    return tgl_weight_of(p->pos_to_token_topk, p->weight, p->num_weights, row);
}

/* grad * activation of column j is added to sum j % BACKWARD_SUMS. Then halves are added until one sum is
 * left, the gradient of the row's weight. */
enum { BACKWARD_SUMS = 16 };
void tgl_backward_store_sum(const backward_problem *p, int64_t row, float sums[BACKWARD_SUMS]);

/* The gradients of gates or ups, to be cast. */
typedef struct {
    const backward_problem *p;
    bool is_up;
} backward_half;
tgl_cast tgl_backward_cast(const backward_half *half);

/* Rows begin .. end - 1. */
TGL_DECLARE_FAST(void, tgl_backward_rows, const void *context, int64_t begin, int64_t end);

#endif
