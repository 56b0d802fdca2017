/* SPDX-License-Identifier: MIT
 * reduce_fused.h - what the CPU loops, the host and the kernels of reduce_fused agree on. */
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
    int32_t x_type, out_type; /* macros of the kernels */
    int32_t tokens;           /* per block at a time; their slots are loaded at once, one per lane */
} reduce_args;

/* reduce_fused_bulk: max threads of a block. */
#define REDUCE_BULK_THREADS 256

/* Measured on an H200, 2026-11-15 and 16. */
#define REDUCE_TOKENS 2       /* max tokens of a block at a time; one if there are ... */
#define REDUCE_BLOCKS 4096    /* ... fewer blocks than this */
#define REDUCE_FEW_TOKENS 512 /* with fewer tokens bulk copies do not pay */

#endif
