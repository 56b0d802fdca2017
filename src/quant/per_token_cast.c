/* SPDX-License-Identifier: MIT
 * per_token_cast.c - tgl_quant_per_token_cast, and with factors that are given: blocks of one row. */
#include <inttypes.h>

#include "core/log.h"
#include "cuda/launch.h"
#include "quant/cast.h"
#include "quant/check.h"

typedef struct {
    int64_t num_rows, num_cols;
    int x_format;               /* of the codes; VALUES: x has numbers */
    tgl_values values;
    tgl_codes codes;
    int format;
    tgl_blocks blocks;
    tgl_scale_rule rule;
    tgl_sf sf;
    bool is_given;              /* sf is read, not written */
    bool has_out;               /* else only factors are wanted */
    uint8_t *out;
} problem;
enum { VALUES = -1 };

/* ---- CPU ---- */

static tgl_status run_on_cpu(const problem *p)
{
    const tgl_cast cast = {
        .from = p->x_format == VALUES ? tgl_read_values(&p->values) : tgl_read_codes(&p->codes),
        .num_rows = p->num_rows, .num_cols = p->num_cols, .format = p->format, .rule = p->rule,
        .block_rows = 1, .block_cols = p->blocks.cols, .sf = p->sf, .num_sf = p->blocks.num_cols,
        .is_given = p->is_given,
        .out = p->has_out ? p->out : NULL, .out_stride = tgl_code_bytes(p->format, p->num_cols)
    };
    return tgl_run_cast(&cast);
}

/* ---- checks ---- */

static tgl_status check_x(const DLTensor *x, const DLTensor *x_sf, const tgl_quant_params *params, problem *p)
{
    if (!x_sf) {
        TGL_TRY(tgl_expect_values("x", x));
        p->x_format = VALUES;
        p->num_rows = x->shape[0];
        p->num_cols = x->shape[1];
        p->values = tgl_values_of(x);
        return TGL_OK;
    }
    TGL_TRY(tgl_expect("x", x, TGL_E4M3 | TGL_E2M1X2 | TGL_I8 | TGL_U8, 2, TGL_ROWS));
    p->x_format = tgl_dtype_is(x->dtype, TGL_E4M3) ? TGL_FORMAT_E4M3 : TGL_FORMAT_E2M1;
    TGL_TRY(tgl_expect_codes("x", x, p->x_format));
    p->num_rows = x->shape[0];
    p->num_cols = tgl_num_cols(x, p->x_format);
    TGL_TRY(tgl_expect_block("x_num_per_tokens", params->x_num_per_tokens));
    TGL_TRY(tgl_expect_block("x_num_per_channels", params->x_num_per_channels));
    const tgl_blocks blocks = tgl_blocks_of(p->num_rows, p->num_cols, params->x_num_per_tokens,
                                            params->x_num_per_channels);
    tgl_sf sf;
    TGL_TRY(tgl_expect_sf("x_sf", x_sf, blocks.num_rows, blocks.num_cols, &sf));
    p->codes = tgl_codes_of(x, p->x_format, sf, blocks);
    return TGL_OK;
}

/* sf is one of given_sf and out_sf; out may be NULL only with out_sf. */
static tgl_status check(const DLTensor *x, const DLTensor *x_sf, const DLTensor *given_sf,
                        const DLTensor *out, const DLTensor *out_sf, const tgl_quant_params *params,
                        problem *p)
{
    TGL_TRY(tgl_expect_params(params));
    TGL_TRY(tgl_expect_format(params->format, !x_sf));
    TGL_TRY(tgl_expect_block("num_per_channels", params->num_per_channels));
    TGL_TRY(check_x(x, x_sf, params, p));
    p->format = params->format;
    p->rule = tgl_scale_rule_of(params->format, params->round_sf);
    if (p->format == TGL_FORMAT_E5M6 && params->num_per_channels % 8)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_per_channels: is %" PRId64 ", want a multiple of 8 for e5m6",
                        params->num_per_channels);
    p->blocks = tgl_blocks_of(p->num_rows, p->num_cols, 1, params->num_per_channels);
    const int64_t num_sf = p->blocks.num_cols;
    p->has_out = out || p->is_given;
    if (p->has_out) TGL_TRY(tgl_expect_out_codes("out", out, p->format, p->num_rows, p->num_cols));
    if (p->is_given) TGL_TRY(tgl_expect_sf("sf", given_sf, p->num_rows, num_sf, &p->sf));
    else TGL_TRY(tgl_expect_out_sf("out_sf", out_sf, p->num_rows, num_sf, params->round_sf, &p->sf));
    p->out = out ? tgl_data(out) : NULL;
    const tgl_named tensors[] = {
        { "x", x }, { "x_sf", x_sf }, { "sf", given_sf }, { "out", out }, { "out_sf", out_sf }
    };
    return tgl_expect_apart(tensors, 3, 5);
}

/* ---- launch ---- */

static tgl_status run_on_cuda(const problem *p, const DLTensor *on, tgl_stream stream)
{
    (void)p, (void)on, (void)stream;
    return tgl_fail(TGL_ERR_INTERNAL, "tgl_quant_per_token_cast: no kernel yet");
}

static tgl_status run(const problem *p, const DLTensor *on, tgl_stream stream)
{
    if (p->num_cols == 0) return TGL_OK;                            /* no kernel has no columns */
    if (p->num_rows == 0 && !tgl_preparing()) return TGL_OK;        /* data may be NULL */
    return tgl_on_cpu(on) ? run_on_cpu(p) : run_on_cuda(p, on, stream);
}

tgl_status tgl_quant_per_token_cast(const DLTensor *x, const DLTensor *x_sf, DLTensor *out, DLTensor *out_sf,
                                    const tgl_quant_params *params, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_per_token_cast", "x", x, "x_sf", x_sf, "out", out, "out_sf", out_sf, NULL);
    problem p = { .is_given = false };
    TGL_TRY(check(x, x_sf, NULL, out, out_sf, params, &p));
    return run(&p, x, stream);
}

tgl_status tgl_quant_per_token_cast_with_precomputed_sf(const DLTensor *x, const DLTensor *x_sf,
                                                        const DLTensor *sf, DLTensor *out,
                                                        const tgl_quant_params *params, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_per_token_cast_with_precomputed_sf", "x", x, "x_sf", x_sf, "sf", sf,
                     "out", out, NULL);
    problem p = { .is_given = true };
    TGL_TRY(check(x, x_sf, sf, out, NULL, params, &p));
    return run(&p, x, stream);
}
