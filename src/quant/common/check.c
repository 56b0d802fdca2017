/* SPDX-License-Identifier: MIT */
#include "quant/common/check.h"

#include <inttypes.h>

/* ---- parameters ---- */

tgl_status tgl_expect_params(const tgl_quant_params *params)
{
    if (!params) return tgl_fail(TGL_ERR_ARGUMENT, "params: is NULL, want a struct");
    return tgl_expect_reserved(params->reserved);
}

tgl_status tgl_expect_format(tgl_quant_format format, bool has_e5m6)
{
    const int most = has_e5m6 ? TGL_QUANT_E5M6 : TGL_QUANT_E2M1;
    if ((int)format >= 0 && (int)format <= most) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "format: is %d, want %s", (int)format,
                    has_e5m6 ? "0 (e4m3), 1 (e2m1) or 2 (e5m6)" : "0 (e4m3) or 1 (e2m1)");
}

tgl_status tgl_expect_block(const char *name, int64_t value)
{
    if (value >= 0) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: is %" PRId64 ", want >= 0", name, value);
}

tgl_status tgl_expect_swiglu_clamp(const tgl_quant_params *params)
{
    if (!params->has_swiglu_clamp_value || params->swiglu_clamp_value >= 0) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "swiglu_clamp_value: is %g, want >= 0",
                    (double)params->swiglu_clamp_value);
}

/* ---- tensors ---- */

static tgl_status expect_cols(const char *name, const DLTensor *t)
{
    return tgl_expect_shape(name, t, (tgl_dim[]){ { 0, INT64_MAX }, { 0, TGL_MAX_COLS } });
}

tgl_status tgl_expect_values(const char *name, const DLTensor *t)
{
    TGL_TRY(tgl_expect(name, t, TGL_BF16 | TGL_F32, 2, TGL_ROWS));
    return expect_cols(name, t);
}

tgl_status tgl_expect_even(const char *name, const DLTensor *t)
{
    if (t->shape[1] % 2 == 0) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: columns are %" PRId64 ", want an even number (gates, ups)", name,
                    t->shape[1]);
}

int64_t tgl_num_cols(const DLTensor *codes, int format)
{
    const int64_t width = codes->shape[1];
    return format == TGL_FORMAT_E4M3 ? width : format == TGL_FORMAT_E2M1 ? width * 2 : width / 12 * 8;
}

static tgl_status expect_codes(const char *name, const DLTensor *t, int format, tgl_layout layout)
{
    static const tgl_dtype dtypes[] = { [TGL_FORMAT_E4M3] = TGL_E4M3,
                                        [TGL_FORMAT_E2M1] = TGL_I8 | TGL_U8 | TGL_E2M1X2,
                                        [TGL_FORMAT_E5M6] = TGL_U8 };
    TGL_TRY(tgl_expect(name, t, dtypes[format], 2, layout));
    TGL_TRY(expect_cols(name, t));
    if (format != TGL_FORMAT_E5M6) return TGL_OK;
    if (t->shape[1] % 12)
        return tgl_fail(TGL_ERR_ARGUMENT, "%s: rows are %" PRId64 " bytes, want a multiple of 12 for e5m6",
                        name, t->shape[1]);
    if (tgl_is_empty(t)) return TGL_OK;
    if (t->shape[0] > 1 && tgl_stride(t, 0) % 4)
        return tgl_fail(TGL_ERR_ARGUMENT, "%s: rows are %" PRId64
                        " bytes apart, want a multiple of 4 for e5m6", name, tgl_stride(t, 0));
    return tgl_expect_aligned(name, t, 4);
}

tgl_status tgl_expect_codes(const char *name, const DLTensor *t, int format)
{
    return expect_codes(name, t, format, TGL_ROWS);
}

tgl_status tgl_expect_whole_codes(int64_t num_cols, int format)
{
    const int group = format == TGL_FORMAT_E4M3 ? 1 : format == TGL_FORMAT_E2M1 ? 2 : 8;
    if (num_cols % group == 0) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "x: columns are %" PRId64 ", want a multiple of %d for %s", num_cols,
                    group, format == TGL_FORMAT_E2M1 ? "e2m1" : "e5m6");
}

tgl_status tgl_expect_out_codes(const char *name, const DLTensor *t, int format, int64_t num_rows,
                                int64_t num_cols)
{
    TGL_TRY(tgl_expect_whole_codes(num_cols, format));
    TGL_TRY(expect_codes(name, t, format, TGL_PACKED));
    const int64_t width = tgl_code_bytes(format, num_cols);
    return tgl_expect_shape(name, t, (tgl_dim[]){ { num_rows, num_rows }, { width, width } });
}

tgl_status tgl_expect_list(const char *name, const DLTensor *t, tgl_dtype dtype, int64_t size)
{
    TGL_TRY(tgl_expect(name, t, dtype, 1, TGL_PACKED));
    return tgl_expect_shape(name, t, (tgl_dim[]){ { size, size } });
}

tgl_status tgl_expect_matrix(const char *name, const DLTensor *t, tgl_dtype dtype, int64_t num_rows,
                             int64_t num_cols)
{
    TGL_TRY(tgl_expect(name, t, dtype, 2, TGL_PACKED));
    return tgl_expect_shape(name, t, (tgl_dim[]){ { num_rows, num_rows }, { num_cols, num_cols } });
}
