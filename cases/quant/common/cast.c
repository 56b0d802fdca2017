/* SPDX-License-Identifier: MIT */
#include "cast.h"

#include "core/status.h"

static bool is_quantised(const case_tensor *x) { return x->dtype & (TGL_E4M3 | TGL_E2M1X2 | TGL_I8 | TGL_U8); }

static tgl_quant_format format_of_x(const case_tensor *x)
{
    return x->dtype == TGL_E4M3 ? TGL_QUANT_E4M3 : TGL_QUANT_E2M1;
}

float cast_value(const case_problem *c, int64_t row, int64_t col)
{
    const case_tensor *x = &c->tensors[X], *x_sf = &c->tensors[X_SF];
    const tgl_quant_params *p = quant_params_in(c);
    if (!is_quantised(x)) return quant_float_at(x, row, col);
    const int64_t m = row / quant_or_all(p->x_num_per_tokens, 1);
    const int64_t k = p->x_num_per_channels ? col / p->x_num_per_channels : 0;
    return quant_decode(format_of_x(x), quant_code_at(x, format_of_x(x), row, col)) * quant_sf_at(x_sf, m, k);
}

tgl_status cast_add_x(case_problem *c, int64_t rows, int64_t cols, int64_t block_rows, int64_t block_cols)
{
    const tgl_quant_params *p = quant_params_of(c);
    const bool is_pairs = case_is(c, "dtype", "e2m1");
    case_tensor *x_sf, *x = case_add(c, X, "x", CASE_IN, case_dtype(c, is_pairs ? "pairs" : "dtype"), 2,
                                     (int64_t[]){ rows, is_pairs ? cols / 2 : cols });
    x->offset = case_int(c, "offset");
    TGL_TRY(quant_lay_out(case_text(c, "layout"), x->shape[1], x->strides));
    TGL_TRY(quant_choose_fill(c, x, block_rows, block_cols));
    if (!is_quantised(x)) return TGL_OK;
    const int64_t m = quant_ceil_div(rows, quant_or_all(p->x_num_per_tokens, 1));
    return quant_add_sf(c, X_SF, "x_sf", CASE_IN, case_text(c, "x_sf"), m,
                        quant_ceil_div(cols, quant_or_all(p->x_num_per_channels, cols)), &x_sf);
}

void cast_add_out(case_problem *c, int64_t rows, int64_t cols, tgl_dtype pairs)
{
    const tgl_quant_format format = quant_params_of(c)->format;
    case_tensor *out = case_add(c, OUT, "out", CASE_OUT, quant_data_dtype(format, pairs), 2,
                                (int64_t[]){ rows, quant_data_cols(format, cols) });
    out->offset = case_int(c, "out_offset");
}

const case_tensor *cast_or_null(const case_problem *c, int index)
{
    return c->tensors[index].name ? &c->tensors[index] : NULL;
}

/* Only per_token_cast has quantised inputs, and only per_block_cast blocks of several rows. */
tgl_status cast_setup(case_problem *c, bool is_per_token, bool is_given)
{
    const int64_t rows = case_int(c, "num_rows"), cols = case_int(c, "num_cols");
    tgl_quant_params *p = quant_params_of(c);
    case_tensor *sf;
    *p = (tgl_quant_params){ .num_per_channels = case_int(c, "num_per_channels"),
                             .round_sf = !is_given && case_int(c, "round") };
    if (is_per_token) {
        p->x_num_per_tokens = case_int(c, "x_num_per_tokens");
        p->x_num_per_channels = case_int(c, "x_num_per_channels");
    } else {
        p->num_per_tokens = case_int(c, "num_per_tokens");
    }
    TGL_TRY(quant_format_named(case_text(c, "format"), &p->format));
    const int64_t block_rows = quant_or_all(p->num_per_tokens, 1);
    const int64_t block_cols = quant_or_all(p->num_per_channels, cols);
    TGL_TRY(cast_add_x(c, rows, cols, block_rows, block_cols));
    TGL_TRY(quant_add_sf(c, is_given ? GIVEN : SF, is_given ? "sf" : "out_sf", is_given ? CASE_IN : CASE_OUT,
                         case_text(c, "sf"), quant_ceil_div(rows, block_rows), quant_ceil_div(cols, block_cols), &sf));
    if (is_given || !case_int(c, "sf_only")) cast_add_out(c, rows, cols, case_dtype(c, "pairs"));
    return TGL_OK;
}

void cast_oracle(case_problem *c)
{
    const tgl_quant_params *p = quant_params_in(c);
    const case_tensor *x = &c->tensors[X];
    const int64_t cols = x->shape[1] * (is_quantised(x) && format_of_x(x) == TGL_QUANT_E2M1 ? 2 : 1);
    quant_cast(&(quant_blocks){ .c = c,
                                .value = cast_value,
                                .num_rows = x->shape[0],
                                .num_cols = cols,
                                .block_rows = quant_or_all(p->num_per_tokens, 1),
                                .block_cols = quant_or_all(p->num_per_channels, cols),
                                .format = p->format,
                                .round = p->round_sf,
                                .given = cast_or_null(c, GIVEN),
                                .sf = cast_or_null(c, SF),
                                .out = cast_or_null(c, OUT) });
}
