/* SPDX-License-Identifier: MIT
 * demo_block.c - a MoE block as DeepSeek-V3 has it, in FP8, stage by stage. The matrix products of its
 * experts are not Tegula's; in their place stand maps that its ops can apply on every device and that a loop
 * can follow:
 *   gate and up   the first 2 * intermediate columns of the row, times the expert's gain: cast_back with the
 *                 row's scale factors times the gain, as a product multiplies them with those of its weights
 *   down          the activation in the expert's part of the columns, zeros in the others: rows copied there
 *                 with expand_to_fused_with_sf, then cast_back */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "demo_moe.h"
#include "numerics/bf16.h"
#include "tegula/quant.h"

enum {
    CHANNELS = 128,                 /* that share a scale factor */
    PARTS = 4,                      /* of a result's columns, `intermediate` each; the last may be cut off */
    MAX_HIDDEN = 7168, MAX_INTERMEDIATE = 2048,
    MAX_CHECKED = 256               /* tokens that the loop follows */
};
enum { ROUTE, CAST, EXPAND, GATE_UP, SWIGLU, DOWN, REDUCE, NUM_STAGES };

static const double routed_scaling = 2.5;

static int64_t part(int64_t expert) { return expert % PARTS; }
static double gain(int64_t expert) { return expert / PARTS % 2 ? 0.5 : 1; }

static int64_t num_sf(int64_t columns) { return columns / CHANNELS; }

/* ---- what goes in ---- */

static float logit(int64_t i) { return (float)(case_random(1, i) % 65536) / 16384 - 2; }

static uint16_t hidden_value(int64_t i)                         /* -4 .. 4, more of them small than large */
{
    const float v = (float)(case_random(2, i) % 8192) / 4096 - 1;
    return tgl_bf16_from_f32(4 * v * v * v);
}

static bool is_padding(const moe_block *b, int64_t t) { return t >= b->num_tokens - b->num_padding; }

static tgl_status fill(const moe_block *b)
{
    void *host = malloc(moe_block_bytes(b, X) + moe_block_bytes(b, LOGITS));
    if (!host) return tgl_fail(TGL_ERR_MEMORY, "no memory for %lld tokens", (long long)b->num_tokens);
    float *real = host;
    bool *mask = host;
    uint16_t *x = host;
    for (int64_t i = 0; i < b->num_tokens * b->num_experts; i++) real[i] = logit(i);
    tgl_status status = moe_block_upload(b, LOGITS, real);
    for (int64_t e = 0; e < b->num_experts; e++) real[e] = (float)(case_random(3, e) % 64) / 8192;
    if (status == TGL_OK) status = moe_block_upload(b, BIAS, real);
    for (int64_t t = 0; t < b->num_tokens; t++) mask[t] = !is_padding(b, t);
    if (status == TGL_OK) status = moe_block_upload(b, MASK, mask);
    for (int64_t i = 0; i < b->num_tokens * b->hidden; i++) x[i] = hidden_value(i);
    if (status == TGL_OK) status = moe_block_upload(b, X, x);
    free(host);
    return status;
}

static tgl_status open_block(moe_block *b)
{
    TGL_TRY(moe_block_open(b));
    const int64_t t = b->num_tokens, n = b->num_positions, h = b->hidden, i = b->intermediate;
    const struct { int tensor; tgl_dtype dtype; int64_t rows, cols; } tensors[] = {
        { X, TGL_BF16, t, h },
        { X_FP8, TGL_E4M3, t, h },         { X_SF, TGL_F32, t, num_sf(h) },
        { ROWS, TGL_E4M3, n, h },          { ROWS_SF, TGL_F32, n, num_sf(h) },
        { GATES_UPS, TGL_BF16, n, 2 * i }, { PRODUCT_SF, TGL_F32, n, num_sf(h) },
        { ACT, TGL_E4M3, n, i },           { ACT_SF, TGL_F32, n, num_sf(i) },
        { PLACES, TGL_I32, n, PARTS },
        { PARTED, TGL_E4M3, PARTS * n, i }, { PARTED_SF, TGL_F32, PARTS * n, num_sf(i) },
        { RESULTS, TGL_BF16, n, h },       { OUT, TGL_BF16, t, h },
    };
    for (size_t k = 0; k < sizeof tensors / sizeof *tensors; k++)
        TGL_TRY(moe_block_add(b, tensors[k].tensor, tensors[k].dtype, tensors[k].rows, tensors[k].cols));
    return fill(b);
}

/* ---- stages ---- */

/* The first `columns` columns of codes and factors whose rows hold `stride` codes. */
static tgl_status cast_back(moe_block *b, int codes, int factors, int64_t stride, int64_t columns, int out)
{
    DLTensor x = b->tensor[codes], sf = b->tensor[factors];
    x.shape = (int64_t[]){ b->num_positions, columns };
    x.strides = (int64_t[]){ stride, 1 };
    sf.shape = (int64_t[]){ b->num_positions, num_sf(columns) };
    sf.strides = (int64_t[]){ num_sf(stride), 1 };
    return tgl_quant_cast_back(&x, &sf, &b->tensor[out],
                               &(tgl_quant_params){ .x_num_per_channels = CHANNELS }, b->on->stream);
}

typedef struct { moe_block *block; int stage; } stage_call;

static tgl_status run_stage(void *context)
{
    const stage_call *call = context;
    moe_block *b = call->block;
    DLTensor *at = b->tensor;
    const tgl_stream stream = b->on->stream;
    const tgl_quant_params to_fp8 = { .num_per_channels = CHANNELS, .round_sf = true };
    switch (call->stage) {
    case ROUTE: return moe_block_route(b);
    case CAST: return tgl_quant_per_token_cast(&at[X], NULL, &at[X_FP8], &at[X_SF], &to_fp8, stream);
    case EXPAND:
        return tgl_moe_expand_to_fused_with_sf(&at[X_FP8], &at[X_SF], &at[TOKEN_TOPK_TO_POS],
                                               &at[POS_TO_EXPERT], &at[ROWS], &at[ROWS_SF], CHANNELS, stream);
    case GATE_UP: return cast_back(b, ROWS, PRODUCT_SF, b->hidden, 2 * b->intermediate, GATES_UPS);
    case SWIGLU:
        return tgl_quant_swiglu_forward_and_per_token_cast(&at[GATES_UPS], NULL, NULL, &at[POS_TO_EXPERT],
                                                           NULL, &at[ACT], &at[ACT_SF], &to_fp8, stream);
    case DOWN: return cast_back(b, PARTED, PARTED_SF, PARTS * b->intermediate, b->hidden, RESULTS);
    default:
        return tgl_moe_reduce_fused(&at[RESULTS], NULL, &at[TOPK_WEIGHTS], &at[TOKEN_TOPK_TO_POS], NULL,
                                    &at[OUT], stream);
    }
}

/* What the experts need of the host: their rows' factors times their gain, and where in the results' parts
 * their activation goes, -1 in parts that stay zero. */
static tgl_status prepare_experts(const moe_block *b)
{
    const int64_t n = b->num_positions, k = num_sf(b->hidden);
    float *sf = malloc(moe_block_bytes(b, ROWS_SF));
    int32_t *expert = malloc(moe_block_bytes(b, POS_TO_EXPERT)), *place = malloc(moe_block_bytes(b, PLACES));
    tgl_status status = TGL_OK;
    if (!sf || !expert || !place)
        status = tgl_fail(TGL_ERR_MEMORY, "no memory for the factors of %lld rows", (long long)n);
    if (status == TGL_OK) status = moe_block_download(b, ROWS_SF, sf);
    if (status == TGL_OK) status = moe_block_download(b, POS_TO_EXPERT, expert);
    for (int64_t p = 0; status == TGL_OK && p < n; p++) {
        for (int64_t i = p * k; i < (p + 1) * k; i++) sf[i] *= expert[p] < 0 ? 0 : (float)gain(expert[p]);
        for (int64_t j = 0; j < PARTS; j++)
            place[p * PARTS + j] = expert[p] >= 0 && j == part(expert[p]) ? (int32_t)(p * PARTS + j) : -1;
    }
    if (status == TGL_OK) status = moe_block_upload(b, PRODUCT_SF, sf);
    if (status == TGL_OK) status = moe_block_upload(b, PLACES, place);
    free(sf);
    free(expert);
    free(place);
    return status;
}

/* An activation to its place in a row of PARTS; of pos_to_expert, which says where zeros go, only the sign
 * counts. */
static tgl_status place_parts(moe_block *b)
{
    DLTensor *at = b->tensor, pos_to_expert = at[PLACES];
    pos_to_expert.ndim = 1;
    pos_to_expert.shape = (int64_t[]){ b->num_positions * PARTS };
    return tgl_moe_expand_to_fused_with_sf(&at[ACT], &at[ACT_SF], &at[PLACES], &pos_to_expert, &at[PARTED],
                                           &at[PARTED_SF], CHANNELS, b->on->stream);
}

static tgl_status run_block(moe_block *b)
{
    for (int stage = 0; stage < NUM_STAGES; stage++) {
        if (stage == GATE_UP) TGL_TRY(prepare_experts(b));
        if (stage == DOWN) TGL_TRY(place_parts(b));
        TGL_TRY(run_stage(&(stage_call){ b, stage }));
    }
    return backend_wait(b->on, b->on->stream);
}

/* ---- the same as a loop ---- */

/* Of the columns that gate and up read, what the cast to FP8 leaves: x / sf rounded to 4 significant bits or
 * multiples of 2^-9, where sf is the power of two that brings the largest of 128 to 448 or below. */
static void cast_row(const moe_block *b, int64_t t, double *row)
{
    for (int64_t c = 0; c < 2 * b->intermediate; c += CHANNELS) {
        double largest = 1e-4;
        for (int64_t i = c; i < c + CHANNELS; i++) {
            row[i] = (double)tgl_bf16_to_f32(hidden_value(t * b->hidden + i));
            largest = fmax(largest, fabs(row[i]));
        }
        const int sf = (int)ceil(log2(largest / 448));
        for (int64_t i = c; i < c + CHANNELS; i++) {
            int exponent;
            frexp(ldexp(row[i], -sf), &exponent);
            const int unit = sf + (exponent > -5 ? exponent - 4 : -9);
            row[i] = ldexp(rint(ldexp(row[i], -unit)), unit);
        }
    }
}

static double score(const moe_block *b, int64_t t, int64_t e)
{
    return 1 / (1 + exp(-(double)logit(t * b->num_experts + e)));
}

static tgl_status add_experts(const moe_block *b, int64_t t, const int64_t *expert, double *want)
{
    static double row[2 * MAX_INTERMEDIATE];
    double scores = 0;
    cast_row(b, t, row);
    for (int64_t k = 0; k < b->num_topk; k++) {
        if (expert[k] < 0 || expert[k] >= b->num_experts)
            return tgl_fail(TGL_ERR_INTERNAL, "token %lld: expert is %lld, want 0..%lld", (long long)t,
                            (long long)expert[k], (long long)b->num_experts - 1);
        scores += score(b, t, expert[k]);
    }
    for (int64_t k = 0; k < b->num_topk; k++) {
        const double weight = routed_scaling * score(b, t, expert[k]) / scores, g = gain(expert[k]);
        const int64_t first = part(expert[k]) * b->intermediate;
        for (int64_t c = 0; c < b->intermediate && first + c < b->hidden; c++) {
            const double gate = g * row[c], up = g * row[b->intermediate + c];
            want[first + c] += weight * gate / (1 + exp(-gate)) * up;
        }
    }
    return TGL_OK;
}

static int64_t check_step(const moe_block *b)
{
    return b->num_tokens > MAX_CHECKED ? b->num_tokens / MAX_CHECKED : 1;
}

/* The cast of the activation to e4m3 changes a value by up to 1/17, or by 2^-14 where it is subnormal (values
 * are below 16, so factors up to 2^-4); the weights, 2.5 in all, are positive, and so are the gains: nothing
 * cancels. The sum's cast to bf16 adds 1/257. A padding token has no experts: exactly 0. */
static tgl_status check_tokens(const moe_block *b)
{
    static double want[MAX_HIDDEN];
    uint16_t *out = malloc(moe_block_bytes(b, OUT));
    int64_t *expert = malloc(moe_block_bytes(b, TOPK_IDX));
    tgl_status status = out && expert ? TGL_OK : tgl_fail(TGL_ERR_MEMORY, "no memory for the result");
    if (status == TGL_OK) status = moe_block_download(b, OUT, out);
    if (status == TGL_OK) status = moe_block_download(b, TOPK_IDX, expert);
    for (int64_t t = 0; t < b->num_tokens && status == TGL_OK; t += check_step(b)) {
        for (int64_t c = 0; c < b->hidden; c++) want[c] = 0;
        if (!is_padding(b, t)) status = add_experts(b, t, &expert[t * b->num_topk], want);
        for (int64_t c = 0; c < b->hidden && status == TGL_OK; c++) {
            const double seen = (double)tgl_bf16_to_f32(out[t * b->hidden + c]);
            if (!(fabs(seen - want[c]) <= (is_padding(b, t) ? 0 : fabs(want[c]) / 15 + 0x1p-12)))
                status = tgl_fail(TGL_ERR_INTERNAL, "token %lld, column %lld: is %g, want %g", (long long)t,
                                  (long long)c, seen, want[c]);
        }
    }
    free(out);
    free(expert);
    return status;
}

/* ---- times ---- */

/* What stands for a matrix product is not timed: that would say nothing about one. */
static tgl_status time_stages(moe_block *b)
{
    const double t = (double)b->num_tokens, h = (double)b->hidden,
                 pairs = (t - (double)b->num_padding) * (double)b->num_topk,
                 fp8 = 1 + 4.0 / CHANNELS, bf16 = 2;           /* bytes of a value and its part of a factor */
    const struct { const char *name, *does; double bytes; } stages[NUM_STAGES] = {
        [ROUTE] = { "        route", "logits -> experts, weights, positions", (double)NAN },
        [CAST] = { "        per_token_cast", "bf16 -> e4m3, a factor per 128", t * h * (bf16 + fp8) },
        [EXPAND] = { "        expand_to_fused_with_sf", "tokens -> their experts' rows",
                     (t + (double)b->num_positions) * h * fp8 },
        [GATE_UP] = { "        (gate and up)", "columns of the row, by cast_back", (double)NAN },
        [SWIGLU] = { "        swiglu_forward_and_per_token_cast", "gates, ups -> e4m3",
                     pairs * (double)b->intermediate * (2 * bf16 + fp8) },
        [DOWN] = { "        (down)", "columns of the activation, by cast_back", (double)NAN },
        [REDUCE] = { "        reduce_fused", "rows -> weighted sums", (pairs + t) * h * bf16 },
    };
    timer *clock;
    TGL_TRY(timer_open(b->on, &(timer_options){ .quick = true }, &clock));
    tool_progress("timing");
    tgl_status status = timer_start_profiler(clock);
    static const char *const heads[] = { "        stage", "does", ">time", ">GB/s", ">of a copy" };
    tool_table *table = tool_table_new(5, heads);
    for (int s = 0; s < NUM_STAGES && status == TGL_OK; s++) {
        timer_stats cold = timer_stats_none, copy = timer_stats_none;
        char time[32] = "-", rate[32] = "-", share[32] = "-";
        const bool has_bytes = !isnan(stages[s].bytes);
        const int64_t bytes = has_bytes ? (int64_t)stages[s].bytes : (int64_t)moe_block_bytes(b, LOGITS);
        if (has_bytes || s == ROUTE)
            status = timer_cold(clock, run_stage, &(stage_call){ b, s }, bytes, &cold);
        if (status == TGL_OK && has_bytes) status = timer_copy(clock, bytes, &copy);
        if (!isnan(cold.median)) snprintf(time, sizeof time, "%s", tool_time(cold.median));
        snprintf(rate, sizeof rate, "%s", tool_number(1e-3 * stages[s].bytes / cold.median));
        if (!isnan(copy.median)) snprintf(share, sizeof share, "%.0f %%", 100 * copy.median / cold.median);
        tool_table_row(table, (const char *const[]){ stages[s].name, stages[s].does, time, rate, share });
    }
    tool_progress(NULL);
    tool_table_print(table);
    printf("\n");
    timer_close(clock);
    return status;
}

static void print_checked(const moe_block *b)
{
    char tokens[48] = "every token";
    if (check_step(b) > 1) snprintf(tokens, sizeof tokens, "one token in %lld", (long long)check_step(b));
    printf("        Compared with a loop in double over %s and its experts: %sall values agree%s within\n"
           "        1/15 or 2^-12, what rounding to e4m3 and bf16 may change; padding came out as 0.\n",
           tokens, tool_green(), tool_plain());
}

tgl_status demo_moe_block(const backend *on)
{
    moe_block b = { .on = on, .num_tokens = 4096, .num_experts = 256, .num_topk = 8, .hidden = MAX_HIDDEN,
                    .intermediate = MAX_INTERMEDIATE, .alignment = 128,
                    .gate = { .scoring = TGL_MOE_SIGMOID, .num_groups = 8, .num_topk_groups = 4,
                              .has_routed_scaling_factor = true,
                              .routed_scaling_factor = (float)routed_scaling } };
    if (backend_is_cpu(on)) b.num_tokens = 128, b.alignment = 4;
    if (on->is_emulated) b.num_tokens = 16, b.hidden = 512, b.intermediate = 128, b.alignment = 1;
    b.num_padding = b.num_tokens / 16;
    printf("        %lld tokens of %lld bf16, the last %lld padding; %lld of %lld experts each, in 4 of 8\n"
           "        groups; an expert's rows padded to a multiple of %lld. Its matrix products are not\n"
           "        Tegula's: in their place gate and up are %lld columns each of the row, times the expert's\n"
           "        power of two, and down puts the activation into the expert's part of the columns.\n\n",
           (long long)b.num_tokens, (long long)b.hidden, (long long)b.num_padding, (long long)b.num_topk,
           (long long)b.num_experts, (long long)b.alignment, (long long)b.intermediate);
    tool_progress("making the tokens");
    tgl_status status = open_block(&b);
    if (status == TGL_OK) status = run_block(&b);
    if (status == TGL_OK) status = check_tokens(&b);
    tool_progress(NULL);
    if (status == TGL_OK && !on->is_emulated) status = time_stages(&b);
    if (status == TGL_OK) print_checked(&b);
    moe_block_close(&b);
    return status;
}
