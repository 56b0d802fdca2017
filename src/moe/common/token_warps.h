/* SPDX-License-Identifier: MIT
 * token_warps.h - warps of a block whose warps have a token each (tgl_shape_of_tokens). */
#ifndef TEGULA_MOE_TOKEN_WARPS_H
#define TEGULA_MOE_TOKEN_WARPS_H

#define TOKEN_BLOCK_WARPS 8             /* at most */
#define TOKEN_FEW 512                   /* up to so many tokens: one */
#define TOKEN_SOME 2048                 /* up to so many: 4 */

#endif
