/* SPDX-License-Identifier: MIT
 * post_fwd.h - what the kernel of post_fwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_POST_FWD_H
#define TEGULA_MHC_POST_FWD_H

#include "mhc/common/rows.h"

typedef struct {
    rows_in x, residual;
    const float *post_mix, *comb_mix; /* [num_tokens, num_streams], [num_tokens, num_streams^2], packed */
    int32_t has_comb;                 /* its data may be missing while kernels are prepared */
    rows_out out;
    int64_t num_tokens, num_streams, hidden;
    int32_t has_mix_vectors;
} post_fwd_args;

/* Without comb: of stream x. */
TGL_INLINE float post_alone(float gate, float y, float x) { return gate * y + x; }

#endif
