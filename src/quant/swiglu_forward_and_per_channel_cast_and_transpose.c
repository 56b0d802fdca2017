/* SPDX-License-Identifier: MIT
 * swiglu_forward_and_per_channel_cast_and_transpose.c - the tgl_quant_ function of that name: the activation,
 * rounded to bf16, in blocks of one column. */
#include <math.h>

#include "core/log.h"
#include "quant/activate.h"
#include "quant/common/channel_op.h"
#include "quant/common/check.h"

typedef tgl_channel_problem problem;

/* ---- CPU ---- */

static const void *read_activations(const void *context, int64_t row, int64_t col, int64_t count, float *to)
{
    const problem *p = context;
    tgl_activate_to_bf16(&p->values, p->num_cols, row, col, count, p->clamp, (uint16_t *)to);
    return to;
}

static tgl_status run_on_cpu(const void *context)
{
    const problem *p = context;
    const tgl_cast cast = {
        .from = { read_activations, p, .is_bf16 = true, .is_buffered = true }, .num_rows = p->num_rows,
        .num_cols = p->num_cols, .format = TGL_FORMAT_E4M3, .rule = p->rule, .block_rows = p->blocks.rows,
        .block_cols = 1, .sf = p->sf, .num_sf = p->num_cols, .out = p->out,
        .out_stride = p->is_transposed ? p->num_rows : p->num_cols, .is_transposed = p->is_transposed
    };
    return tgl_run_cast(&cast);
}

/* ---- checks ---- */

static tgl_status check(const DLTensor *x, const DLTensor *out, const DLTensor *out_sf,
                        const tgl_quant_params *params, problem *p)
{
    TGL_TRY(tgl_expect_params(params));
    TGL_TRY(tgl_expect_block("num_per_tokens", params->num_per_tokens));
    TGL_TRY(tgl_expect_swiglu_clamp(params));
    TGL_TRY(tgl_expect_values("x", x));
    TGL_TRY(tgl_expect_even("x", x));
    p->num_rows = x->shape[0];
    p->num_cols = x->shape[1] / 2;
    p->values = tgl_values_of(x);
    p->clamp = params->has_swiglu_clamp_value ? params->swiglu_clamp_value : INFINITY;
    p->blocks = tgl_blocks_of(p->num_rows, p->num_cols, params->num_per_tokens, 1);
    p->rule = tgl_scale_rule_of(TGL_FORMAT_E4M3, params->round_sf);
    p->is_transposed = !params->without_transpose;
    TGL_TRY(tgl_expect_matrix("out", out, TGL_E4M3, p->is_transposed ? p->num_cols : p->num_rows,
                              p->is_transposed ? p->num_rows : p->num_cols));
    TGL_TRY(tgl_expect_matrix("out_sf", out_sf, TGL_F32, p->blocks.num_rows, p->num_cols));
    p->sf = (tgl_sf){ tgl_data(out_sf), p->num_cols, TGL_SF_ROWS };
    p->out = tgl_data(out);
    return tgl_expect_apart((tgl_named[]){ { "x", x }, { "out", out }, { "out_sf", out_sf } }, 1, 3);
}

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_kernel kernel = { "quant/swiglu_forward_and_per_channel_cast_and_transpose",
                                { { "X", tgl_channel_x(p) },
                                  { "BLOCK_ROWS", tgl_channel_block_rows(p) },
                                  { "IS_ROUNDED", p->rule.is_rounded },
                                  { "IS_TRANSPOSED", p->is_transposed },
                                  { "IS_CLAMPED", !isinf(p->clamp) } } };
    return tgl_channel_plan(p, kernel, false, kernels);
}

static const tgl_op OP = { run_on_cpu, plan, TGL_CHANNEL_CANDIDATES };

tgl_status tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose(const DLTensor *x, DLTensor *out,
                                                                       DLTensor *out_sf,
                                                                       const tgl_quant_params *params,
                                                                       tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose", "x", x, "out", out,
                     "out_sf", out_sf, NULL);
    problem p = { .is_swiglu = true };
    TGL_TRY(check(x, out, out_sf, params, &p));
    if (p.num_cols == 0) return TGL_OK;                             /* no kernel has no columns */
    if (p.num_rows == 0 && !tgl_preparing()) return TGL_OK;         /* data may be NULL */
    return tgl_on_cpu(x) ? run_on_cpu(&p) : tgl_run_on_cuda(&OP, &p, x, stream);
}
