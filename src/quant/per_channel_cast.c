/* SPDX-License-Identifier: MIT
 * per_channel_cast.c - tgl_quant_per_channel_cast: blocks of one column; a map may name the rows. */
#include <string.h>

#include "quant/common/channel_op.h"
#include "quant/common/params.h"

typedef tgl_channel_problem problem;

/* ---- CPU ---- */

typedef struct {
    const problem *p;
    tgl_reader x;
} gather;

/* The row of x; -1: zeros, which become +0. */
static int64_t token_of(const problem *p, int64_t row)
{
    const int64_t token = p->has_map ? p->pos_to_token[row] : row;
    return token >= 0 && token < p->num_tokens ? token : -1;
}

static float gathered(const void *context, int64_t row, int64_t col)
{
    const gather *g = context;
    const int64_t token = token_of(g->p, row);
    return token >= 0 ? g->x.value(g->x.context, token, col) : 0;
}

static const void *read_gathered(const void *context, int64_t row, int64_t col, int64_t count, float *buffer)
{
    const gather *g = context;
    const int64_t token = token_of(g->p, row);
    if (token >= 0) return g->x.read(g->x.context, token, col, count, buffer);
    return memset(buffer, 0, (size_t)count * sizeof *buffer);
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const gather g = { p, p->has_codes ? tgl_read_codes(&p->codes) : tgl_read_values(&p->values) };
    const tgl_cast cast = { .from = { gathered, read_gathered, &g, !p->has_codes && p->values.is_bf16, p->has_codes,
                                      p->has_codes || p->has_map ? 0 : p->values.row_bytes },
                            .num_rows = p->num_rows,
                            .num_cols = p->num_cols,
                            .format = TGL_FORMAT_E4M3,
                            .rule = p->rule,
                            .block_rows = p->blocks.rows,
                            .block_cols = 1,
                            .sf = p->sf,
                            .num_sf = p->num_cols,
                            .out = p->out,
                            .out_stride = p->num_cols };
    return tgl_run_cast(&cast);
}

TGL_SIZES(sizes, num_tokens, num_cols, num_rows);
tgl_signature tgl_quant_per_channel_cast_signature =
    TGL_SIGNATURE("quant_per_channel_cast(x: (e4m3 if x_sf else bf16|f32)[num_tokens, num_cols] rows,"
                  " x_sf: sf[num_tokens, num_cols / x_num_per_channels]?, pos_to_token: i32[num_rows]?,"
                  " num_per_tokens: int = 1, x_num_per_channels: int = num_cols with x_sf, round_sf: bool)"
                  " -> out: e4m3[num_rows if pos_to_token else num_tokens, num_cols],"
                  " out_sf: f32[(num_rows if pos_to_token else num_tokens) / num_per_tokens, num_cols]"
                  " where num_cols < 2^59",
                  &TGL_QUANT_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

/* Codes in whole strips, with one factor per row of a strip. Without a map a block for each tile is faster:
 * 33.5 us for 8001 x 7168 on H200 (2026-11), staged 36.6; with a map 35.1 and 32.5. */
static bool may_stage(const problem *p)
{
    const int64_t strip_cols = CHANNEL_LANES(X_E4M3) * CHANNEL_VALUES(X_E4M3), x_cols = p->codes.block_cols;
    return p->has_codes && p->has_map && tgl_channel_block_rows(p) != 0 && p->num_cols % strip_cols == 0 &&
           (x_cols % strip_cols == 0 || x_cols >= p->num_cols);
}

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const bool is_wide =
        p->has_codes && p->codes.block_cols < p->num_cols && p->codes.block_cols % CHANNEL_VALUES(X_E4M3) != 0;
    const tgl_kernel kernel = { "quant/per_channel_cast",
                                { { "X", tgl_channel_x(p) },
                                  { "X_SF_KIND", p->has_codes ? p->codes.sf.kind : 0 },
                                  { "IS_WIDE", is_wide },
                                  { "HAS_MAP", p->has_map },
                                  { "BLOCK_ROWS", tgl_channel_block_rows(p) },
                                  { "IS_ROUNDED", p->rule.is_rounded } } };
    return tgl_channel_plan(p, kernel, may_stage(p), kernels);
}

tgl_status tgl_quant_per_channel_cast(const DLTensor *x, const DLTensor *x_sf, const DLTensor *pos_to_token,
                                      DLTensor *out, DLTensor *out_sf, const tgl_quant_params *params,
                                      tgl_stream stream)
{
    const DLTensor *tensors[] = { x, x_sf, pos_to_token, out, out_sf };
    sizes n;
    TGL_TRY(tgl_take(&tgl_quant_per_channel_cast_signature, tensors, params, &n.num_tokens));
    if (n.num_cols == 0) return TGL_OK; /* kernels need at least one column */
    const int64_t num_rows = pos_to_token ? n.num_rows : n.num_tokens;
    problem p = { .cpu = cpu,
                  .plan = plan,
                  .num_tokens = n.num_tokens,
                  .num_rows = num_rows,
                  .num_cols = n.num_cols,
                  .has_codes = x_sf,
                  .has_map = pos_to_token,
                  .pos_to_token = tgl_data_or_null(pos_to_token),
                  .blocks = tgl_blocks_of(num_rows, n.num_cols, params->num_per_tokens, 1),
                  .rule = tgl_scale_rule_of(TGL_FORMAT_E4M3, params->round_sf),
                  .sf = { tgl_data(out_sf), n.num_cols, TGL_SF_ROWS },
                  .out = tgl_data(out) };
    if (x_sf)
        p.codes = tgl_codes_of(x, TGL_FORMAT_E4M3, tgl_sf_of(x_sf),
                               tgl_blocks_of(n.num_tokens, n.num_cols, 1, params->x_num_per_channels));
    else p.values = tgl_values_of(x);
    return tgl_run(&tgl_quant_per_channel_cast_signature, &tgl_channel_op, tensors, &p, stream);
}
