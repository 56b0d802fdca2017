/* SPDX-License-Identifier: MIT
 * expand_bwd.h - what the kernel of expand_bwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_EXPAND_BWD_H
#define TEGULA_MHC_EXPAND_BWD_H

#include "mhc/common/rows.h"

typedef struct {
    rows_in grad_out;
    rows_out grad_x;
    int64_t num_tokens, num_streams, hidden;
} expand_bwd_args;

#endif
