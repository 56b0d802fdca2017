/* SPDX-License-Identifier: MIT
 * norm_fn_bwd.h - what the CPU loop, the host and the kernel of norm_fn_bwd agree on. */
#ifndef TEGULA_MHC_NORM_FN_BWD_H
#define TEGULA_MHC_NORM_FN_BWD_H

#include "mhc/common/projection.h"

typedef struct {
    const float *grad_mixes, *fn, *norm_weight, *out_mul, *sqrsum;      /* norm_weight NULL: no gain */
    rows_in residual;
    rows_out grad_residual;                 /* added to if `accumulate` */
    float *grad_fn, *grad_norm_weight;      /* the latter: NULL: not wanted */
    int64_t num_tokens, num_streams, hidden, num_rows;
    int64_t num_groups, group;              /* of tokens that are summed in order; tokens of each but the last */
    uint32_t *arrived;                      /* of each slice of columns: blocks; 0 before and after */
    float *partial;                         /* [num_groups][num_rows][columns]; 0 before and after */
    float columns, eps;
    int32_t accumulate;
} norm_fn_bwd_args;

#define NORM_FN_BWD_THREADS 256
#define NORM_FN_BWD_COLUMNS 128             /* of a block, in one stream */
#define NORM_FN_BWD_TOKENS 64               /* at a time */
#define NORM_FN_BWD_GROUPS 8                /* of tokens, at most */

/* A token's share: dmul[j] = tf32(grad_mixes[j] * r), ds = -(sum of grad_mixes[j] * out_mul[j], by fma in order) / 2 *
 * r / (sqrsum + eps * columns). */
TGL_INLINE float norm_fn_slope(float dr, float r, float sqrsum, float columns, float eps)
{
    return -0.5f * dr * r / (sqrsum + eps * columns);
}
/* products: the sum over rows of dmul * fn */
TGL_INLINE float norm_fn_grad(float old, float products, float x, float ds)
{
    return tgl_fma(2.0f * x, ds, old + products);
}

#endif
