/* SPDX-License-Identifier: MIT
 * pre_apply_mix_fwd.h - what the kernel of pre_apply_mix_fwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_PRE_APPLY_MIX_FWD_H
#define TEGULA_MHC_PRE_APPLY_MIX_FWD_H

#include "mhc/common/rows.h"

typedef struct {
    rows_in x;
    const float *mix; /* [num_tokens, num_streams], packed */
    rows_out out;
    int64_t num_tokens, num_streams, hidden;
    int32_t has_mix_vectors;
} pre_apply_mix_fwd_args;

#endif
