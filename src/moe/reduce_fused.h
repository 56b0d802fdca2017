/* SPDX-License-Identifier: MIT
 * reduce_fused.h - what the kernel of reduce_fused, the code that launches it and the CPU loop agree on. */
#ifndef TEGULA_MOE_REDUCE_FUSED_H
#define TEGULA_MOE_REDUCE_FUSED_H

#include "numerics/base.h"

/* Element types of x and out. */
#define REDUCE_F32 0
#define REDUCE_BF16 1
#define REDUCE_F16 2
#define REDUCE_E4M3 3
#define REDUCE_BYTES(type) ((type) == REDUCE_F32 ? 4 : (type) == REDUCE_E4M3 ? 1 : 2)

/* Strides are in elements. x_sf, topk_weights and sf may be NULL. */
typedef struct {
    const void *x;
    const float *x_sf, *topk_weights;
    const int32_t *token_topk_to_pos;
    const float *sf;
    void *out;
    int64_t num_positions, num_tokens, num_topk, hidden;
    int64_t x_stride, weights_stride, out_stride;
} reduce_problem;

/* Tokens of a block, at most: their slots are loaded at once, a lane each. One where there would be less
 * than REDUCE_BLOCKS blocks. */
#define REDUCE_TOKENS 2
#define REDUCE_BLOCKS 4096

/* The kernel with bulk copies: threads of a block, at most. */
#define REDUCE_BULK_THREADS 256

#endif
