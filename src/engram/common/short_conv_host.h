/* SPDX-License-Identifier: MIT
 * short_conv_host.h - the parts of the short convolution's ops that only the host needs. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_HOST_H
#define TEGULA_ENGRAM_SHORT_CONV_HOST_H

#include "core/tensor.h"
#include "engram/common/engram_limits.h"
#include "engram/common/row_cpu.h"
#include "engram/common/short_conv.h"
#include "engram/common/windows_host.h"
#include "tegula/engram.h"

#define CONV_RULES \
    "kernel_size in 1.." TGL_TEXT(CONV_MAX_TAPS) ", dilation < 2^" TGL_TEXT(CONV_DILATION_BITS) ", num_requests < 2^31"

/* What 0, or no has_eps, means. */
#define CONV_DILATION 3
#define CONV_EPS 1e-5f
#define CONV_DILATION_TEXT "dilation: int = " TGL_TEXT(CONV_DILATION)
static inline int64_t tgl_conv_dilation(int64_t given) { return given ? given : CONV_DILATION; }

/* A tensor of weights, NULL: none; with rows, or one behind the other. */
static inline conv_weights tgl_conv_weights(const DLTensor *t, bool has_rows)
{
    if (!t) return (conv_weights){ 0 };
    return (conv_weights){ tgl_data(t), has_rows ? tgl_step_of(t, 0) : 0, tgl_dtype_is(t->dtype, TGL_BF16) };
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
