/* SPDX-License-Identifier: MIT
 * row_cpu.h - the sum of products of two rows of bf16, in the order that row_sum.cuh says. The fast loop is in
 * gate_fast.c. */
#ifndef TEGULA_ENGRAM_ROW_CPU_H
#define TEGULA_ENGRAM_ROW_CPU_H

#include <math.h>

#include "core/cpu.h"
#include "core/math.h"
#include "engram/common/gate.h"

TGL_DECLARE_FAST(float, tgl_row_products, const uint16_t *a, const uint16_t *b, int64_t count);

static inline float tgl_plain_row_products(const uint16_t *a, const uint16_t *b, int64_t count)
{
    float total = 0;
    for (int64_t first = 0; first < count; first += GATE_GROUP * GATE_VECTOR) {
        float vector[GATE_GROUP] = { 0 };
        for (int64_t i = first; i < tgl_min(count, first + GATE_GROUP * GATE_VECTOR); i++) {
            float *sum = &vector[(i - first) / GATE_VECTOR];
            *sum = fmaf(tgl_bf16_to_f32(a[i]), tgl_bf16_to_f32(b[i]), *sum);
        }
        for (int half = GATE_GROUP / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++) vector[i] += vector[i + half];
        total += vector[0];
    }
    return total;
}

#endif
