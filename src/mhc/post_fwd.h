/* SPDX-License-Identifier: MIT
 * post_fwd.h - what the kernel of post_fwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_POST_FWD_H
#define TEGULA_MHC_POST_FWD_H

#include "mhc/common/rows.h"

typedef struct {
    rows_in x, residual;
    const float *post_mix, *comb_mix;       /* [num_tokens, num_streams], [num_tokens, num_streams^2], packed */
    rows_out out;
    int64_t num_tokens, num_streams, hidden;
    int32_t has_mix_vectors;
} post_fwd_args;

#endif
