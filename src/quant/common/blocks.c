/* SPDX-License-Identifier: MIT */
#include "quant/common/blocks.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/math.h"
#include "tegula/quant.h"

_Static_assert((int)TGL_QUANT_E4M3 == TGL_FORMAT_E4M3 && (int)TGL_QUANT_E2M1 == TGL_FORMAT_E2M1 &&
                   (int)TGL_QUANT_E5M6 == TGL_FORMAT_E5M6,
               "kernels and the header number formats alike");

tgl_blocks tgl_blocks_of(int64_t num_rows, int64_t num_cols, int64_t rows, int64_t cols)
{
    const bool has_all = cols == 0 || cols > num_cols;
    tgl_blocks b = { .rows = rows ? rows : 1, .cols = !has_all ? cols : num_cols ? num_cols : 1 };
    b.num_rows = tgl_ceil_div(num_rows, b.rows);
    b.num_cols = tgl_ceil_div(num_cols, b.cols);
    return b;
}

/* The layout must not change with the number of tokens, since kernels may be compiled for it. So strides
 * decide only where they mean something: a single column of f32 is row-major with any stride, and a single
 * row is row-major unless its factors lie apart. (Exporters give a dimension of size 1 any stride.) */
static tgl_sf layout_of(const DLTensor *t)
{
    const int64_t down = tgl_stride(t, 0), right = tgl_stride(t, 1);
    tgl_sf sf = { tgl_data(t), right, TGL_SF_COLS };
    if (tgl_dtype_is(t->dtype, TGL_I32)) {
        sf.kind = TGL_SF_PACKED;
    } else if (t->shape[1] == 1 || (t->shape[0] > 1 ? down != 1 : right == 1)) {
        sf.kind = TGL_SF_ROWS;
        sf.stride = down;
    }
    return sf;
}

static tgl_status expect_strides(const char *name, const DLTensor *t, const tgl_sf *sf, bool is_written)
{
    const bool is_rows = sf->kind == TGL_SF_ROWS;
    const int packed = is_rows ? 1 : 0, apart = 1 - packed;
    const int64_t count = t->shape[packed], least = is_written ? count : 0;
    const bool is_packed = count == 1 || tgl_stride(t, packed) == 1;
    if (is_packed && (t->shape[apart] == 1 || tgl_stride(t, apart) >= least)) return TGL_OK;
    char want[96];
    const int n = snprintf(want, sizeof want, "[1, >= %" PRId64 "]", is_written ? t->shape[0] : 0);
    if (sf->kind != TGL_SF_PACKED)
        snprintf(want + n, sizeof want - (size_t)n, " or [>= %" PRId64 ", 1]", is_written ? t->shape[1] : 0);
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: strides are [%" PRId64 ", %" PRId64 "], want %s", name,
                    tgl_stride(t, 0), tgl_stride(t, 1), want);
}

static tgl_status expect(const char *name, const DLTensor *t, int64_t num_rows, int64_t num_cols,
                         bool is_written, tgl_sf *sf)
{
    TGL_TRY(tgl_expect(name, t, TGL_F32 | TGL_I32, 2, TGL_STRIDED));
    const int64_t width = tgl_dtype_is(t->dtype, TGL_I32) ? tgl_ceil_div(num_cols, 4) : num_cols;
    TGL_TRY(tgl_expect_shape(name, t, (tgl_dim[]){ { num_rows, num_rows }, { width, width } }));
    *sf = layout_of(t);
    return tgl_is_empty(t) ? TGL_OK : expect_strides(name, t, sf, is_written);
}

tgl_status tgl_expect_sf(const char *name, const DLTensor *t, int64_t num_rows, int64_t num_cols, tgl_sf *sf)
{
    return expect(name, t, num_rows, num_cols, false, sf);
}

tgl_status tgl_expect_out_sf(const char *name, const DLTensor *t, int64_t num_rows, int64_t num_cols,
                             bool round_sf, tgl_sf *sf)
{
    TGL_TRY(expect(name, t, num_rows, num_cols, true, sf));
    if (sf->kind == TGL_SF_PACKED && !round_sf)
        return tgl_fail(TGL_ERR_ARGUMENT, "round_sf: is false, want true for %s of i32 (packed)", name);
    return TGL_OK;
}
