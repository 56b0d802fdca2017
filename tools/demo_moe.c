/* SPDX-License-Identifier: MIT
 * demo_moe.c - four tokens routed over two experts, to look at; and the tensors and the routing that this
 * shares with demo_block.c. */
#include "demo_moe.h"

#include <math.h>
#include <stdio.h>

/* ---- tensors of a block, all on one device ---- */

size_t moe_block_bytes(const moe_block *b, int i)
{
    const DLTensor *t = &b->tensor[i];
    return (size_t)(t->shape[0] * (t->ndim == 2 ? t->shape[1] : 1) * ((t->dtype.bits + 7) / 8));
}

tgl_status moe_block_add(moe_block *b, int i, tgl_dtype dtype, int64_t rows, int64_t cols)
{
    b->shape[i][0] = rows;
    b->shape[i][1] = cols;
    b->tensor[i] = (DLTensor){ .device = b->on->device, .ndim = cols ? 2 : 1,
                               .dtype = tgl_dtype_to_dlpack(dtype), .shape = b->shape[i] };
    return backend_alloc(b->on, moe_block_bytes(b, i), &b->tensor[i].data);
}

tgl_status moe_block_upload(const moe_block *b, int i, const void *from)
{
    return backend_upload(b->on, b->tensor[i].data, from, moe_block_bytes(b, i));
}

tgl_status moe_block_download(const moe_block *b, int i, void *to)
{
    return backend_download(b->on, to, b->tensor[i].data, moe_block_bytes(b, i));
}

void moe_block_close(moe_block *b)
{
    for (int i = 0; i < NUM_TENSORS; i++)
        if (b->tensor[i].data) backend_free(b->on, b->tensor[i].data);
    if (b->workspace) backend_free(b->on, b->workspace);
}

tgl_status moe_block_open(moe_block *b)
{
    const int64_t t = b->num_tokens, e = b->num_experts, k = b->num_topk;
    const int64_t n = b->num_positions = t * k + (b->alignment - 1) * e;
    DLTensor *at = b->tensor;
    TGL_TRY(moe_block_add(b, LOGITS, TGL_F32, t, e));
    TGL_TRY(moe_block_add(b, BIAS, TGL_F32, e, 0));
    TGL_TRY(moe_block_add(b, MASK, TGL_BOOL, t, 0));
    TGL_TRY(moe_block_add(b, TOPK_IDX, TGL_I64, t, k));
    TGL_TRY(moe_block_add(b, TOPK_WEIGHTS, TGL_F32, t, k));
    for (int i = POS_TO_EXPERT; i <= POS_TO_TOKEN_TOPK; i++) TGL_TRY(moe_block_add(b, i, TGL_I32, n, 0));
    TGL_TRY(moe_block_add(b, TOKEN_TOPK_TO_POS, TGL_I32, t, k));
    for (int i = EXPERT_START; i <= NUM_TOKENS_PER_EXPERT; i++)
        TGL_TRY(moe_block_add(b, i, TGL_I32, e, 0));
    b->mapping = (tgl_moe_mapping){
        .pos_to_expert = &at[POS_TO_EXPERT],
        .pos_to_token = &at[POS_TO_TOKEN],
        .pos_to_token_topk = &at[POS_TO_TOKEN_TOPK],
        .token_topk_to_pos = &at[TOKEN_TOPK_TO_POS],
        .expert_start = &at[EXPERT_START],
        .expert_end = &at[EXPERT_END],
        .num_tokens_per_expert = &at[NUM_TOKENS_PER_EXPERT],
    };
    b->workspace_bytes = tgl_moe_route_workspace_size(&at[LOGITS], &at[TOPK_IDX], &b->mapping);
    if (b->workspace_bytes == 0) return TGL_OK;
    TGL_TRY(backend_alloc(b->on, b->workspace_bytes, &b->workspace));
    return tgl_workspace_init(b->workspace, b->workspace_bytes, b->on->stream);
}

tgl_status moe_block_route(void *block)
{
    moe_block *b = block;
    DLTensor *at = b->tensor;
    return tgl_moe_route(&at[LOGITS], &at[BIAS], &at[MASK], NULL, NULL, NULL, NULL, &at[TOPK_IDX],
                         &at[TOPK_WEIGHTS], &b->mapping, b->alignment, &b->gate, b->workspace,
                         b->workspace_bytes, b->on->stream);
}

/* ---- four tokens, two experts ---- */

enum { TOKENS = 4, EXPERTS = 2, PADDED = 2, POSITIONS = TOKENS + (PADDED - 1) * EXPERTS };

static const float small_logits[TOKENS][EXPERTS] = { { 2, 0 }, { -1, 1 }, { 3, 1 }, { 0.5f, -0.5f } };

static void print_positions(const int32_t start[EXPERTS], const int32_t end[EXPERTS],
                            const int32_t token[POSITIONS])
{
    static const char *const names[] = { "position", "token" };
    for (int line = 0; line < 2; line++) {
        printf("        %-10s", names[line]);
        for (int e = 0; e < EXPERTS; e++) {
            printf(e ? "  |" : "");
            for (int p = start[e]; p < end[e]; p++) {
                if (line == 0) printf("%s%3d%s", tool_dim(), p, tool_plain());
                else if (token[p] < 0) printf("  .");
                else printf("%s%3d%s", tool_green(), token[p], tool_plain());
            }
        }
        printf("\n");
    }
}

static tgl_status print_small(const moe_block *b)
{
    int64_t expert[TOKENS];
    float weight[TOKENS], x[TOKENS], out[TOKENS];
    int32_t position[TOKENS], token[POSITIONS], start[EXPERTS], end[EXPERTS];
    TGL_TRY(moe_block_download(b, TOPK_IDX, expert));
    TGL_TRY(moe_block_download(b, TOPK_WEIGHTS, weight));
    TGL_TRY(moe_block_download(b, TOKEN_TOPK_TO_POS, position));
    TGL_TRY(moe_block_download(b, POS_TO_TOKEN, token));
    TGL_TRY(moe_block_download(b, EXPERT_START, start));
    TGL_TRY(moe_block_download(b, EXPERT_END, end));
    TGL_TRY(moe_block_download(b, X, x));
    TGL_TRY(moe_block_download(b, OUT, out));
    printf("        token    logits       expert  weight  position     x  weighted sum\n");
    for (int t = 0; t < TOKENS; t++)
        printf("        %5d  %5.1f %5.1f  %s%7d%s  %6.3f  %8d  %4.0f  %12.3f\n", t,
               (double)small_logits[t][0], (double)small_logits[t][1], tool_green(), (int)expert[t],
               tool_plain(), (double)weight[t], position[t], (double)x[t], (double)out[t]);
    printf("\n");
    print_positions(start, end, token);
    for (int t = 0; t < TOKENS; t++) {
        const double l = (double)small_logits[t][expert[t]], want = (double)x[t] / (1 + exp(-l));
        if (fabs((double)out[t] - want) > 1e-5 * want)
            return tgl_fail(TGL_ERR_INTERNAL, "token %d: is %.6g, want %.6g", t, (double)out[t], want);
    }
    return TGL_OK;
}

static tgl_status run_small(moe_block *b)
{
    static const float bias[EXPERTS], x[TOKENS] = { 10, 20, 30, 40 };
    static const bool mask[TOKENS] = { true, true, true, true };
    DLTensor *at = b->tensor;
    TGL_TRY(moe_block_open(b));
    TGL_TRY(moe_block_add(b, X, TGL_F32, TOKENS, 1));
    TGL_TRY(moe_block_add(b, ROWS, TGL_F32, POSITIONS, 1));
    TGL_TRY(moe_block_add(b, OUT, TGL_F32, TOKENS, 1));
    TGL_TRY(moe_block_upload(b, LOGITS, small_logits));
    TGL_TRY(moe_block_upload(b, BIAS, bias));
    TGL_TRY(moe_block_upload(b, MASK, mask));
    TGL_TRY(moe_block_upload(b, X, x));
    TGL_TRY(moe_block_route(b));
    TGL_TRY(tgl_moe_expand_to_fused(&at[X], &at[TOKEN_TOPK_TO_POS], &at[POS_TO_EXPERT], &at[ROWS],
                                    b->on->stream));
    TGL_TRY(tgl_moe_reduce_fused(&at[ROWS], NULL, &at[TOPK_WEIGHTS], &at[TOKEN_TOPK_TO_POS], NULL, &at[OUT],
                                 b->on->stream));
    TGL_TRY(backend_wait(b->on, b->on->stream));
    return print_small(b);
}

tgl_status demo_moe_small(const backend *on)
{
    moe_block b = { .on = on, .num_tokens = TOKENS, .num_experts = EXPERTS, .num_topk = 1,
                    .alignment = PADDED, .gate = { .scoring = TGL_MOE_SIGMOID, .no_renormalize = true } };
    const tgl_status status = run_small(&b);
    moe_block_close(&b);
    return status;
}
