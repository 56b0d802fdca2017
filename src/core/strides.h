/* SPDX-License-Identifier: MIT
 * strides.h - the layout of outputs with rows in two dimensions. */
#ifndef TEGULA_STRIDES_H
#define TEGULA_STRIDES_H

#include "core/tensor.h"

/* Of a tensor of three dimensions that passed tgl_expect(): rows are packed, and lie apart, in either order. */
static inline tgl_status tgl_expect_rows_apart(const char *name, const DLTensor *t)
{
    if (tgl_is_empty(t)) return TGL_OK;
    const int64_t n0 = t->shape[0], n1 = t->shape[1], row = t->shape[2];
    const int64_t step0 = n0 > 1 ? tgl_stride(t, 0) : 0, step1 = n1 > 1 ? tgl_stride(t, 1) : 0;
    const bool is_packed = row == 1 || tgl_stride(t, 2) == 1;
    const bool is_in_order = (n1 == 1 || step1 >= row) && (n0 == 1 || step0 >= (n1 - 1) * step1 + row);
    const bool is_swapped = (n0 == 1 || step0 >= row) && (n1 == 1 || step1 >= (n0 - 1) * step0 + row);
    if (is_packed && (is_in_order || is_swapped)) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT,
                    "%s: strides are [%lld, %lld, %lld], want 1 in the last dimension, and rows "
                    "that do not overlap",
                    name, (long long)tgl_stride(t, 0), (long long)tgl_stride(t, 1), (long long)tgl_stride(t, 2));
}

#endif
