/* SPDX-License-Identifier: MIT
 * split_sinkhorn_bwd.h - what the kernel of split_sinkhorn_bwd and the code that launches it agree on. */
#ifndef TEGULA_MHC_SPLIT_SINKHORN_BWD_H
#define TEGULA_MHC_SPLIT_SINKHORN_BWD_H

#include "mhc/common/gates.h"
#include "mhc/sinkhorn_bwd.h"

typedef struct {
    gates_bwd_args gates;        /* of three groups; the last gradient that arrives is that of comb */
    int32_t repeat, has_vectors; /* rows of mixes, of base and of comb's gradient can be read in vectors */
    float eps;
} split_sinkhorn_bwd_args;

/* Tokens of a chunk that go through Sinkhorn at a time: all, if the factors that are kept for them leave room. */
#define SPLIT_SINKHORN_BWD_TOKENS(streams) ((streams) <= 4 ? GATES_CHUNK : GATES_CHUNK / 2)

/* Of a block: one for every strand, but not so many that a token's steps have too few registers. */
#define SPLIT_SINKHORN_BWD_THREADS(streams) ((streams) <= 5 ? GATES_BWD_THREADS((streams) * ((streams) + 2)) : 256)

/* Bytes of shared memory: the factors, later the sums of chunks. */
TGL_INLINE int64_t split_sinkhorn_bwd_bytes(int32_t streams, int32_t repeat)
{
    const int64_t factors = (int64_t)sinkhorn_bwd_slots(repeat) * 2 * streams * SPLIT_SINKHORN_BWD_TOKENS(streams) * 4;
    const int64_t sums = GATES_CHUNK_STRANDS * 2 * gates_columns(streams, 3) * 8;
    return factors > sums ? factors : sums;
}

#endif
