/* SPDX-License-Identifier: MIT
 * normalize_weight.h - what the kernels of normalize_weight and the code that launches them agree on. */
#ifndef TEGULA_MOE_NORMALIZE_WEIGHT_H
#define TEGULA_MOE_NORMALIZE_WEIGHT_H

#define NORMALIZE_EPSILON 1e-20f    /* a sum begins with it, so that rows of zeros divide by more than zero */

/* normalize_weight: rows, and threads, of a block. 64 spreads few tokens over many SMs and still fills an SM,
 * which holds 32 blocks. Rows of more than NORMALIZE_MAX_TOPK are normalize_weight_wide's. */
#define NORMALIZE_ROWS 64
#define NORMALIZE_MAX_TOPK 64

/* Whole vectors, and so few that a warp's loads find the lines of the loads before them in L1. */
#define NORMALIZE_HAS_VECTORS(num_topk) ((num_topk) % 4 == 0 && (num_topk) <= 16)

/* normalize_weight_wide: warps, and rows, of a block. */
#define NORMALIZE_WIDE_WARPS 4

#endif
