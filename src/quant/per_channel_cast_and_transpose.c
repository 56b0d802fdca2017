/* SPDX-License-Identifier: MIT
 * per_channel_cast_and_transpose.c - tgl_quant_per_channel_cast_and_transpose: blocks of one column, codes
 * transposed. */
#include "quant/common/channel_op.h"
#include "quant/common/params.h"

typedef tgl_channel_problem problem;

/* ---- CPU ---- */

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const tgl_cast cast = { .from = tgl_read_values(&p->values),
                            .num_rows = p->num_rows,
                            .num_cols = p->num_cols,
                            .format = TGL_FORMAT_E4M3,
                            .rule = p->rule,
                            .block_rows = p->blocks.rows,
                            .block_cols = 1,
                            .sf = p->sf,
                            .num_sf = p->num_cols,
                            .out = p->out,
                            .out_stride = p->num_rows,
                            .is_transposed = true };
    return tgl_run_cast(&cast);
}

TGL_SIZES(sizes, num_rows, num_cols);
tgl_signature tgl_quant_per_channel_cast_and_transpose_signature =
    TGL_SIGNATURE("quant_per_channel_cast_and_transpose(x: bf16|f32[num_rows, num_cols] rows,"
                  " num_per_tokens: int = 1, round_sf: bool)"
                  " -> out: e4m3[num_cols, num_rows], out_sf: f32[num_rows / num_per_tokens, num_cols]"
                  " where num_cols < 2^59",
                  &TGL_QUANT_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_kernel kernel = {
        "quant/per_channel_cast_and_transpose",
        { { "X", tgl_channel_x(p) }, { "BLOCK_ROWS", tgl_channel_block_rows(p) }, { "IS_ROUNDED", p->rule.is_rounded } }
    };
    return tgl_channel_plan(p, kernel, false, kernels);
}

tgl_status tgl_quant_per_channel_cast_and_transpose(const DLTensor *x, DLTensor *out, DLTensor *out_sf,
                                                    const tgl_quant_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, out, out_sf };
    sizes n;
    TGL_TRY(tgl_take(&tgl_quant_per_channel_cast_and_transpose_signature, tensors, params, &n.num_rows));
    if (n.num_cols == 0) return TGL_OK; /* kernels need at least one column */
    problem p = { .cpu = cpu,
                  .plan = plan,
                  .num_rows = n.num_rows,
                  .num_cols = n.num_cols,
                  .values = tgl_values_of(x),
                  .blocks = tgl_blocks_of(n.num_rows, n.num_cols, params->num_per_tokens, 1),
                  .rule = tgl_scale_rule_of(TGL_FORMAT_E4M3, params->round_sf),
                  .sf = { tgl_data(out_sf), n.num_cols, TGL_SF_ROWS },
                  .is_transposed = true,
                  .out = tgl_data(out) };
    return tgl_run(&tgl_quant_per_channel_cast_and_transpose_signature, &tgl_channel_op, tensors, &p, stream);
}
