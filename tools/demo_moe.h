/* SPDX-License-Identifier: MIT
 * demo_moe.h - what the two MoE parts of `tegula demo` share: tensors on one device, and routing. */
#ifndef TEGULA_DEMO_MOE_H
#define TEGULA_DEMO_MOE_H

#include "core/dtype.h"
#include "core/status.h"
#include "demo.h"
#include "tegula/moe.h"

enum {
    /* of the routing */
    LOGITS, BIAS, MASK, TOPK_IDX, TOPK_WEIGHTS, POS_TO_EXPERT, POS_TO_TOKEN, POS_TO_TOKEN_TOPK,
    TOKEN_TOPK_TO_POS, EXPERT_START, EXPERT_END, NUM_TOKENS_PER_EXPERT,
    /* of the tokens: x, its codes, rows of experts, gates and ups, activation, results, their sums */
    X, X_FP8, X_SF, ROWS, ROWS_SF, PRODUCT_SF, GATES_UPS, ACT, ACT_SF, PLACES, PARTED, PARTED_SF, RESULTS, OUT,
    NUM_TENSORS
};

typedef struct {
    const backend *on;
    int64_t num_tokens, num_padding, num_experts, num_topk, hidden, intermediate, alignment, num_positions;
    tgl_moe_gate_params gate;
    DLTensor tensor[NUM_TENSORS];
    int64_t shape[NUM_TENSORS][2];
    tgl_moe_mapping mapping;
    void *workspace;
    size_t workspace_bytes;
} moe_block;

/* With the tensors of the routing; the others are added. Closed also where opening failed. */
tgl_status moe_block_open(moe_block *b);
void moe_block_close(moe_block *b);
tgl_status moe_block_add(moe_block *b, int i, tgl_dtype dtype, int64_t rows, int64_t cols);  /* cols 0: 1-D */

size_t moe_block_bytes(const moe_block *b, int i);
tgl_status moe_block_upload(const moe_block *b, int i, const void *from);
tgl_status moe_block_download(const moe_block *b, int i, void *to);

tgl_status moe_block_route(void *block);

#endif
