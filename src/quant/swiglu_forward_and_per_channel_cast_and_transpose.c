/* SPDX-License-Identifier: MIT
 * swiglu_forward_and_per_channel_cast_and_transpose.c - the tgl_quant_ function of that name: activations,
 * rounded to bf16, in blocks of one column. */
#include <math.h>

#include "quant/common/activations.h"
#include "quant/common/channel_op.h"
#include "quant/common/params.h"

typedef tgl_channel_problem problem;

/* ---- CPU ---- */

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const tgl_activations activations = { .x = p->values, .num_cols = p->num_cols, .clamp = p->clamp, .is_bf16 = true };
    const tgl_cast cast = { .from = tgl_read_activations(&activations),
                            .num_rows = p->num_rows,
                            .num_cols = p->num_cols,
                            .format = TGL_FORMAT_E4M3,
                            .rule = p->rule,
                            .block_rows = p->blocks.rows,
                            .block_cols = 1,
                            .sf = p->sf,
                            .num_sf = p->num_cols,
                            .out = p->out,
                            .out_stride = p->is_transposed ? p->num_rows : p->num_cols,
                            .is_transposed = p->is_transposed };
    return tgl_run_cast(&cast);
}

TGL_SIZES(sizes, num_rows, num_cols);
tgl_signature tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose_signature = TGL_SIGNATURE(
    "quant_swiglu_forward_and_per_channel_cast_and_transpose("
    "x: bf16|f32[num_rows, 2 * num_cols (gates, ups)] rows, num_per_tokens: int = 1, round_sf: bool,"
    " without_transpose: bool, " TGL_SWIGLU_CLAMP ")"
    " -> out: e4m3[num_rows if without_transpose else num_cols, num_cols if without_transpose else num_rows],"
    " out_sf: f32[num_rows / num_per_tokens, num_cols] where num_cols < 2^59",
    &TGL_QUANT_PARAMS, TGL_SIZES_OF(sizes));

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

tgl_status tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose(const DLTensor *x, DLTensor *out,
                                                                       DLTensor *out_sf, const tgl_quant_params *params,
                                                                       tgl_stream stream)
{
    tgl_signature *const signature = &tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose_signature;
    const DLTensor *tensors[] = { x, out, out_sf };
    sizes n;
    TGL_TRY(tgl_take(signature, tensors, params, &n.num_rows));
    if (n.num_cols == 0) return TGL_OK; /* kernels need at least one column */
    problem p = { .cpu = cpu,
                  .plan = plan,
                  .num_rows = n.num_rows,
                  .num_cols = n.num_cols,
                  .values = tgl_values_of(x),
                  .is_swiglu = true,
                  .clamp = params->has_swiglu_clamp_value ? params->swiglu_clamp_value : INFINITY,
                  .blocks = tgl_blocks_of(n.num_rows, n.num_cols, params->num_per_tokens, 1),
                  .rule = tgl_scale_rule_of(TGL_FORMAT_E4M3, params->round_sf),
                  .sf = { tgl_data(out_sf), n.num_cols, TGL_SF_ROWS },
                  .is_transposed = !params->without_transpose,
                  .out = tgl_data(out) };
    return tgl_run(signature, &tgl_channel_op, tensors, &p, stream);
}
