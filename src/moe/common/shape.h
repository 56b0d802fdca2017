/* SPDX-License-Identifier: MIT
 * shape.h - launch shapes that several ops have. */
#ifndef TEGULA_MOE_SHAPE_H
#define TEGULA_MOE_SHAPE_H

#include "core/math.h"
#include "cuda/launch.h"
#include "moe/common/token_warps.h"

/* A warp per token. Few tokens spread over all SMs; with many, the rate of block starts is the limit.
 * Measured with topk_gate, 256 experts, on an H200. */
static inline tgl_shape tgl_shape_of_tokens(int64_t num_tokens)
{
    const int warps = num_tokens <= TOKEN_FEW ? 1 : num_tokens <= TOKEN_SOME ? 4 : TOKEN_BLOCK_WARPS;
    return (tgl_shape){ { tgl_ceil_div(num_tokens, warps) }, .block = 32 * warps };
}

#endif
