/* SPDX-License-Identifier: MIT
 * pre_finish_fwd.h - what the kernel of pre_finish_fwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_PRE_FINISH_FWD_H
#define TEGULA_MHC_PRE_FINISH_FWD_H

#include "mhc/common/gates.h"
#include "mhc/common/partials.h"
#include "mhc/common/projection.h"

typedef struct {
    partials in;
    rows_in residual;
    const float *scale, *base;
    float *gates[3];                        /* pre_mix, post_mix, comb_mix; each NULL: not wanted */
    rows_out out;
    int64_t num_tokens, num_streams, hidden;
    int32_t num_groups, num_rows, repeat, tile;     /* tokens of a block */
    float columns, rms_eps, sinkhorn_eps;   /* columns: num_streams * hidden */
    gates_numbers numbers;
} pre_finish_fwd_args;

/* Most tokens of a block: rows of their logits are the lanes of a warp. Sinkhorn takes as long for all as for one. */
#define PRE_FINISH_TILE 4

/* The sum of row j of token t; of its squares, if j is the number of rows. */
TGL_INLINE float pre_finish_sum(const pre_finish_fwd_args *a, int64_t t, int j, int rows)
{
    return j < rows ? partials_sum(a->in.out_mul + t * rows + j, a->num_tokens * rows, a->in.num_splits)
                    : partials_sum(a->in.sqrsum + t, a->num_tokens, a->in.num_splits);
}
/* A gate, or a logit of comb; r: the token's factor. */
TGL_INLINE float pre_finish_gate(const pre_finish_fwd_args *a, int j, int n, float sum, float r)
{
    const int group = gates_group(j, n);
    return gates_of(&a->numbers, group, mhc_logit(sum * r, a->scale[group], a->base[j]));
}

#endif
