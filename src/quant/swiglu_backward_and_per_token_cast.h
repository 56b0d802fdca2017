/* SPDX-License-Identifier: MIT
 * swiglu_backward_and_per_token_cast.h - thresholds and arguments of swiglu_backward_and_per_token_cast, for
 * host and kernels. */
#ifndef TEGULA_QUANT_SWIGLU_BACKWARD_AND_PER_TOKEN_CAST_H
#define TEGULA_QUANT_SWIGLU_BACKWARD_AND_PER_TOKEN_CAST_H

#include "quant/common/scale.h"

#define BACKWARD_VECTOR 8      /* columns of a lane in a step */
#define BACKWARD_STEP 256      /* columns of a warp in a step */
#define BACKWARD_WARPS 7       /* of a row, at most, if warps loop over steps, */
#define BACKWARD_ROUNDS 4      /* each over at least so many, to load one while it computes another */
#define BACKWARD_MAX_STEPS 23  /* of a row, if each step has a warp; one more warp adds up their sums */
#define BACKWARD_FEW 28        /* steps per SM, at most, if each has a warp (H200, 2026-11) */
#define BACKWARD_MAX_BLOCK 256 /* columns of a factor: not more than a step */
#define BACKWARD_ANY_BLOCKS 16 /* per SM, if blocks loop over rows: several times as many as fit */
#define BACKWARD_SLOTS 1024    /* of weight_grad that a block clears */

/* The arguments of all kernels, in the order of use: if rows are few, every line is a wait. num_rows and
 * num_cols are those of out. */
typedef struct {
    int64_t clearing_blocks; /* the first blocks clear weight_grad where no row stores it */
    const int32_t *pos_to_token_topk;
    int64_t num_cols;
    const uint8_t *x;
    int64_t x_row_bytes;      /* row stride */
    const uint16_t *grad_out; /* bf16 */
    int64_t grad_stride;      /* row stride in elements */
    tgl_sf x_sf;
    int64_t num_blocks; /* factors of a half of a row */
    const float *weight;
    int64_t num_weights;
    float clamp;
    uint16_t *out, *x_grad; /* bf16 */
    uint8_t *x_grad_fp8;
    tgl_sf sf; /* of x_grad_fp8: columns of gates, then of ups */
    const int32_t *token_topk_to_pos;
    float *weight_grad;
    int64_t sum_warps; /* decides the order of a row's sum */
    int64_t num_rows;
    int64_t block_cols; /* of a factor */
} backward_args;

#endif
