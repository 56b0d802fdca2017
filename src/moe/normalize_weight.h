/* SPDX-License-Identifier: MIT
 * normalize_weight.h - what the kernels of normalize_weight and the code that launches them agree on. */
#ifndef TEGULA_MOE_NORMALIZE_WEIGHT_H
#define TEGULA_MOE_NORMALIZE_WEIGHT_H

#include "numerics/base.h"

#define NORMALIZE_EPSILON 1e-20f    /* a sum begins with it, so that rows of zeros divide by more than zero */

/* normalize_weight: rows that fit in a warp, longer ones are normalize_weight_wide's. Warps go to
 * NORMALIZE_BLOCKS blocks, about an SM each, before a block gets more than one of them. */
#define NORMALIZE_MAX_TOPK 32
#define NORMALIZE_BLOCKS 128
#define NORMALIZE_MAX_WARPS 16

/* normalize_weight_vectors: rows of vectors, up to so long. From so many tokens on a lane divides
 * NORMALIZE_MANY_ELEMENTS rather than one. */
#define NORMALIZE_VECTORS_TOPK 16
#define NORMALIZE_MANY_TOKENS 8192
#define NORMALIZE_MANY_ELEMENTS 4

/* normalize_weight_wide: warps, and rows, of a block. */
#define NORMALIZE_WIDE_WARPS 4

typedef struct {
    const float *weights;
    float *denominator, *normalized;
    int64_t num_tokens, row_stride;
    int64_t num_topk;                   /* a macro in all kernels but the wide one */
} normalize_weight_args;

#endif
