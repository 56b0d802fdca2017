/* SPDX-License-Identifier: MIT
 * topk_gate.h - what host and kernels of topk_gate agree on. */
#ifndef TEGULA_MOE_TOPK_GATE_H
#define TEGULA_MOE_TOPK_GATE_H

#include "moe/common/token_warps.h"
#include "numerics/base.h"

#define TOPK_GATE_MAX_EXPERTS 1024 /* a lane holds 32 keys; more: topk_gate_wide */
#define TOPK_GATE_MAX_TOPK 32      /* a lane holds a pick */
#define TOPK_GATE_WIDE_THREADS 256 /* per block, which has one token */

typedef struct {
    const float *scores;
    void *topk_idx; /* of index_bytes */
    int64_t num_tokens, row_stride;
    uint32_t num_experts, num_topk;
    int32_t index_bytes; /* a macro in kernels, as is num_topk in all but the wide one */
} topk_gate_args;

#endif
