/* SPDX-License-Identifier: MIT
 * norm_fn_fwd.h - what the kernel of norm_fn_fwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_NORM_FN_FWD_H
#define TEGULA_MHC_NORM_FN_FWD_H

#include "mhc/common/projection.h"

typedef struct {
    rows_in residual;
    const float *fn, *norm_weight;          /* [num_rows, num_streams * hidden], packed; NULL: no gain */
    float *mixes, *out_mul, *sqrsum;        /* the last two: NULL: not wanted */
    int64_t num_tokens, num_streams, hidden, num_rows;
    int64_t pieces;
    uint32_t *arrived;                      /* of each tile of tokens: blocks; 0 before and after */
    float *partial;                         /* [num_tokens][groups][num_rows + 1]; 0 before and after */
    int32_t segments;
    float columns, eps;                     /* num_streams * hidden */
} norm_fn_fwd_args;

/* A warp has a chunk of 8 * NORM_FN_TILES tokens, a block those of a segment. So that a block fits, fewer tokens if
 * there are many warps. */
#define NORM_FN_TILES(streams) ((streams) <= 4 ? 4 : 2)     /* 8 took 148 us on an H200, 4 138 (4096 x 7168) */
#define NORM_FN_TOKENS(streams) (8 * NORM_FN_TILES(streams))
#define NORM_FN_PASS 3                      /* tiles of 8 rows of fn at a time */
/* Chunks of a segment that are a subtree, and such groups in a segment. */
#define NORM_FN_GROUP(streams) (2 * ((streams) & -(streams)))
#define NORM_FN_GROUPS(streams) (2 * (streams) / NORM_FN_GROUP(streams))
#define NORM_FN_SHARED_BYTES(streams) (2 * (streams) * NORM_FN_TOKENS(streams) * (8 * NORM_FN_PASS + 1) * 4)

#endif
