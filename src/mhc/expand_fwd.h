/* SPDX-License-Identifier: MIT
 * expand_fwd.h - what the kernel of expand_fwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_EXPAND_FWD_H
#define TEGULA_MHC_EXPAND_FWD_H

#include "mhc/common/rows.h"

/* Bits are copied: strides and columns are of 2 bytes, whatever the dtype. */
typedef struct {
    rows_in x;
    rows_out out;
    int64_t num_tokens, num_streams, columns;
} expand_fwd_args;

#endif
