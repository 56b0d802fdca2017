/* SPDX-License-Identifier: MIT
 * pre_apply_mix_bwd.h - what the kernel of pre_apply_mix_bwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_PRE_APPLY_MIX_BWD_H
#define TEGULA_MHC_PRE_APPLY_MIX_BWD_H

#include "mhc/common/rows.h"

typedef struct {
    rows_in grad_out, x;
    const float *mix;
    rows_out grad_x; /* added to if `accumulate` */
    float *grad_mix;
    int64_t num_tokens, num_streams, hidden;
    int32_t accumulate, has_mix_vectors;
} pre_apply_mix_bwd_args;

#endif
