/* SPDX-License-Identifier: MIT
 * per_block_cast.c - tgl_quant_per_block_cast, and with factors that are given: blocks of any size. */
#include "core/log.h"
#include "cuda/launch.h"
#include "quant/cast.h"
#include "quant/check.h"

typedef struct {
    int64_t num_rows, num_cols;
    tgl_values x;
    int format;
    tgl_blocks blocks;
    tgl_scale_rule rule;
    tgl_sf sf;
    bool is_given;              /* sf is read, not written */
    bool has_out;               /* else only factors are wanted */
    uint8_t *out;
} problem;

/* ---- CPU ---- */

static tgl_status run_on_cpu(const problem *p)
{
    const tgl_cast cast = {
        .from = tgl_read_values(&p->x), .num_rows = p->num_rows, .num_cols = p->num_cols,
        .format = p->format, .rule = p->rule, .block_rows = p->blocks.rows, .block_cols = p->blocks.cols,
        .sf = p->sf, .num_sf = p->blocks.num_cols,
        .is_given = p->is_given, .out = p->has_out ? p->out : NULL,
        .out_stride = tgl_code_bytes(p->format, p->num_cols)
    };
    return tgl_run_cast(&cast);
}

/* ---- checks ---- */

/* sf is one of given_sf and out_sf; out may be NULL only with out_sf. */
static tgl_status check(const DLTensor *x, const DLTensor *given_sf, const DLTensor *out,
                        const DLTensor *out_sf, const tgl_quant_params *params, problem *p)
{
    TGL_TRY(tgl_expect_params(params));
    TGL_TRY(tgl_expect_format(params->format, false));
    TGL_TRY(tgl_expect_block("num_per_tokens", params->num_per_tokens));
    TGL_TRY(tgl_expect_block("num_per_channels", params->num_per_channels));
    TGL_TRY(tgl_expect_values("x", x));
    p->num_rows = x->shape[0];
    p->num_cols = x->shape[1];
    p->x = tgl_values_of(x);
    p->format = params->format;
    p->rule = tgl_scale_rule_of(params->format, params->round_sf);
    p->blocks = tgl_blocks_of(p->num_rows, p->num_cols, params->num_per_tokens, params->num_per_channels);
    const int64_t sf_rows = p->blocks.num_rows, sf_cols = p->blocks.num_cols;
    p->has_out = out || p->is_given;
    if (p->has_out) TGL_TRY(tgl_expect_out_codes("out", out, p->format, p->num_rows, p->num_cols));
    if (p->is_given) TGL_TRY(tgl_expect_sf("sf", given_sf, sf_rows, sf_cols, &p->sf));
    else TGL_TRY(tgl_expect_out_sf("out_sf", out_sf, sf_rows, sf_cols, params->round_sf, &p->sf));
    p->out = out ? tgl_data(out) : NULL;
    const tgl_named tensors[] = { { "x", x }, { "sf", given_sf }, { "out", out }, { "out_sf", out_sf } };
    return tgl_expect_apart(tensors, 2, 4);
}

/* ---- launch ---- */

static tgl_status run_on_cuda(const problem *p, const DLTensor *on, tgl_stream stream)
{
    (void)p, (void)on, (void)stream;
    return tgl_fail(TGL_ERR_INTERNAL, "tgl_quant_per_block_cast: no kernel yet");
}

static tgl_status run(const problem *p, const DLTensor *on, tgl_stream stream)
{
    if (p->num_cols == 0) return TGL_OK;                            /* no kernel has no columns */
    if (p->num_rows == 0 && !tgl_preparing()) return TGL_OK;        /* data may be NULL */
    return tgl_on_cpu(on) ? run_on_cpu(p) : run_on_cuda(p, on, stream);
}

tgl_status tgl_quant_per_block_cast(const DLTensor *x, DLTensor *out, DLTensor *out_sf,
                                    const tgl_quant_params *params, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_per_block_cast", "x", x, "out", out, "out_sf", out_sf, NULL);
    problem p = { .is_given = false };
    TGL_TRY(check(x, NULL, out, out_sf, params, &p));
    return run(&p, x, stream);
}

tgl_status tgl_quant_per_block_cast_with_precomputed_sf(const DLTensor *x, const DLTensor *sf, DLTensor *out,
                                                        const tgl_quant_params *params, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_per_block_cast_with_precomputed_sf", "x", x, "sf", sf, "out", out, NULL);
    problem p = { .is_given = true };
    TGL_TRY(check(x, sf, out, NULL, params, &p));
    return run(&p, x, stream);
}
