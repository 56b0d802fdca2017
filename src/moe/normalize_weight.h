/* SPDX-License-Identifier: MIT
 * normalize_weight.h - what the CPU loops, the host and the kernels of normalize_weight agree on. */
#ifndef TEGULA_MOE_NORMALIZE_WEIGHT_H
#define TEGULA_MOE_NORMALIZE_WEIGHT_H

#include "numerics/base.h"

#define NORMALIZE_EPSILON 1e-20f /* initial value of a sum, so that rows of zeros are not divided by 0 */

/* No threshold here has a measurement on record.
 *
 * normalize_weight: rows that fit in a warp; normalize_weight_wide takes longer ones. Blocks get a second
 * warp only once there are NORMALIZE_BLOCKS of them, about one per SM. */
#define NORMALIZE_MAX_TOPK 32
#define NORMALIZE_BLOCKS 128
#define NORMALIZE_MAX_WARPS 16

/* normalize_weight_vectors: max length of rows of whole vectors. From NORMALIZE_MANY_TOKENS on a lane divides
 * NORMALIZE_MANY_ELEMENTS elements instead of one. */
#define NORMALIZE_VECTORS_TOPK 16
#define NORMALIZE_MANY_TOKENS 8192
#define NORMALIZE_MANY_ELEMENTS 4

/* normalize_weight_wide: rows per block, one per warp. */
#define NORMALIZE_WIDE_WARPS 4

typedef struct {
    const float *weights;
    float *denominator, *normalized;
    int64_t num_tokens, row_stride;
    int64_t num_topk; /* a macro in all kernels but the wide one */
} normalize_weight_args;

#endif
