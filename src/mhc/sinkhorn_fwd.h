/* SPDX-License-Identifier: MIT
 * sinkhorn_fwd.h - what the kernel of sinkhorn_fwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_SINKHORN_FWD_H
#define TEGULA_MHC_SINKHORN_FWD_H

#include "mhc/common/mhc.h"

/* A token is a thread: steps depend on each other, and there are fewer tokens than a GPU has lanes. So a block is a
 * warp, and spreads over all schedulers. */
#define MHC_SINKHORN_THREADS 32

typedef struct {
    const float *x;
    float *out;
    int64_t num_tokens;
    int32_t num_streams, repeat, has_vectors;   /* rows of x and out can be read in vectors (16 bytes) */
    float eps;
} sinkhorn_fwd_args;

#endif
