/* SPDX-License-Identifier: MIT
 * demo_moe.c - the MoE part of `tegula demo`: four tokens routed over two experts, to look at; then what
 * surrounds the experts' matrix products in a block of a model's size, stage by stage. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/status.h"
#include "demo.h"
#include "numerics/bf16.h"
#include "tegula/moe.h"

/* ---- tensors of a block, all on one device ---- */

enum {
    LOGITS, BIAS, X, TOPK_IDX, TOPK_WEIGHTS, POS_TO_EXPERT, POS_TO_TOKEN, POS_TO_TOKEN_TOPK,
    TOKEN_TOPK_TO_POS, EXPERT_START, EXPERT_END, NUM_TOKENS_PER_EXPERT, EXPANDED, OUT, NUM_TENSORS
};

typedef struct {
    const backend *on;
    int64_t num_tokens, num_experts, num_topk, hidden, alignment, num_positions;
    tgl_moe_gate_params gate;
    DLTensor tensor[NUM_TENSORS];
    int64_t shape[NUM_TENSORS][2];
    tgl_moe_mapping mapping;
    void *workspace;
    size_t workspace_bytes;
} block;

static size_t bytes_of(const block *b, int i)
{
    const DLTensor *t = &b->tensor[i];
    return (size_t)(t->shape[0] * (t->ndim == 2 ? t->shape[1] : 1) * t->dtype.bits / 8);
}

static tgl_status add(block *b, int i, tgl_dtype dtype, int64_t rows, int64_t cols)
{
    b->shape[i][0] = rows;
    b->shape[i][1] = cols;
    b->tensor[i] = (DLTensor){ .device = b->on->device, .ndim = cols ? 2 : 1,
                               .dtype = tgl_dtype_to_dlpack(dtype), .shape = b->shape[i] };
    return backend_alloc(b->on, bytes_of(b, i), &b->tensor[i].data);
}

static void close_block(block *b)
{
    for (int i = 0; i < NUM_TENSORS; i++)
        if (b->tensor[i].data) backend_free(b->on, b->tensor[i].data);
    if (b->workspace) backend_free(b->on, b->workspace);
}

static tgl_status open_block(block *b, tgl_dtype dtype)
{
    const int64_t t = b->num_tokens, e = b->num_experts, k = b->num_topk, h = b->hidden;
    const int64_t n = b->num_positions = t * k + (b->alignment - 1) * e;
    DLTensor *at = b->tensor;
    TGL_TRY(add(b, LOGITS, TGL_F32, t, e));
    TGL_TRY(add(b, BIAS, TGL_F32, e, 0));
    TGL_TRY(add(b, X, dtype, t, h));
    TGL_TRY(add(b, TOPK_IDX, TGL_I64, t, k));
    TGL_TRY(add(b, TOPK_WEIGHTS, TGL_F32, t, k));
    for (int i = POS_TO_EXPERT; i <= POS_TO_TOKEN_TOPK; i++) TGL_TRY(add(b, i, TGL_I32, n, 0));
    TGL_TRY(add(b, TOKEN_TOPK_TO_POS, TGL_I32, t, k));
    for (int i = EXPERT_START; i <= NUM_TOKENS_PER_EXPERT; i++) TGL_TRY(add(b, i, TGL_I32, e, 0));
    TGL_TRY(add(b, EXPANDED, dtype, n, h));
    TGL_TRY(add(b, OUT, dtype, t, h));
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

/* ---- stages ---- */

static tgl_status route(void *context)
{
    block *b = context;
    DLTensor *at = b->tensor;
    return tgl_moe_route(&at[LOGITS], &at[BIAS], NULL, NULL, NULL, NULL, NULL, &at[TOPK_IDX],
                         &at[TOPK_WEIGHTS], &b->mapping, b->alignment, &b->gate, b->workspace,
                         b->workspace_bytes, b->on->stream);
}

static tgl_status expand(void *context)
{
    block *b = context;
    DLTensor *at = b->tensor;
    return tgl_moe_expand_to_fused(&at[X], &at[TOKEN_TOPK_TO_POS], &at[POS_TO_EXPERT], &at[EXPANDED],
                                   b->on->stream);
}

static tgl_status reduce(void *context)
{
    block *b = context;
    DLTensor *at = b->tensor;
    return tgl_moe_reduce_fused(&at[EXPANDED], NULL, &at[TOPK_WEIGHTS], &at[TOKEN_TOPK_TO_POS], NULL,
                                &at[OUT], b->on->stream);
}

static tgl_status run_stages(block *b)
{
    TGL_TRY(route(b));
    TGL_TRY(expand(b));
    TGL_TRY(reduce(b));
    return backend_wait(b->on, b->on->stream);
}

static tgl_status upload(const block *b, int i, const void *from)
{
    return backend_upload(b->on, b->tensor[i].data, from, bytes_of(b, i));
}

static tgl_status download(const block *b, int i, void *to)
{
    return backend_download(b->on, to, b->tensor[i].data, bytes_of(b, i));
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

static tgl_status print_small(const block *b)
{
    int64_t expert[TOKENS];
    float weight[TOKENS], x[TOKENS], out[TOKENS];
    int32_t position[TOKENS], token[POSITIONS], start[EXPERTS], end[EXPERTS];
    TGL_TRY(download(b, TOPK_IDX, expert));
    TGL_TRY(download(b, TOPK_WEIGHTS, weight));
    TGL_TRY(download(b, TOKEN_TOPK_TO_POS, position));
    TGL_TRY(download(b, POS_TO_TOKEN, token));
    TGL_TRY(download(b, EXPERT_START, start));
    TGL_TRY(download(b, EXPERT_END, end));
    TGL_TRY(download(b, X, x));
    TGL_TRY(download(b, OUT, out));
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

tgl_status demo_moe_small(const backend *on)
{
    static const float bias[EXPERTS], x[TOKENS] = { 10, 20, 30, 40 };
    block b = { .on = on, .num_tokens = TOKENS, .num_experts = EXPERTS, .num_topk = 1, .hidden = 1,
                .alignment = PADDED, .gate = { .scoring = TGL_MOE_SIGMOID, .no_renormalize = true } };
    tgl_status status = open_block(&b, TGL_F32);
    if (status == TGL_OK) status = upload(&b, LOGITS, small_logits);
    if (status == TGL_OK) status = upload(&b, BIAS, bias);
    if (status == TGL_OK) status = upload(&b, X, x);
    if (status == TGL_OK) status = run_stages(&b);
    if (status == TGL_OK) status = print_small(&b);
    close_block(&b);
    return status;
}

/* ---- a block of a model's size ---- */

static tgl_status fill(const block *b)
{
    const int64_t logits = b->num_tokens * b->num_experts, values = b->num_tokens * b->hidden;
    float *normal = malloc((size_t)logits * 4);
    uint16_t *x = malloc((size_t)values * 2);
    const float zero[1024] = { 0 };
    tgl_status status = TGL_OK;
    if (!normal || !x || b->num_experts > 1024)
        status = tgl_fail(TGL_ERR_MEMORY, "no memory for %lld values", (long long)values);
    for (int64_t i = 0; status == TGL_OK && i < logits; i++)
        normal[i] = (float)(case_random(1, i) % 8192) / 1024 - 4;
    for (int64_t i = 0; status == TGL_OK && i < values; i++)
        x[i] = tgl_bf16_from_f32((float)(case_random(2, i) % 8192) / 1024 - 4);
    if (status == TGL_OK) status = upload(b, LOGITS, normal);
    if (status == TGL_OK) status = upload(b, BIAS, zero);
    if (status == TGL_OK) status = upload(b, X, x);
    free(normal);
    free(x);
    return status;
}

/* The weights of a token add up to 1: with experts that change nothing, every token comes back as it was. */
static tgl_status check_tokens(const block *b)
{
    const int64_t values = b->num_tokens * b->hidden;
    uint16_t *x = malloc((size_t)values * 2), *out = malloc((size_t)values * 2);
    tgl_status status = x && out ? TGL_OK : tgl_fail(TGL_ERR_MEMORY, "no memory for %lld values",
                                                     (long long)values);
    if (status == TGL_OK) status = download(b, X, x);
    if (status == TGL_OK) status = download(b, OUT, out);
    for (int64_t i = 0; status == TGL_OK && i < values; i++) {
        const double want = (double)tgl_bf16_to_f32(x[i]), seen = (double)tgl_bf16_to_f32(out[i]);
        if (!(fabs(seen - want) <= fabs(want) / 128))
            status = tgl_fail(TGL_ERR_INTERNAL, "value %lld: is %g, want %g", (long long)i, seen, want);
    }
    free(x);
    free(out);
    return status;
}

static tgl_status time_stages(block *b)
{
    const double row = 2.0 * (double)b->hidden, pairs = (double)(b->num_tokens * b->num_topk);
    const struct { const char *name, *does; timer_call call; double bytes; } stages[] = {
        { "        route", "logits -> experts, weights, mapping", route, (double)NAN },
        { "        expand", "tokens -> their experts' rows", expand,
          (double)bytes_of(b, X) + (double)bytes_of(b, EXPANDED) },
        { "        reduce", "rows -> weighted sums", reduce, pairs * row + (double)bytes_of(b, OUT) },
    };
    timer *t;
    TGL_TRY(timer_open(b->on, &(timer_options){ .quick = true }, &t));
    tool_progress("timing");
    tgl_status status = timer_start_profiler(t);
    static const char *const heads[] = { "        stage", "does", ">time", ">GB/s", ">of a copy" };
    tool_table *table = tool_table_new(5, heads);
    for (int i = 0; i < 3 && status == TGL_OK; i++) {
        timer_stats cold, copy = timer_stats_none;
        char time[32], rate[32], share[32] = "-";
        status = timer_cold(t, stages[i].call, b, (int64_t)bytes_of(b, EXPANDED), &cold);
        if (status == TGL_OK && !isnan(stages[i].bytes))
            status = timer_copy(t, (int64_t)stages[i].bytes, &copy);
        snprintf(time, sizeof time, "%s", tool_time(cold.median));
        snprintf(rate, sizeof rate, "%s", tool_number(1e-3 * stages[i].bytes / cold.median));
        if (!isnan(copy.median)) snprintf(share, sizeof share, "%.0f %%", 100 * copy.median / cold.median);
        tool_table_row(table, (const char *const[]){ stages[i].name, stages[i].does, time, rate, share });
    }
    tool_progress(NULL);
    tool_table_print(table);
    timer_close(t);
    return status;
}

tgl_status demo_moe_block(const backend *on)
{
    block b = { .on = on, .num_tokens = 4096, .num_experts = 256, .num_topk = 8, .hidden = 7168,
                .alignment = 128, .gate = { .num_groups = 8, .num_topk_groups = 4 } };
    if (backend_is_cpu(on)) b.num_tokens = 256, b.alignment = 16;
    if (on->is_emulated) b.num_tokens = 16, b.hidden = 512, b.alignment = 1;
    printf("        %lld tokens of %lld bf16, %lld of %lld experts each, segments of %lld rows; experts that "
           "change nothing\n\n", (long long)b.num_tokens, (long long)b.hidden, (long long)b.num_topk,
           (long long)b.num_experts, (long long)b.alignment);
    tool_progress("making the tokens");
    tgl_status status = open_block(&b, TGL_BF16);
    if (status == TGL_OK) status = fill(&b);
    if (status == TGL_OK) status = run_stages(&b);
    if (status == TGL_OK) status = check_tokens(&b);
    tool_progress(NULL);
    if (status == TGL_OK && !on->is_emulated) status = time_stages(&b);
    if (status == TGL_OK)
        printf("%s        A token's weights add up to 1: %severy token came back as it was%s, within the "
               "rounding of bf16.\n", on->is_emulated ? "" : "\n", tool_green(), tool_plain());
    close_block(&b);
    return status;
}
