/* SPDX-License-Identifier: MIT
 * swiglu_backward_and_per_token_cast.h - what swiglu_backward_and_per_token_cast.c and its kernels agree
 * on. */
#ifndef TEGULA_QUANT_SWIGLU_BACKWARD_AND_PER_TOKEN_CAST_H
#define TEGULA_QUANT_SWIGLU_BACKWARD_AND_PER_TOKEN_CAST_H

#include "quant/common/scale.h"

#define BACKWARD_VECTOR 8           /* columns of a lane in a step */
#define BACKWARD_STEP 256           /* columns of a warp in a step */
#define BACKWARD_WARPS 7            /* of a row, if warps loop over its steps: at most, ... */
#define BACKWARD_ROUNDS 4           /* ... and each has at least so many steps, to load one while it computes another */
#define BACKWARD_MAX_STEPS 23       /* of a row, if each step has a warp; one more warp adds up their sums */
#define BACKWARD_FEW 28             /* steps have a warp each if an SM has at most so many (H200, November 2026) */
#define BACKWARD_MAX_BLOCK 256      /* columns of a factor: not more than a step */
#define BACKWARD_ANY_BLOCKS 16      /* per SM, if blocks loop over rows: several times what an SM holds */
#define BACKWARD_SLOTS 1024         /* of weight_grad that a block clears */

/* The arguments of all kernels, in the order of their use, as few rows wait for every line of them. num_rows
 * and num_cols are those of out. */
typedef struct {
    int64_t clearing_blocks;            /* the first blocks clear weight_grad where no row stores it */
    const int32_t *pos_to_token_topk;
    int64_t num_cols;
    const uint8_t *x;
    int64_t x_row_bytes;                /* from a row to the next */
    const uint16_t *grad_out;           /* bf16 */
    int64_t grad_stride;                /* elements from a row to the next */
    tgl_sf x_sf;
    int64_t num_blocks;                 /* factors of a half of a row */
    const float *weight;
    int64_t num_weights;
    float clamp;
    uint16_t *out, *x_grad;             /* bf16 */
    uint8_t *x_grad_fp8;
    tgl_sf sf;                          /* of x_grad_fp8: the gates' columns, then the ups' */
    const int32_t *token_topk_to_pos;
    float *weight_grad;
    int64_t sum_warps;                  /* which the order of a row's sum counts on */
    int64_t num_rows;
    int64_t block_cols;                 /* of a factor */
} backward_args;

#endif
