/* SPDX-License-Identifier: MIT
 * short_conv_cpu.h - the loop of short_conv_fwd and gate_conv_fwd over a row's columns, which is plain in short_conv.c,
 * fast in short_conv_fast.c. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_CPU_H
#define TEGULA_ENGRAM_SHORT_CONV_CPU_H

#include "core/cpu.h"
#include "engram/common/short_conv.h"

/* One of the rows that a token's result is made of: an input with its rstd, or a row of the ring, or nothing: both
 * NULL. The input is x, or, with gate, gate * x. */
typedef struct {
    const uint16_t *x, *ring;
    float rstd, gate;
} conv_tap;

/* A row of stream h: the weights of all streams, and where it goes. */
typedef struct {
    const conv_numbers *numbers;
    const conv_weights *norm, *conv, *bias; /* bias->data NULL: none */
    int64_t h, hidden;
    int32_t kernel_size;
    bool has_gate, rounds_each;
    const uint16_t *residual; /* NULL: none */
    uint16_t *out;
} conv_row;

static inline float conv_input_at(const conv_row *r, const conv_tap *tap, int64_t i)
{
    const float x = tgl_bf16_to_f32(tap->x[i]);
    return r->has_gate ? conv_rounded(gate_result(0, x, tap->gate, 0)) : x;
}

/* What a tap gives to column i. */
static inline float conv_value_at(const conv_row *r, const conv_tap *tap, int64_t i)
{
    if (tap->ring) return tgl_bf16_to_f32(tap->ring[i]);
    if (!tap->x) return 0;
    const float norm = conv_norm_weight(r->numbers, conv_weight_at(r->norm, r->h * r->norm->stride + i));
    return conv_rounded(conv_normed(conv_input_at(r, tap, i), tap->rstd, norm));
}

/* ---- what the fast loops, forward and backward, load ---- */

TGL_ALWAYS_INLINE void conv_widen(const uint16_t *from, int64_t count, float *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = tgl_bf16_to_f32(from[i]);
}

/* Weights first, first + step, ... */
TGL_ALWAYS_INLINE void conv_load_steps(const conv_weights *w, int64_t first, int64_t step, int64_t count,
                                       float *restrict to)
{
    if (w->is_bf16)
        for (int64_t i = 0; i < count; i++) to[i] = tgl_bf16_to_f32(((const uint16_t *)w->data)[first + i * step]);
    else
        for (int64_t i = 0; i < count; i++) to[i] = ((const float *)w->data)[first + i * step];
}

/* The results of a row; of taps, the last is its own input. */
void tgl_conv_results(const conv_row *r, const conv_tap *taps);
TGL_DECLARE_FAST(void, tgl_conv_fast_results, const conv_row *r, const conv_tap *taps);

#endif
