/* SPDX-License-Identifier: MIT
 * topk_gate.h - limits that the kernels of topk_gate and the code that launches them share. */
#ifndef TEGULA_MOE_TOPK_GATE_H
#define TEGULA_MOE_TOPK_GATE_H

#define TOPK_GATE_WARPS 8               /* of a block, at most; a warp has a token */
#define TOPK_GATE_MAX_EXPERTS 1024      /* a lane holds 32 keys; beyond: topk_gate_wide */
#define TOPK_GATE_MAX_TOPK 32           /* a lane holds a pick */
#define TOPK_GATE_WIDE_THREADS 256      /* of a block, which has a token */

#endif
