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
    float *gates[3]; /* pre_mix, post_mix, comb_mix; each NULL: not wanted */
    rows_out out;
    int64_t num_tokens, num_streams, hidden;
    int64_t gate_rows;                          /* rows of the grid whose blocks make gates */
    int32_t num_groups, num_rows, repeat, tile; /* tile: tokens of such a block */
    int32_t slice;                              /* units of a block's columns in shared memory */
    float columns, rms_eps, sinkhorn_eps;       /* columns: num_streams * hidden */
    gates_numbers numbers;
} pre_finish_fwd_args;

#define PRE_FINISH_THREADS 256
#define PRE_FINISH_TILE 32           /* tokens of a block that makes gates, max */
#define PRE_FINISH_SLICE 32768       /* bytes of a block's columns in shared memory, max */
#define PRE_FINISH_SLICE_THREADS 128 /* of such a block, max */

/* The sum of row j of token t; of its squares, if j is the number of rows. */
TGL_INLINE float pre_finish_sum(const pre_finish_fwd_args *a, int64_t t, int j, int rows)
{
    const float *const from = j < rows ? a->in.out_mul + t * rows + j : a->in.sqrsum + t;
    return partials_sum(from, j < rows ? a->num_tokens * rows : a->num_tokens, a->in.num_splits);
}
/* A gate, or a logit of comb; r: the token's factor. */
TGL_INLINE float pre_finish_gate(const pre_finish_fwd_args *a, int j, int n, float sum, float r)
{
    const int group = gates_group(j, n);
    return gates_of(&a->numbers, group, mhc_logit(sum * r, a->scale[group], a->base[j]));
}

#endif
