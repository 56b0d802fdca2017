/* SPDX-License-Identifier: MIT
 * shape.h - launch shapes that several ops have. */
#ifndef TEGULA_MOE_SHAPE_H
#define TEGULA_MOE_SHAPE_H

#include "core/math.h"
#include "cuda/launch.h"
#include "moe/common/token_warps.h"

/* A warp per token. Few tokens spread over all SMs; with many, the rate of block starts is the limit.
 * Measured with topk_gate, 256 experts, on an H200 (2026-11). */
static inline tgl_shape tgl_shape_of_tokens(int64_t num_tokens)
{
    const int warps = num_tokens <= TOKEN_FEW ? 1 : num_tokens <= TOKEN_SOME ? 4 : TOKEN_BLOCK_WARPS;
    return (tgl_shape){ { tgl_ceil_div(num_tokens, warps) }, .block = 32 * warps };
}

/* The launch shapes of an op with a warp per token, and of its wide kernel, with a block per token. */
#define TGL_TOKEN_SHAPES(problem, wide_threads)                                                \
    static tgl_shape warps_shape(void *context, const tgl_target *target)                      \
    {                                                                                          \
        const problem *p = context;                                                            \
        return tgl_shape_with(tgl_shape_of_tokens(p->num_tokens), p, sizeof *p);               \
    }                                                                                          \
    static tgl_shape wide_shape(void *context, const tgl_target *target)                       \
    {                                                                                          \
        const problem *p = context;                                                            \
        return tgl_shape_with(tgl_shape_of_blocks(p->num_tokens, wide_threads), p, sizeof *p); \
    }

#endif
