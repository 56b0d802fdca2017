/* SPDX-License-Identifier: MIT
 * token_warps.h - warps per block in kernels with a warp per token (tgl_shape_of_tokens). */
#ifndef TEGULA_MOE_TOKEN_WARPS_H
#define TEGULA_MOE_TOKEN_WARPS_H

#define TOKEN_BLOCK_WARPS 8 /* max */
#define TOKEN_FEW 512       /* up to this many tokens: 1 warp */
#define TOKEN_SOME 2048     /* up to this many: 4 warps */

#endif
