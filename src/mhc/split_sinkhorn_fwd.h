/* SPDX-License-Identifier: MIT
 * split_sinkhorn_fwd.h - what the kernel of split_sinkhorn_fwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_SPLIT_SINKHORN_FWD_H
#define TEGULA_MHC_SPLIT_SINKHORN_FWD_H

#include "mhc/common/gates.h"
#include "mhc/sinkhorn_fwd.h"

typedef struct {
    gates_fwd_args gates;        /* of three groups; the last is written as comb, not as logits */
    int32_t repeat, has_vectors; /* rows of mixes, of base and of comb can be read in vectors (16 bytes) */
    float eps;
} split_sinkhorn_fwd_args;

#endif
