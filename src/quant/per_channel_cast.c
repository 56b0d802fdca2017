/* SPDX-License-Identifier: MIT
 * per_channel_cast.c - tgl_quant_per_channel_cast: blocks of one column, of rows that a map names. */
#include <string.h>

#include "core/log.h"
#include "quant/common/channel_op.h"
#include "quant/common/check.h"

typedef tgl_channel_problem problem;

/* ---- CPU ---- */

static const void *read_gathered(const void *context, int64_t row, int64_t col, int64_t count, float *buffer)
{
    const problem *p = context;
    const int64_t token = p->has_map ? p->pos_to_token[row] : row;
    const tgl_reader x = p->has_codes ? tgl_read_codes(&p->codes) : tgl_read_values(&p->values);
    if (token >= 0 && token < p->num_tokens) return x.read(x.context, token, col, count, buffer);
    return memset(buffer, 0, (size_t)count * sizeof *buffer);       /* counts for nothing, becomes +0 */
}

static tgl_status run_on_cpu(const void *context)
{
    const problem *p = context;
    const tgl_cast cast = {
        .from = { read_gathered, p, !p->has_codes && p->values.is_bf16, p->has_codes,
                  p->has_codes || p->has_map ? 0 : p->values.row_bytes },
        .num_rows = p->num_rows, .num_cols = p->num_cols, .format = TGL_FORMAT_E4M3, .rule = p->rule,
        .block_rows = p->blocks.rows, .block_cols = 1, .sf = p->sf, .num_sf = p->num_cols,
        .out = p->out, .out_stride = p->num_cols
    };
    return tgl_run_cast(&cast);
}

/* ---- checks ---- */

static tgl_status check(const DLTensor *x, const DLTensor *x_sf, const DLTensor *pos_to_token,
                        const DLTensor *out, const DLTensor *out_sf, const tgl_quant_params *params,
                        problem *p)
{
    TGL_TRY(tgl_expect_params(params));
    TGL_TRY(tgl_expect_block("num_per_tokens", params->num_per_tokens));
    p->has_codes = x_sf;
    TGL_TRY(x_sf ? tgl_expect_codes("x", x, TGL_FORMAT_E4M3) : tgl_expect_values("x", x));
    p->num_tokens = x->shape[0];
    p->num_cols = x->shape[1];
    if (x_sf) {
        TGL_TRY(tgl_expect_block("x_num_per_channels", params->x_num_per_channels));
        const tgl_blocks blocks = tgl_blocks_of(p->num_tokens, p->num_cols, 1, params->x_num_per_channels);
        tgl_sf sf;
        TGL_TRY(tgl_expect_sf("x_sf", x_sf, blocks.num_rows, blocks.num_cols, &sf));
        p->codes = tgl_codes_of(x, TGL_FORMAT_E4M3, sf, blocks);
    } else {
        p->values = tgl_values_of(x);
    }
    p->has_map = pos_to_token;
    p->num_rows = p->num_tokens;
    if (pos_to_token) {
        TGL_TRY(tgl_expect("pos_to_token", pos_to_token, TGL_I32, 1, TGL_PACKED));
        p->num_rows = pos_to_token->shape[0];
        p->pos_to_token = tgl_data(pos_to_token);
    }
    p->blocks = tgl_blocks_of(p->num_rows, p->num_cols, params->num_per_tokens, 1);
    p->rule = tgl_scale_rule_of(TGL_FORMAT_E4M3, params->round_sf);
    TGL_TRY(tgl_expect_out_codes("out", out, TGL_FORMAT_E4M3, p->num_rows, p->num_cols));
    TGL_TRY(tgl_expect_matrix("out_sf", out_sf, TGL_F32, p->blocks.num_rows, p->num_cols));
    p->sf = (tgl_sf){ tgl_data(out_sf), p->num_cols, TGL_SF_ROWS };
    p->out = tgl_data(out);
    const tgl_named tensors[] = {
        { "x", x }, { "x_sf", x_sf }, { "pos_to_token", pos_to_token }, { "out", out }, { "out_sf", out_sf }
    };
    return tgl_expect_apart(tensors, 3, 5);
}

/* ---- launch ---- */

/* Codes of whole strips, in each of which a row has one factor. Without a map they wait for nothing, and a
 * block for each tile is faster: 33.5 us for 8001 x 7168 on H200, staged 36.6; with a map 35.1 and 32.5. */
static bool may_stage(const problem *p)
{
    const int64_t strip_cols = CHANNEL_LANES(X_E4M3) * CHANNEL_VALUES(X_E4M3), x_cols = p->codes.block_cols;
    return p->has_codes && p->has_map && tgl_channel_block_rows(p) != 0 && p->num_cols % strip_cols == 0 &&
           (x_cols % strip_cols == 0 || x_cols >= p->num_cols);
}

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const bool is_wide = p->has_codes && p->codes.block_cols < p->num_cols &&
                         p->codes.block_cols % CHANNEL_VALUES(X_E4M3) != 0;
    const tgl_kernel kernel = { "quant/per_channel_cast",
                                { { "X", tgl_channel_x(p) },
                                  { "X_SF_KIND", p->has_codes ? p->codes.sf.kind : 0 },
                                  { "IS_WIDE", is_wide },
                                  { "HAS_MAP", p->has_map },
                                  { "BLOCK_ROWS", tgl_channel_block_rows(p) },
                                  { "IS_ROUNDED", p->rule.is_rounded } } };
    return tgl_channel_plan(p, kernel, may_stage(p), kernels);
}

static const tgl_op OP = { run_on_cpu, plan, TGL_CHANNEL_CANDIDATES };

tgl_status tgl_quant_per_channel_cast(const DLTensor *x, const DLTensor *x_sf, const DLTensor *pos_to_token,
                                      DLTensor *out, DLTensor *out_sf, const tgl_quant_params *params,
                                      tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_per_channel_cast", "x", x, "x_sf", x_sf, "pos_to_token", pos_to_token,
                     "out", out, "out_sf", out_sf, NULL);
    problem p = { 0 };
    TGL_TRY(check(x, x_sf, pos_to_token, out, out_sf, params, &p));
    if (p.num_cols == 0) return TGL_OK;                             /* no kernel has no columns */
    if (p.num_rows == 0 && !tgl_preparing()) return TGL_OK;         /* data may be NULL */
    return tgl_on_cpu(x) ? run_on_cpu(&p) : tgl_run_on_cuda(&OP, &p, x, stream);
}
