/* SPDX-License-Identifier: MIT
 * norm_fn_bwd.h - what the CPU loop, the host and the kernel of norm_fn_bwd agree on. */
#ifndef TEGULA_MHC_NORM_FN_BWD_H
#define TEGULA_MHC_NORM_FN_BWD_H

#include "mhc/common/projection.h"

typedef struct {
    const float *grad_mixes, *fn, *norm_weight, *out_mul, *sqrsum; /* norm_weight NULL: no gain */
    rows_in residual;
    rows_out grad_residual;            /* added to if `accumulate` */
    float *grad_fn, *grad_norm_weight; /* the latter: NULL: not wanted */
    int64_t num_tokens, num_streams, hidden, num_rows;
    int64_t num_groups, group;       /* of tokens that are summed in order; tokens of each but the last */
    uint32_t *arrived;               /* of each slice of columns: blocks; 0 before and after */
    float *partial;                  /* [num_groups][num_rows][columns]; 0 before and after */
    float columns, eps, eps_columns; /* the last: eps * columns */
    int32_t accumulate, has_weight;  /* the latter also without data, before kernels are compiled ahead */
} norm_fn_bwd_args;

#define NORM_FN_BWD_THREADS 256
#define NORM_FN_BWD_COLUMNS 128      /* of a block, in one stream */
#define NORM_FN_BWD_TOKENS 64        /* at a time */
#define NORM_FN_BWD_GROUPS 8         /* of tokens, at most */
#define NORM_FN_BWD_GROUP_TOKENS 512 /* of a group, at least; no measurement is on record */

#define NORM_FN_BWD_LANES 8 /* rows of a token that are summed apart */

/* The ring, two blocks an SM. Tiles of 16 tokens in 6 stages were 1.3 times as slow on an H200 (2026-11), 4096 x
 * 7168. */
#define NORM_FN_BWD_RING_THREADS 256 /* 8 warps of 32 columns */
#define NORM_FN_BWD_RING_COLUMNS 256
#define NORM_FN_BWD_RING_TOKENS 32
#define NORM_FN_BWD_RING_STAGES 3
#define NORM_FN_BWD_AT_ONCE 264  /* blocks: two for each of 132 SMs */
#define NORM_FN_BWD_RING_ROWS 32 /* of fn, at most: sums over tokens are in registers */

/* Of a prepared token: dmul, padded with zeros to whole steps of 8 rows; 32-bit words, 8 or 24 mod 32, and 16-bit ones,
 * an odd multiple of 8, so that tokens of a fragment lie in different banks. */
#define NORM_FN_BWD_PADDED(rows) (((rows) + 7) / 8 * 8)
#define NORM_FN_BWD_DMUL_STRIDE(rows) (NORM_FN_BWD_PADDED(rows) / 16 * 16 + 8)
#define NORM_FN_BWD_PARTS_STRIDE(rows) (2 * NORM_FN_BWD_PADDED(rows) + 8)
#define NORM_FN_BWD_RING_BYTES(rows, accumulate)                                                             \
    (NORM_FN_BWD_RING_STAGES * (1 + (accumulate)) * NORM_FN_BWD_RING_TOKENS * NORM_FN_BWD_RING_COLUMNS * 2 + \
     2 * NORM_FN_BWD_RING_TOKENS * (4 * NORM_FN_BWD_DMUL_STRIDE(rows) + 2 * NORM_FN_BWD_PARTS_STRIDE(rows) + 4))

/* A token's share: dmul[j] = tf32(grad_mixes[j] * r); slope = -dr * r / (sqrsum + eps * columns), twice the
 * gradient of sqrsum; dr is the sum of grad_mixes[j] * out_mul[j]: rows of equal j mod 8 by fma, in order, then those 8
 * as a tree. */
TGL_INLINE float norm_fn_lane_tree(const float v[NORM_FN_BWD_LANES])
{
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}
TGL_INLINE float norm_fn_slope(float dr, float r, float sqrsum, float eps_columns)
{
    return -dr * r / (sqrsum + eps_columns);
}
/* products: the sum over rows of dmul * fn */
TGL_INLINE float norm_fn_grad(float old, float products, float x, float slope)
{
    return tgl_fma(x, slope, old + products);
}

#endif
