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

/* Up to so many tokens a thread has two: 3.4 us instead of 3.8 for 128 of 7168 columns; with 4096 tokens 1 % slower
 * (H200, 2026-11); of sizes between them there is no measurement on record. Blocks are small then, so that SMs have
 * equal shares. */
#define EXPAND_FWD_FEW_TOKENS 512
#define EXPAND_FWD_FEW_THREADS 64

#endif
