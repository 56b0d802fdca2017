/* SPDX-License-Identifier: MIT
 * expand_bwd.h - what the kernel of expand_bwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_EXPAND_BWD_H
#define TEGULA_MHC_EXPAND_BWD_H

#include "mhc/common/rows.h"

/* GRAD_TYPE: the dtype of both tensors. */
#define EXPAND_BF16 0
#define EXPAND_F16 1
#define EXPAND_F32 2

/* Strides and columns are of 2 bytes: of f32, a number is two columns. */
typedef struct {
    rows_in grad_out;
    rows_out grad_x;
    int64_t num_tokens, num_streams, columns;
    int grad_type;
} expand_bwd_args;

#endif
