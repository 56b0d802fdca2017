/* SPDX-License-Identifier: MIT
 * short_conv_fast.c - the loop of short_conv_cpu.h in steps over pieces of a row, which compilers vectorise. */
#include "core/math.h"
#include "engram/common/short_conv_cpu.h"

enum { PIECE = 256 };

TGL_ALWAYS_INLINE void round_all(float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) values[i] = conv_rounded(values[i]);
}

static void load_weights(const conv_weights *w, int64_t first, int64_t step, int64_t count, float *to)
{
    if (step == 1) conv_load_steps(w, first, 1, count, to);
    else if (step == 4) conv_load_steps(w, first, 4, count, to);
    else conv_load_steps(w, first, step, count, to);
}

/* The input of a tap, columns first .. first + count - 1. */
static void load_inputs(const conv_tap *tap, bool has_gate, int64_t first, int64_t count, float *restrict to)
{
    conv_widen(tap->x + first, count, to);
    const float gate = tap->gate;
    if (has_gate)
        for (int64_t i = 0; i < count; i++) to[i] = conv_rounded(gate_result(0, to[i], gate, 0));
}

/* What a tap gives to them. */
static void load_values(const conv_tap *tap, bool has_gate, const float *restrict norm, int64_t first, int64_t count,
                        float *restrict to)
{
    if (tap->ring) {
        conv_widen(tap->ring + first, count, to);
        return;
    }
    if (!tap->x) {
        for (int64_t i = 0; i < count; i++) to[i] = 0;
        return;
    }
    load_inputs(tap, has_gate, first, count, to);
    const float rstd = tap->rstd;
    for (int64_t i = 0; i < count; i++) to[i] = conv_rounded(conv_normed(to[i], rstd, norm[i]));
}

/* addend: NULL, or what is added in the same fma. */
static void activate(float *restrict z, const float *restrict addend, int64_t count)
{
    if (!addend)
        for (int64_t i = 0; i < count; i++) z[i] = conv_bounded(z[i]) * (1.0f / conv_sigmoid_divisor(z[i]));
    else
        for (int64_t i = 0; i < count; i++)
            z[i] = fmaf(conv_bounded(z[i]), 1.0f / conv_sigmoid_divisor(z[i]), addend[i]);
}

static void add_all(float *restrict z, const float *restrict addend, int64_t count)
{
    for (int64_t i = 0; i < count; i++) z[i] += addend[i];
}

/* conv_result() of z. x, residual: what is added, or NULL. */
static void find_results(const conv_row *r, const float *x, const float *residual, int64_t count, float *restrict z)
{
    if (r->rounds_each) {
        round_all(z, count);
        if (r->numbers->has_activation) activate(z, NULL, count);
        round_all(z, count);
        if (x) add_all(z, x, count);
        round_all(z, count);
        if (residual) add_all(z, residual, count);
        return;
    }
    const float *const first = x ? x : residual;
    if (r->numbers->has_activation) activate(z, first, count);
    else if (first) add_all(z, first, count);
    if (x && residual) add_all(z, residual, count);
}

void TGL_FAST(tgl_conv_fast_results)(const conv_row *r, const conv_tap *taps)
{
    const int64_t last = r->kernel_size - 1;
    for (int64_t first = 0; first < r->hidden; first += PIECE) {
        const int64_t count = tgl_min(PIECE, r->hidden - first), channel = r->h * r->hidden + first;
        float z[PIECE], norm[PIECE], values[PIECE], w[PIECE];
        load_weights(r->norm, r->h * r->norm->stride + first, 1, count, norm);
        if (r->numbers->is_zero_centered)
            for (int64_t i = 0; i < count; i++) norm[i] = 1.0f + norm[i];
        if (r->bias->data) load_weights(r->bias, channel, 1, count, z);
        else
            for (int64_t i = 0; i < count; i++) z[i] = 0;
        for (int64_t j = 0; j <= last; j++) {
            load_values(&taps[j], r->has_gate, norm, first, count, values);
            load_weights(r->conv, channel * r->kernel_size + j, r->kernel_size, count, w);
            for (int64_t i = 0; i < count; i++) z[i] = fmaf(w[i], values[i], z[i]);
        }
        if (r->numbers->adds_input) load_inputs(&taps[last], r->has_gate, first, count, values);
        if (r->residual) conv_widen(r->residual + first, count, w);
        find_results(r, r->numbers->adds_input ? values : NULL, r->residual ? w : NULL, count, z);
        for (int64_t i = 0; i < count; i++) r->out[first + i] = tgl_bf16_from_f32(z[i]);
    }
}
