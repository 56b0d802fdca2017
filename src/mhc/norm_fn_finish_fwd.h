/* SPDX-License-Identifier: MIT
 * norm_fn_finish_fwd.h - what the kernel of norm_fn_finish_fwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_NORM_FN_FINISH_FWD_H
#define TEGULA_MHC_NORM_FN_FINISH_FWD_H

#include "mhc/common/partials.h"
#include "mhc/common/projection.h"

typedef struct {
    partials in;
    float *mixes, *out_mul, *sqrsum; /* the last two: NULL: not wanted */
    int64_t num_tokens, num_rows;
    float columns, eps;
} norm_fn_finish_fwd_args;

#define NORM_FN_FINISH_THREADS 256

/* Row k % rows of token k / rows. Squares are added by every row. */
TGL_INLINE void norm_fn_finish_row(const norm_fn_finish_fwd_args *a, int64_t k, int rows)
{
    const int64_t t = k / rows;
    const float sum = partials_sum(a->in.out_mul + k, a->num_tokens * rows, a->in.num_splits);
    const float squares = partials_sum(a->in.sqrsum + t, a->num_tokens, a->in.num_splits);
    a->mixes[k] = tgl_one_nan(sum * projection_rms(squares, a->columns, a->eps));
    if (a->out_mul) a->out_mul[k] = tgl_one_nan(sum);
    if (a->sqrsum && k % rows == 0) a->sqrsum[t] = tgl_one_nan(squares);
}

#endif
