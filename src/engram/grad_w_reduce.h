/* SPDX-License-Identifier: MIT
 * grad_w_reduce.h - what the kernel of grad_w_reduce and the code that launches it agree on. */
#ifndef TEGULA_ENGRAM_GRAD_W_REDUCE_H
#define TEGULA_ENGRAM_GRAD_W_REDUCE_H

#include "numerics/bf16.h"

#define GRAD_W_CHAINS 8 /* sums of a column: part of what is defined */
#define GRAD_W_LANES 32 /* threads of a block for a chain, with 4 columns each */
#define GRAD_W_AHEAD 17 /* partials of a chain that are in flight: all of 136 */

#define GRAD_W_THREADS (GRAD_W_CHAINS * GRAD_W_LANES)
#define GRAD_W_COLUMNS (4 * GRAD_W_LANES)

typedef struct {
    const float *grad_w_partial;
    const void *weight_hidden, *weight_embed;
    float *grad_weight_hidden, *grad_weight_embed;
    int64_t num_partials, num_streams, hidden;
    int64_t hidden_stride, embed_stride; /* of the weights, in elements */
    int32_t is_bf16, is_zero_centered;
    int32_t has_vectors; /* partials can be read in vectors (16 bytes) */
} grad_w_reduce_args;

TGL_INLINE float grad_w_factor(const void *weights, int64_t i, int is_bf16, int is_zero_centered)
{
    const float w = is_bf16 ? tgl_bf16_to_f32(((const uint16_t *)weights)[i]) : ((const float *)weights)[i];
    return is_zero_centered ? 1.0f + w : w;
}

TGL_INLINE float grad_w_added(float to, float sum, float factor) { return tgl_one_nan(to + sum * factor); }

#endif
