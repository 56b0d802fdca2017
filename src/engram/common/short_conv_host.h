/* SPDX-License-Identifier: MIT
 * short_conv_host.h - the parts of the short convolution's ops that only the host needs. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_HOST_H
#define TEGULA_ENGRAM_SHORT_CONV_HOST_H

#include "core/math.h"
#include "core/tensor.h"
#include "engram/common/row_cpu.h"
#include "engram/common/short_conv.h"

/* A tensor of weights, NULL: none; with rows, or one behind the other. */
static inline conv_weights tgl_conv_weights(const DLTensor *t, bool has_rows)
{
    if (!t) return (conv_weights){ 0 };
    const bool is_strided = has_rows && !tgl_is_empty(t) && t->shape[0] > 1;
    return (conv_weights){ tgl_data(t), is_strided ? tgl_stride(t, 0) : 0, tgl_dtype_is(t->dtype, TGL_BF16) };
}

/* Are all rows aligned to vectors? */
static inline bool tgl_conv_has_vectors(const conv_weights *w)
{
    return ((uintptr_t)w->data | (uint64_t)w->stride * (w->is_bf16 ? 2 : 4)) % 16 == 0;
}

/* In the order that short_conv.h says. */
static inline float tgl_conv_sum_of_squares(const uint16_t *row, int64_t count)
{
    return TGL_CHOOSE(tgl_plain_row_products, tgl_row_products)(row, row, count);
}

#endif
