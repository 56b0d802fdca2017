/* SPDX-License-Identifier: MIT
 * swiglu_forward_and_per_token_cast.c - tgl_quant_swiglu_forward_and_per_token_cast: the activation,
 * weighted, in blocks of one row. */
#include <math.h>

#include "core/clones.h"
#include "core/log.h"
#include "core/threads.h"
#include "cuda/launch.h"
#include "quant/cast.h"
#include "quant/check.h"
#include "quant/swiglu.h"

typedef struct {
    int64_t num_rows, num_cols;         /* of out */
    tgl_values x;                       /* twice the columns */
    bool has_weights;
    const int32_t *pos_to_token_topk;
    const float *topk_weights;
    int64_t num_weights;
    bool has_experts;                   /* else every row counts */
    const int32_t *pos_to_expert;
    bool has_count;
    int64_t *clamped_count;
    float clamp;                        /* infinite: none */
    int format;
    tgl_blocks blocks;
    tgl_scale_rule rule;
    tgl_sf sf;
    uint8_t *out;
} problem;

/* ---- CPU ---- */

TGL_CLONES
static const void *read_activations(const void *context, int64_t row, int64_t col, int64_t count, float *to)
{
    const problem *p = context;
    tgl_activate(&p->x, p->num_cols, row, col, count, p->clamp, to);
    if (p->has_weights) {
        const int64_t at = p->pos_to_token_topk[row];
        const float weight = at >= 0 && at < p->num_weights ? p->topk_weights[at] : 0.0f;
        for (int64_t i = 0; i < count; i++) to[i] *= weight;
    }
    return to;
}

static void run_rows(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const tgl_cast cast = {
        .from = { read_activations, p, .is_bf16 = false, .is_buffered = true }, .num_rows = p->num_rows,
        .num_cols = p->num_cols, .format = p->format, .rule = p->rule, .block_rows = 1,
        .block_cols = p->blocks.cols, .sf = p->sf, .num_sf = p->blocks.num_cols, .out = p->out,
        .out_stride = tgl_code_bytes(p->format, p->num_cols)
    };
    int64_t counts[3] = { 0 };
    for (int64_t t = begin; t < end; t++) {
        if (p->has_experts && p->pos_to_expert[t] < 0) continue;
        tgl_cast_columns(&cast, t, 0, p->num_cols);
        if (p->has_count) tgl_count_clamped(&p->x, p->num_cols, t, p->clamp, counts);
    }
    for (int i = 0; p->has_count && i < 3; i++)
        __atomic_fetch_add(&p->clamped_count[i], counts[i], __ATOMIC_RELAXED);
}

/* ---- checks ---- */

static tgl_status check_params(const tgl_quant_params *params)
{
    TGL_TRY(tgl_expect_params(params));
    TGL_TRY(tgl_expect_format(params->format, false));
    TGL_TRY(tgl_expect_block("num_per_channels", params->num_per_channels));
    TGL_TRY(tgl_expect_swiglu_clamp(params));
    if (params->has_sf_clamp_min && !(params->sf_clamp_min >= 0))
        return tgl_fail(TGL_ERR_ARGUMENT, "sf_clamp_min: is %g, want >= 0", (double)params->sf_clamp_min);
    return TGL_OK;
}

static tgl_status check_maps(const DLTensor *pos_to_token_topk, const DLTensor *topk_weights,
                             const DLTensor *pos_to_expert, const DLTensor *clamped_count,
                             const tgl_quant_params *params, problem *p)
{
    p->has_weights = pos_to_token_topk;
    if (p->has_weights != (topk_weights != NULL))
        return tgl_fail(TGL_ERR_ARGUMENT, "%s: is NULL, want a tensor where %s is given",
                        p->has_weights ? "topk_weights" : "pos_to_token_topk",
                        p->has_weights ? "pos_to_token_topk" : "topk_weights");
    if (p->has_weights) {
        TGL_TRY(tgl_expect_list("pos_to_token_topk", pos_to_token_topk, TGL_I32, p->num_rows));
        TGL_TRY(tgl_expect("topk_weights", topk_weights, TGL_F32, 2, TGL_PACKED));
        p->pos_to_token_topk = tgl_data(pos_to_token_topk);
        p->topk_weights = tgl_data(topk_weights);
        p->num_weights = tgl_num_elements(topk_weights);
    }
    p->has_experts = pos_to_expert;
    if (p->has_experts) {
        TGL_TRY(tgl_expect_list("pos_to_expert", pos_to_expert, TGL_I32, p->num_rows));
        p->pos_to_expert = tgl_data(pos_to_expert);
    }
    p->has_count = clamped_count;
    if (p->has_count) {
        TGL_TRY(tgl_expect_list("clamped_count", clamped_count, TGL_I64, 3));
        p->clamped_count = tgl_data(clamped_count);
        if (!params->has_swiglu_clamp_value)
            return tgl_fail(TGL_ERR_ARGUMENT,
                            "has_swiglu_clamp_value: is false, want true where clamped_count is given");
    }
    return TGL_OK;
}

static tgl_status check(const DLTensor *x, const DLTensor *pos_to_token_topk, const DLTensor *topk_weights,
                        const DLTensor *pos_to_expert, const DLTensor *clamped_count, const DLTensor *out,
                        const DLTensor *out_sf, const tgl_quant_params *params, problem *p)
{
    TGL_TRY(check_params(params));
    TGL_TRY(tgl_expect_values("x", x));
    TGL_TRY(tgl_expect_even("x", x));
    p->num_rows = x->shape[0];
    p->num_cols = x->shape[1] / 2;
    p->x = tgl_values_of(x);
    TGL_TRY(check_maps(pos_to_token_topk, topk_weights, pos_to_expert, clamped_count, params, p));
    p->clamp = params->has_swiglu_clamp_value ? params->swiglu_clamp_value : INFINITY;
    p->format = params->format;
    p->rule = tgl_scale_rule_of(params->format, params->round_sf);
    if (params->has_sf_clamp_min) p->rule.floor = params->sf_clamp_min;
    p->blocks = tgl_blocks_of(p->num_rows, p->num_cols, 1, params->num_per_channels);
    TGL_TRY(tgl_expect_out_codes("out", out, p->format, p->num_rows, p->num_cols));
    TGL_TRY(tgl_expect_out_sf("out_sf", out_sf, p->num_rows, p->blocks.num_cols, params->round_sf, &p->sf));
    p->out = tgl_data(out);
    const tgl_named tensors[] = {
        { "x", x }, { "pos_to_token_topk", pos_to_token_topk }, { "topk_weights", topk_weights },
        { "pos_to_expert", pos_to_expert }, { "clamped_count", clamped_count }, { "out", out },
        { "out_sf", out_sf }
    };
    return tgl_expect_apart(tensors, 4, 7);
}

/* ---- launch ---- */

static tgl_status run_on_cuda(const problem *p, const DLTensor *on, tgl_stream stream)
{
    (void)p, (void)on, (void)stream;
    return tgl_fail(TGL_ERR_INTERNAL, "tgl_quant_swiglu_forward_and_per_token_cast: no kernel yet");
}

tgl_status tgl_quant_swiglu_forward_and_per_token_cast(const DLTensor *x, const DLTensor *pos_to_token_topk,
                                                       const DLTensor *topk_weights,
                                                       const DLTensor *pos_to_expert, DLTensor *clamped_count,
                                                       DLTensor *out, DLTensor *out_sf,
                                                       const tgl_quant_params *params, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_swiglu_forward_and_per_token_cast", "x", x, "pos_to_token_topk",
                     pos_to_token_topk, "topk_weights", topk_weights, "pos_to_expert", pos_to_expert,
                     "clamped_count", clamped_count, "out", out, "out_sf", out_sf, NULL);
    problem p = { 0 };
    TGL_TRY(check(x, pos_to_token_topk, topk_weights, pos_to_expert, clamped_count, out, out_sf, params, &p));
    if (p.num_cols == 0) return TGL_OK;                             /* no kernel has no columns */
    if (p.num_rows == 0 && !tgl_preparing()) return TGL_OK;         /* data may be NULL */
    if (!tgl_on_cpu(x)) return run_on_cuda(&p, x, stream);
    return tgl_parallel_rows(p.num_rows, 8 * p.num_cols, run_rows, &p);
}
