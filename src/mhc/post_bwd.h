/* SPDX-License-Identifier: MIT
 * post_bwd.h - what the kernel of post_bwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_POST_BWD_H
#define TEGULA_MHC_POST_BWD_H

#include "mhc/common/rows.h"

typedef struct {
    rows_in grad_out, x, residual;
    const float *post_mix, *comb_mix;
    int32_t has_comb; /* else residual, grad_residual and grad_comb_mix are missing, too */
    rows_out grad_x, grad_residual;
    float *grad_post_mix, *grad_comb_mix;
    int64_t num_tokens, num_streams, hidden;
    int32_t has_mix_vectors;
} post_bwd_args;

#endif
