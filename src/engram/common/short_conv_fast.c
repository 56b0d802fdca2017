/* SPDX-License-Identifier: MIT
 * short_conv_fast.c - the loop of short_conv_cpu.h in steps over pieces of a row, which compilers vectorise. */
#include "core/math.h"
#include "engram/common/short_conv_cpu.h"

enum { PIECE = 256 };

TGL_ALWAYS_INLINE void widen(const uint16_t *from, int64_t count, float *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = tgl_bf16_to_f32(from[i]);
}
TGL_ALWAYS_INLINE void round_all(float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) values[i] = conv_rounded(values[i]);
}

/* Weights first, first + step, ... */
TGL_ALWAYS_INLINE void load_steps(const conv_weights *w, int64_t first, int64_t step, int64_t count, float *restrict to)
{
    if (w->is_bf16)
        for (int64_t i = 0; i < count; i++) to[i] = tgl_bf16_to_f32(((const uint16_t *)w->data)[first + i * step]);
    else
        for (int64_t i = 0; i < count; i++) to[i] = ((const float *)w->data)[first + i * step];
}
static void load_weights(const conv_weights *w, int64_t first, int64_t step, int64_t count, float *to)
{
    if (step == 1) load_steps(w, first, 1, count, to);
    else if (step == 4) load_steps(w, first, 4, count, to);
    else load_steps(w, first, step, count, to);
}

/* What a tap gives to columns first .. first + count - 1. */
static void load_values(const conv_tap *tap, const float *restrict norm, int64_t first, int64_t count,
                        float *restrict to)
{
    if (tap->ring) {
        widen(tap->ring + first, count, to);
        return;
    }
    if (!tap->x) {
        for (int64_t i = 0; i < count; i++) to[i] = 0;
        return;
    }
    const float rstd = tap->rstd;
    for (int64_t i = 0; i < count; i++)
        to[i] = conv_rounded(conv_normed(tgl_bf16_to_f32(tap->x[first + i]), rstd, norm[i]));
}

static void activate(float *z, int64_t count)
{
    for (int64_t i = 0; i < count; i++) z[i] = conv_bounded(z[i]) * (1.0f / conv_sigmoid_divisor(z[i]));
}

void TGL_FAST(tgl_conv_results)(const short_conv_args *p, const conv_tap *taps, int64_t t, int64_t h)
{
    const int64_t last = p->kernel_size - 1;
    const uint16_t *residual =
        p->residual.data ? p->residual.data + t * p->residual.token + h * p->residual.stream : NULL;
    uint16_t *out = p->out.data + t * p->out.token + h * p->out.stream;
    for (int64_t first = 0; first < p->hidden; first += PIECE) {
        const int64_t count = tgl_min(PIECE, p->hidden - first), channel = h * p->hidden + first;
        float z[PIECE], norm[PIECE], values[PIECE], w[PIECE];
        load_weights(&p->norm, h * p->norm.stride + first, 1, count, norm);
        if (p->numbers.is_zero_centered)
            for (int64_t i = 0; i < count; i++) norm[i] = 1.0f + norm[i];
        if (p->bias.data) load_weights(&p->bias, channel, 1, count, z);
        else
            for (int64_t i = 0; i < count; i++) z[i] = 0;
        for (int64_t j = 0; j <= last; j++) {
            load_values(&taps[j], norm, first, count, values);
            load_weights(&p->conv, channel * p->kernel_size + j, p->kernel_size, count, w);
            for (int64_t i = 0; i < count; i++) z[i] = fmaf(w[i], values[i], z[i]);
        }
        if (p->rounds_each) round_all(z, count);
        if (p->numbers.has_activation) activate(z, count);
        if (p->rounds_each) round_all(z, count);
        if (p->numbers.adds_input)
            for (int64_t i = 0; i < count; i++) z[i] += tgl_bf16_to_f32(taps[last].x[first + i]);
        if (p->rounds_each) round_all(z, count);
        if (residual)
            for (int64_t i = 0; i < count; i++) z[i] += tgl_bf16_to_f32(residual[first + i]);
        for (int64_t i = 0; i < count; i++) out[first + i] = tgl_bf16_from_f32(z[i]);
    }
}
