/* SPDX-License-Identifier: MIT */
#include "quant/common/blocks.h"

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

/* Kernels are compiled for a layout, so it must not change with the number of tokens, and exporters give a
 * dimension of size 1 any stride. So a single column of f32 is row-major whatever its stride, and a single
 * row is row-major unless its factors are not contiguous. */
tgl_sf tgl_sf_of(const DLTensor *t)
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
