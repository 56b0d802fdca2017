/* SPDX-License-Identifier: MIT
 * demo.c - four tokens routed over two experts, to look at; then a MoE block of a model's size in FP8, stage
 * by stage, with times; then streams of a residual (demo_streams.c).
 *
 * The block's matrix products are not Tegula's. In their place the two halves of an expert's row are its
 * gates and ups, and the activation is its result; cast_back brings both back to bf16. Each expert has a
 * gain, the x_sf of reduce_fused, so that a wrong expert or weight shows in the sums. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/status.h"
#include "cuda/driver.h"
#include "demo.h"
#include "numerics/bf16.h"
#include "tegula/moe.h"
#include "tegula/quant.h"

enum {
    /* routing */
    LOGITS,
    MASK,
    TOPK_IDX,
    TOPK_WEIGHTS,
    POS_TO_EXPERT,
    POS_TO_TOKEN,
    POS_TO_TOKEN_TOPK,
    TOKEN_TOPK_TO_POS,
    EXPERT_START,
    EXPERT_END,
    NUM_TOKENS_PER_EXPERT,
    WORKSPACE,
    /* tokens, their codes, rows of experts, activations, results, weighted sums */
    X,
    X_FP8,
    X_SF,
    ROWS,
    ROWS_SF,
    GATES_UPS,
    ACT,
    ACT_SF,
    RESULTS,
    GAINS,
    OUT,
    NUM_TENSORS
};

enum { MAX_TOKENS = 4096 };

typedef struct {
    const backend *on;
    int64_t num_tokens, num_padding, num_experts, num_topk, alignment, hidden;
    tgl_moe_gate_params gate;
    DLTensor tensor[NUM_TENSORS];
    int64_t shape[NUM_TENSORS][2];
    tgl_moe_mapping mapping;
} block;

/* ---- tensors ---- */

static int64_t num_positions(const block *b)
{
    return b->num_tokens * b->num_topk + (b->alignment - 1) * b->num_experts;
}

static size_t bytes_of(const block *b, int i)
{
    const DLTensor *t = &b->tensor[i];
    return (size_t)(t->shape[0] * (t->ndim == 2 ? t->shape[1] : 1) * tgl_dtype_bits(t->dtype) / 8);
}

/* A tensor of rank 1 if cols is 0; values may be NULL. */
static tgl_status add(block *b, int i, tgl_dtype dtype, int64_t rows, int64_t cols, const void *values)
{
    b->shape[i][0] = rows;
    b->shape[i][1] = cols;
    b->tensor[i] = (DLTensor){
        .device = b->on->device, .ndim = cols ? 2 : 1, .dtype = tgl_dtype_to_dlpack(dtype), .shape = b->shape[i]
    };
    TGL_TRY(backend_alloc(b->on, bytes_of(b, i), &b->tensor[i].data));
    return values ? backend_upload(b->on, b->tensor[i].data, values, bytes_of(b, i)) : TGL_OK;
}

/* Waits for the stream first. */
static tgl_status fetch(const block *b, int i, void *to)
{
    return backend_download(b->on, to, b->tensor[i].data, bytes_of(b, i));
}

static tgl_status add_routing(block *b, const float *logits)
{
    DLTensor *at = b->tensor;
    const int64_t t = b->num_tokens, e = b->num_experts, k = b->num_topk;
    bool mask[MAX_TOKENS];
    for (int64_t i = 0; i < t; i++) mask[i] = i < t - b->num_padding;
    TGL_TRY(add(b, LOGITS, TGL_F32, t, e, logits));
    TGL_TRY(add(b, MASK, TGL_BOOL, t, 0, mask));
    TGL_TRY(add(b, TOPK_IDX, TGL_I64, t, k, NULL));
    TGL_TRY(add(b, TOPK_WEIGHTS, TGL_F32, t, k, NULL));
    for (int i = POS_TO_EXPERT; i <= POS_TO_TOKEN_TOPK; i++) TGL_TRY(add(b, i, TGL_I32, num_positions(b), 0, NULL));
    TGL_TRY(add(b, TOKEN_TOPK_TO_POS, TGL_I32, t, k, NULL));
    for (int i = EXPERT_START; i <= NUM_TOKENS_PER_EXPERT; i++) TGL_TRY(add(b, i, TGL_I32, e, 0, NULL));
    b->mapping = (tgl_moe_mapping){ &at[POS_TO_EXPERT],
                                    &at[POS_TO_TOKEN],
                                    &at[POS_TO_TOKEN_TOPK],
                                    &at[TOKEN_TOPK_TO_POS],
                                    &at[EXPERT_START],
                                    &at[EXPERT_END],
                                    &at[NUM_TOKENS_PER_EXPERT],
                                    NULL,
                                    NULL,
                                    NULL,
                                    { 0 } };
    const size_t bytes = tgl_moe_route_workspace_size(&at[LOGITS], &at[TOPK_IDX], &b->mapping);
    TGL_TRY(add(b, WORKSPACE, TGL_U8, (int64_t)bytes, 0, NULL));
    return tgl_workspace_init(at[WORKSPACE].data, bytes, b->on->stream);
}

static tgl_status route(block *b)
{
    DLTensor *at = b->tensor;
    return tgl_moe_route(&at[LOGITS], NULL, &at[MASK], NULL, NULL, NULL, NULL, &at[TOPK_IDX], &at[TOPK_WEIGHTS],
                         &b->mapping, b->alignment, &b->gate, at[WORKSPACE].data, bytes_of(b, WORKSPACE),
                         b->on->stream);
}

/* ---- four tokens, two experts ---- */

enum { TOKENS = 4, EXPERTS = 2, PADDED = 2, POSITIONS = TOKENS + (PADDED - 1) * EXPERTS };

static const float small_logits[TOKENS][EXPERTS] = { { 2, 0 }, { -1, 1 }, { 3, 1 }, { 0.5f, -0.5f } };
static const float small_x[TOKENS] = { 10, 20, 30, 40 };

static tgl_status print_routed(const block *b)
{
    int64_t expert[TOKENS];
    float weight[TOKENS], out[TOKENS];
    int32_t position[TOKENS], token[POSITIONS], start[EXPERTS], end[EXPERTS];
    TGL_TRY(fetch(b, TOPK_IDX, expert));
    TGL_TRY(fetch(b, TOPK_WEIGHTS, weight));
    TGL_TRY(fetch(b, TOKEN_TOPK_TO_POS, position));
    TGL_TRY(fetch(b, POS_TO_TOKEN, token));
    TGL_TRY(fetch(b, EXPERT_START, start));
    TGL_TRY(fetch(b, EXPERT_END, end));
    TGL_TRY(fetch(b, OUT, out));
    printf("        token    logits       expert  weight  position     x  weighted sum\n");
    for (int t = 0; t < TOKENS; t++) {
        const double l[EXPERTS] = { (double)small_logits[t][0], (double)small_logits[t][1] };
        const double x = (double)small_x[t], want = x / (1 + exp(-fmax(l[0], l[1])));
        printf("        %5d  %5.1f %5.1f  %s%7d%s  %6.3f  %8d  %4.0f  %12.3f\n", t, l[0], l[1], tool_green(),
               (int)expert[t], tool_plain(), (double)weight[t], position[t], x, (double)out[t]);
        if (!(fabs((double)out[t] - want) <= 1e-5 * want))
            return tgl_fail(TGL_ERR_INTERNAL, "token %d: is %.6g, want %.6g", t, (double)out[t], want);
    }
    for (int line = 0; line < 2; line++) {
        printf("\n        %-10s", line ? "token" : "position");
        for (int e = 0; e < EXPERTS; e++)
            for (int p = start[e]; p < end[e]; p++) {
                printf("%s%s", e && p == start[e] ? "  |" : "", line ? tool_green() : tool_dim());
                if (line && token[p] < 0) printf("  .");
                else printf("%3d", line ? token[p] : p);
                printf("%s", tool_plain());
            }
    }
    printf("\n");
    return TGL_OK;
}

static tgl_status show_routing(block *b)
{
    DLTensor *at = b->tensor;
    *b = (block){ .on = b->on,
                  .num_tokens = TOKENS,
                  .num_experts = EXPERTS,
                  .num_topk = 1,
                  .alignment = PADDED,
                  .gate = { .scoring = TGL_MOE_SIGMOID, .no_renormalize = true } };
    TGL_TRY(add_routing(b, &small_logits[0][0]));
    TGL_TRY(add(b, X, TGL_F32, TOKENS, 1, small_x));
    TGL_TRY(add(b, ROWS, TGL_F32, POSITIONS, 1, NULL));
    TGL_TRY(add(b, OUT, TGL_F32, TOKENS, 1, NULL));
    TGL_TRY(route(b));
    TGL_TRY(tgl_moe_expand_to_fused(&at[X], &at[TOKEN_TOPK_TO_POS], &at[POS_TO_EXPERT], &at[ROWS], b->on->stream));
    TGL_TRY(tgl_moe_reduce_fused(&at[ROWS], NULL, &at[TOPK_WEIGHTS], &at[TOKEN_TOPK_TO_POS], NULL, &at[OUT],
                                 b->on->stream));
    return print_routed(b);
}

/* ---- a block ---- */

enum { CHANNELS = 128 }; /* that share a scale factor */
enum { ROUTE, CAST, EXPAND, GATE_UP, SWIGLU, DOWN, REDUCE, NUM_STAGES };

static double gain(int64_t expert) { return 1.0 / (1 << expert % 4); }

typedef struct {
    block *b;
    int stage;
} stage_call;

static tgl_status run_stage(void *context)
{
    const stage_call *call = context;
    DLTensor *at = call->b->tensor;
    const tgl_stream stream = call->b->on->stream;
    const tgl_quant_params to_fp8 = { .num_per_channels = CHANNELS, .round_sf = true };
    const tgl_quant_params from_fp8 = { .x_num_per_channels = CHANNELS };
    switch (call->stage) {
    case ROUTE: return route(call->b);
    case CAST: return tgl_quant_per_token_cast(&at[X], NULL, &at[X_FP8], &at[X_SF], &to_fp8, stream);
    case EXPAND:
        return tgl_moe_expand_to_fused_with_sf(&at[X_FP8], &at[X_SF], &at[TOKEN_TOPK_TO_POS], &at[POS_TO_EXPERT],
                                               &at[ROWS], &at[ROWS_SF], CHANNELS, stream);
    case GATE_UP: return tgl_quant_cast_back(&at[ROWS], &at[ROWS_SF], &at[GATES_UPS], &from_fp8, stream);
    case SWIGLU:
        return tgl_quant_swiglu_forward_and_per_token_cast(&at[GATES_UPS], NULL, NULL, &at[POS_TO_EXPERT], NULL,
                                                           &at[ACT], &at[ACT_SF], &to_fp8, stream);
    case DOWN: return tgl_quant_cast_back(&at[ACT], &at[ACT_SF], &at[RESULTS], &from_fp8, stream);
    default:
        return tgl_moe_reduce_fused(&at[RESULTS], &at[GAINS], &at[TOPK_WEIGHTS], &at[TOKEN_TOPK_TO_POS], NULL, &at[OUT],
                                    stream);
    }
}

static tgl_status run_block(block *b)
{
    const int64_t t = b->num_tokens, n = num_positions(b), h = b->hidden;
    TGL_TRY(add(b, X_FP8, TGL_E4M3, t, h, NULL));
    TGL_TRY(add(b, X_SF, TGL_F32, t, h / CHANNELS, NULL));
    TGL_TRY(add(b, ROWS, TGL_E4M3, n, h, NULL));
    TGL_TRY(add(b, ROWS_SF, TGL_F32, n, h / CHANNELS, NULL));
    TGL_TRY(add(b, GATES_UPS, TGL_BF16, n, h, NULL));
    TGL_TRY(add(b, ACT, TGL_E4M3, n, h / 2, NULL));
    TGL_TRY(add(b, ACT_SF, TGL_F32, n, h / 2 / CHANNELS, NULL));
    TGL_TRY(add(b, RESULTS, TGL_BF16, n, h / 2, NULL));
    TGL_TRY(add(b, OUT, TGL_BF16, t, h / 2, NULL));
    for (int stage = 0; stage < REDUCE; stage++) TGL_TRY(run_stage(&(stage_call){ b, stage }));
    int32_t *expert = case_memory(n, sizeof *expert);
    float *gains = case_memory(n, sizeof *gains);
    tgl_status status = fetch(b, POS_TO_EXPERT, expert);
    for (int64_t p = 0; p < n; p++) gains[p] = expert[p] < 0 ? 0 : (float)gain(expert[p]);
    if (status == TGL_OK) status = add(b, GAINS, TGL_F32, n, 0, gains);
    free(expert), free(gains);
    return status == TGL_OK ? run_stage(&(stage_call){ b, REDUCE }) : status;
}

/* The same as a loop in double, which knows nothing of FP8: rounding gates, ups and activations to e4m3 is a
 * relative error of about 2.6 % each (root mean square), 5 % in all, which averages out. A wrong expert or
 * weight does not: it scales the whole token. A padding token has no experts: its sums are exactly 0. */
static tgl_status check_token(const block *b, int64_t t, const float *logits, const uint16_t *x, const int64_t *expert,
                              const uint16_t *out)
{
    double scores = 0, gains = 0, error = 0, product = 0, size = 0;
    for (int64_t k = 0; k < b->num_topk && t < b->num_tokens - b->num_padding; k++) {
        if (expert[k] < 0 || expert[k] >= b->num_experts)
            return tgl_fail(TGL_ERR_INTERNAL, "token %lld: %lld is no expert", (long long)t, (long long)expert[k]);
        const double score = sqrt(log1p(exp((double)logits[expert[k]])));
        scores += score;
        gains += score * gain(expert[k]);
    }
    for (int64_t c = 0; c < b->hidden / 2; c++) {
        const double gate = (double)tgl_bf16_to_f32(x[c]), up = (double)tgl_bf16_to_f32(x[b->hidden / 2 + c]);
        const double want = scores > 0 ? 2.5 * gains / scores * gate / (1 + exp(-gate)) * up : 0;
        const double seen = (double)tgl_bf16_to_f32(out[c]);
        error += (seen - want) * (seen - want);
        product += seen * want;
        size += want * want;
    }
    if (error <= 0.1 * 0.1 * size && fabs(product - size) <= 0.03 * size) return TGL_OK;
    return tgl_fail(TGL_ERR_INTERNAL, "token %lld: its sums are off by %.1f %%, on average %.1f %%", (long long)t,
                    100 * sqrt(error / size), 100 * fabs(product / size - 1));
}

static tgl_status check_block(const block *b, const float *logits, const uint16_t *x)
{
    uint16_t *out = case_memory(b->num_tokens * b->hidden / 2, sizeof *out);
    int64_t *expert = case_memory(b->num_tokens * b->num_topk, sizeof *expert);
    tgl_status status = fetch(b, OUT, out);
    if (status == TGL_OK) status = fetch(b, TOPK_IDX, expert);
    for (int64_t t = 0; t < b->num_tokens && status == TGL_OK; t++)
        status = check_token(b, t, logits + t * b->num_experts, x + t * b->hidden, expert + t * b->num_topk,
                             out + t * b->hidden / 2);
    free(out), free(expert);
    return status;
}

tgl_status demo_time(const backend *on, const demo_stage *stages, int count)
{
    timer *clock;
    TGL_TRY(timer_open(on, &(timer_options){ .quick = true }, &clock));
    tool_progress("timing");
    tgl_status status = timer_start_profiler(clock);
    static const char *const heads[] = { "        stage", "does", ">time", ">GB/s", ">of a copy" };
    tool_table *table = tool_table_new(5, heads);
    for (int s = 0; s < count && status == TGL_OK; s++) {
        const double bytes = stages[s].bytes;
        timer_stats cold, copy;
        status = timer_cold(clock, stages[s].call, stages[s].context, (int64_t)bytes, &cold);
        if (status == TGL_OK) status = timer_copy(clock, (int64_t)bytes, &copy);
        if (status != TGL_OK) break;
        tool_table_row(table, (const char *const[]){ stages[s].name, stages[s].does, tool_time(cold.median),
                                                     tool_number(1e-3 * bytes / cold.median),
                                                     tool_percent(copy.median / cold.median) });
    }
    tool_progress(NULL);
    printf("\n");
    tool_table_print(table);
    timer_close(clock);
    return status;
}

static tgl_status time_stages(block *b)
{
    const double t = (double)b->num_tokens, h = (double)b->hidden, n = (double)num_positions(b);
    const double pairs = (double)((b->num_tokens - b->num_padding) * b->num_topk);
    const double fp8 = 1 + 4.0 / CHANNELS, bf16 = 2; /* bytes of a value and its share of a scale factor */
    double routing = 0;
    for (int i = LOGITS; i < WORKSPACE; i++) routing += (double)bytes_of(b, i);
    stage_call calls[NUM_STAGES];
    for (int i = 0; i < NUM_STAGES; i++) calls[i] = (stage_call){ b, i };
    const demo_stage stages[NUM_STAGES] = {
        [ROUTE] = { "        route", "logits -> experts, weights, positions", routing, run_stage, &calls[ROUTE] },
        [CAST] = { "        per_token_cast", "bf16 -> e4m3, a factor per 128", t * h * (bf16 + fp8), run_stage,
                   &calls[CAST] },
        [EXPAND] = { "        expand_to_fused_with_sf", "tokens -> their experts' rows", (t + n) * h * fp8, run_stage,
                     &calls[EXPAND] },
        [GATE_UP] = { "        cast_back", "in place of gate and up: e4m3 -> bf16", n * h * (fp8 + bf16), run_stage,
                      &calls[GATE_UP] },
        [SWIGLU] = { "        swiglu_forward_and_per_token_cast", "gates, ups -> e4m3", pairs * h * (bf16 + fp8 / 2),
                     run_stage, &calls[SWIGLU] },
        [DOWN] = { "        cast_back", "in place of down: e4m3 -> bf16", n * h / 2 * (fp8 + bf16), run_stage,
                   &calls[DOWN] },
        [REDUCE] = { "        reduce_fused", "rows -> weighted sums", (pairs + t) * h / 2 * bf16, run_stage,
                     &calls[REDUCE] },
    };
    return demo_time(b->on, stages, NUM_STAGES);
}

static tgl_status show_block(block *b, float *logits, uint16_t *x)
{
    for (int64_t i = 0; i < b->num_tokens * b->num_experts; i++)
        logits[i] = (float)(case_random(1, i) % 65536) / 16384 - 2;
    for (int64_t i = 0; i < b->num_tokens * b->hidden; i++)
        x[i] = tgl_bf16_from_f32((float)(case_random(2, i) % 8192) / 1024 - 4);
    TGL_TRY(add_routing(b, logits));
    TGL_TRY(add(b, X, TGL_BF16, b->num_tokens, b->hidden, x));
    TGL_TRY(run_block(b));
    TGL_TRY(check_block(b, logits, x));
    tool_progress(NULL);
    printf("        Every token agrees with a loop in double: within 10 %% (root mean square; three\n"
           "        roundings to e4m3 are 5 %%), and within 3 %% on average. Padding came out as 0.\n");
    if (b->on->is_emulated) return TGL_OK; /* its times mean nothing */
    TGL_TRY(time_stages(b));
    printf("\n        A copy moves as many bytes and does nothing else, so it is the limit.\n");
    return TGL_OK;
}

static tgl_status show_model(block *b)
{
    *b = (block){
        .on = b->on,
        .num_tokens = MAX_TOKENS,
        .num_experts = 256,
        .num_topk = 6,
        .hidden = 4096,
        .alignment = 128,
        .gate = { .scoring = TGL_MOE_SQRTSOFTPLUS, .routed_scaling_factor = 2.5f, .has_routed_scaling_factor = true }
    };
    if (backend_is_cpu(b->on)) b->num_tokens = 128, b->alignment = 4;
    if (b->on->is_emulated) b->num_tokens = 16, b->hidden = 512, b->alignment = 1;
    b->num_padding = b->num_tokens / 16;
    printf("        %lld tokens of %lld bf16, the last %lld padding; %lld of %lld experts each, an expert's\n"
           "        rows padded to a multiple of %lld. The matrix products are not Tegula's: in their place\n"
           "        the halves of a row are gates and ups, and the activation is the result.\n\n",
           (long long)b->num_tokens, (long long)b->hidden, (long long)b->num_padding, (long long)b->num_topk,
           (long long)b->num_experts, (long long)b->alignment);
    tool_progress("making the tokens");
    float *logits = case_memory(b->num_tokens * b->num_experts, sizeof *logits);
    uint16_t *x = case_memory(b->num_tokens * b->hidden, sizeof *x);
    const tgl_status status = show_block(b, logits, x);
    tool_progress(NULL);
    free(logits), free(x);
    return status;
}

/* ---- the command ---- */

static tgl_status show_streams(block *b) { return demo_streams(b->on); }

static int run(int argc, char **argv)
{
    static const struct {
        const char *title;
        tgl_status (*show)(block *b);
    } parts[] = {
        { "tgl_moe_route: 4 tokens over 2 experts, their rows padded to a multiple of 2", show_routing },
        { "a MoE block in FP8, as in DeepSeek-V4-Flash, without its matrix products", show_model },
        { "a residual of four streams: Engram and manifold hyper-connections", show_streams },
    };
    const char *name = NULL;
    const tool_option options[] = {
        { "device", "NAME", "cpu, cuda or cuda:1 (default: the first GPU, else the CPU)", NULL, &name }, { 0 }
    };
    int code;
    if (!tool_parse(&tool_demo, options, argc, argv, NULL, &code)) return code;
    backend on;
    code = tool_open_device(&tool_demo, name, &on);
    if (code != TOOL_OK) return code;
    const tgl_device *device;
    const bool is_cuda = !backend_is_cpu(&on) && tgl_device_get(on.device.device_id, &device) == TGL_OK;
    printf("%stegula %s%s on %s%s\n", tool_bold(), tgl_version(), tool_plain(),
           on.is_emulated ? "the emulated device: " : "", is_cuda ? device->name : tool_cpu_name());
    tgl_status status = TGL_OK;
    for (int i = 0; i < 3 && status == TGL_OK; i++) {
        block b = { .on = &on };
        printf("\n%s  %d     %s%s\n\n", tool_bold(), i + 1, parts[i].title, tool_plain());
        status = parts[i].show(&b);
        for (int t = 0; t < NUM_TENSORS; t++) backend_free(&on, b.tensor[t].data);
    }
    backend_close(&on);
    if (status != TGL_OK) return tool_failed(&tool_demo, "%s", tgl_last_error());
    if (tgl_compile_count())
        printf("\n        %d kernels were compiled; the next run finds them in the cache.\n", (int)tgl_compile_count());
    printf("\n        More: tegula list, tegula check, tegula bench --html report.html\n");
    return TOOL_OK;
}

const tool_command tool_demo = {
    .name = "demo",
    .arguments = "[--device NAME]",
    .summary = "shows what it computes, how fast, and against what limit",
    .run = run,
};
