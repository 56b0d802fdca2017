/* SPDX-License-Identifier: MIT
 * activations.h - SwiGLU on the CPU, as a reader for casts (cast.h). A row of x has num_cols gates, then
 * num_cols ups. */
#ifndef TEGULA_QUANT_ACTIVATIONS_H
#define TEGULA_QUANT_ACTIVATIONS_H

#include "quant/common/cast.h"
#include "quant/common/swiglu.h"

typedef struct {
    tgl_values x;
    int64_t num_cols;
    float clamp;                      /* infinite: none */
    bool is_bf16;                     /* activations are rounded to bf16 */
    const int32_t *pos_to_token_topk; /* NULL: no weights */
    const float *topk_weights;
    int64_t num_weights;
} tgl_activations;

tgl_reader tgl_read_activations(const tgl_activations *a);

/* A row's weight; 0 if its slot does not exist. */
static inline float tgl_weight_of(const int32_t *pos_to_token_topk, const float *weights, int64_t num_weights,
                                  int64_t row)
{
    const int64_t at = pos_to_token_topk[row];
    return at >= 0 && at < num_weights ? weights[at] : 0.0f;
}

/* Adds the numbers of gates above clamp, of ups above clamp and of ups below -clamp. */
void tgl_count_clamped(const tgl_activations *a, int64_t row, int64_t counts[3]);

/* ---- fast loops (activations_fast.c) ---- */

TGL_DECLARE_FAST(const void *, tgl_read_activations, const void *a, int64_t row, int64_t col, int64_t count, float *to);
TGL_DECLARE_FAST(void, tgl_count_clamped, const tgl_activations *a, int64_t row, int64_t counts[3]);

/* Is nothing clamped, and every exp(-gate) a normal number? Then a shorter loop has the same results; nearly
 * always. */
TGL_DECLARE_FAST(bool, tgl_swiglu_is_small, const float *gates, const float *ups, int64_t count, float clamp);

#endif
