/* SPDX-License-Identifier: MIT
 * activations.h - SwiGLU on the CPU as what casts read: row by row, of num_cols gates, then as many ups. */
#ifndef TEGULA_QUANT_ACTIVATIONS_H
#define TEGULA_QUANT_ACTIVATIONS_H

#include "quant/common/cast.h"
#include "quant/common/swiglu.h"

typedef struct {
    tgl_values x;
    int64_t num_cols;
    float clamp;                        /* infinite: none */
    bool is_bf16;                       /* activations are rounded to bf16 */
    const int32_t *pos_to_token_topk;   /* NULL: they have no weights */
    const float *topk_weights;
    int64_t num_weights;
} tgl_activations;

tgl_reader tgl_read_activations(const tgl_activations *a);

/* A row's weight: 0 where it has no slot. */
static inline float tgl_weight_of(const int32_t *pos_to_token_topk, const float *weights, int64_t num_weights,
                                  int64_t row)
{
    const int64_t at = pos_to_token_topk[row];
    return at >= 0 && at < num_weights ? weights[at] : 0.0f;
}

/* Adds the numbers of gates above the clamp value, of ups above it and of ups below its negative. */
void tgl_count_clamped(const tgl_activations *a, int64_t row, int64_t counts[3]);

/* ---- fast loops (activations_fast.c) ---- */

TGL_DECLARE_FAST(const void *, tgl_read_activations, const void *a, int64_t row, int64_t col, int64_t count,
                 float *to);
TGL_DECLARE_FAST(void, tgl_count_clamped, const tgl_activations *a, int64_t row, int64_t counts[3]);

/* Is every gate and up within the clamp value, and every gate's exp a normal number? Then a shorter loop has
 * the same results; it is what nearly all rows get. */
TGL_DECLARE_FAST(bool, tgl_swiglu_is_small, const float *gates, const float *ups, int64_t count, float clamp);

#endif
