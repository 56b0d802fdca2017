/* SPDX-License-Identifier: MIT
 * short_conv_host.h - the parts of the short convolution's ops that only the host needs. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_HOST_H
#define TEGULA_ENGRAM_SHORT_CONV_HOST_H

#include "core/math.h"
#include "core/tensor.h"
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
    float total = 0;
    for (int64_t first = 0; first < count; first += CONV_GROUP * CONV_VECTOR) {
        float vector[CONV_GROUP] = { 0 };
        for (int64_t i = first; i < tgl_min(count, first + CONV_GROUP * CONV_VECTOR); i++) {
            const float v = tgl_bf16_to_f32(row[i]);
            float *sum = &vector[(i - first) / CONV_VECTOR];
            *sum = fmaf(v, v, *sum);
        }
        for (int half = CONV_GROUP / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++) vector[i] += vector[i + half];
        total += vector[0];
    }
    return total;
}

#endif
