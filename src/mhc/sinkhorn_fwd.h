/* SPDX-License-Identifier: MIT
 * sinkhorn_fwd.h - what the kernel of sinkhorn_fwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_SINKHORN_FWD_H
#define TEGULA_MHC_SINKHORN_FWD_H

#include "mhc/common/mhc.h"

/* Of a block. A token's steps are a thread: they depend on each other, and there are fewer tokens than a GPU has lanes.
 * So a block has few tokens, and blocks spread over all schedulers; their rows of logits have a warp each. */
#define MHC_SINKHORN_TOKENS 32
#define MHC_SINKHORN_THREADS(streams) (MHC_SINKHORN_TOKENS * (streams))

typedef struct {
    const float *x;
    float *out;
    int64_t num_tokens;
    int32_t num_streams, repeat, has_vectors; /* rows of x and out can be read in vectors (16 bytes) */
    float eps;
} sinkhorn_fwd_args;

#endif
