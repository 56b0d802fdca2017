/* SPDX-License-Identifier: MIT
 * activate.h - the CPU's loops of SwiGLU over a row of x: num_cols gates, then as many ups. */
#ifndef TEGULA_QUANT_ACTIVATE_H
#define TEGULA_QUANT_ACTIVATE_H

#include "quant/cast.h"
#include "quant/common/swiglu.h"

/* Is every gate and up within the clamp value, and every gate's exp a normal number? Then a shorter loop has
 * the same results; it is what nearly all rows get. */
bool tgl_swiglu_is_small(const float *gates, const float *ups, int64_t count, float clamp);

/* Activations of `count` columns from `col` on. */
void tgl_activate(const tgl_values *x, int64_t num_cols, int64_t row, int64_t col, int64_t count, float clamp,
                  float *to);

/* The same, rounded to bf16 once more. */
void tgl_activate_to_bf16(const tgl_values *x, int64_t num_cols, int64_t row, int64_t col, int64_t count,
                          float clamp, uint16_t *to);

/* Adds the numbers of gates above the clamp value, of ups above it and of ups below its negative. */
void tgl_count_clamped(const tgl_values *x, int64_t num_cols, int64_t row, float clamp, int64_t counts[3]);

#endif
