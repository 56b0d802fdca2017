/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "engram/common/gate_cpu.h"
#include "engram/common/gate_host.h"

#define FIELD(name) TGL_FIELD(tgl_engram_gate_params, name)
static const tgl_field FIELDS[] = { FIELD(eps),           FIELD(clamp_value),      FIELD(no_residual),
                                    FIELD(zero_centered), FIELD(constant_weights), FIELD(sign) };
const tgl_params TGL_ENGRAM_GATE_PARAMS = TGL_PARAMS(tgl_engram_gate_params, FIELDS);

gate_in tgl_gate_in(const DLTensor *t)
{
    return (gate_in){ tgl_data(t), tgl_step_of(t, 0), t->ndim > 2 ? tgl_step_of(t, 1) : 0 };
}

gate_out tgl_gate_out(const DLTensor *t)
{
    return t ? (gate_out){ tgl_data(t), tgl_step_of(t, 0), t->ndim > 2 ? tgl_step_of(t, 1) : 0 } : (gate_out){ 0 };
}

gate_weights tgl_gate_weights(const DLTensor *hidden, const DLTensor *embed, const tgl_engram_gate_params *params)
{
    return (gate_weights){ .hidden = tgl_data(hidden),
                           .embed = tgl_data_or_null(embed),
                           .hidden_stride = tgl_step_of(hidden, 0),
                           .embed_stride = tgl_step_of(embed, 0),
                           .kind = !embed                                  ? GATE_FUSED
                                   : tgl_dtype_is(hidden->dtype, TGL_BF16) ? GATE_BF16
                                                                           : GATE_F32,
                           .is_zero_centered = params->zero_centered,
                           .is_constant = params->constant_weights };
}

gate_numbers tgl_gate_numbers(int64_t hidden, const tgl_engram_gate_params *params)
{
    return (gate_numbers){ .hidden = (float)hidden,
                           .scale = (float)(1 / sqrt((double)hidden)),
                           .eps = params->eps,
                           .clamp_value = params->clamp_value,
                           .sign_of_zero = params->sign };
}

bool tgl_gate_has_vectors(gate_in rows)
{
    return ((uintptr_t)rows.data | 2 * (uint64_t)rows.token | 2 * (uint64_t)rows.stream) % 16 == 0;
}

bool tgl_gate_weights_have_vectors(const gate_weights *w)
{
    const uint64_t bytes = w->kind == GATE_BF16 ? 2 : 4;
    const uint64_t strides = bytes * (uint64_t)(w->hidden_stride | w->embed_stride);
    return ((uintptr_t)w->hidden | (uintptr_t)w->embed | strides) % 16 == 0;
}

static gate_sums plain_sums(const gate_weights *weights, int64_t hidden, int64_t h, const uint16_t *x,
                            const uint16_t *k)
{
    gate_sums slot[GATE_SLOTS] = { 0 }, total = { 0 };
    for (int64_t i = 0; i < hidden; i++) {
        gate_sums *s = &slot[i / GATE_VECTOR % GATE_SLOTS];
        const float xi = tgl_bf16_to_f32(x[i]), ki = tgl_bf16_to_f32(k[i]);
        const float w = gate_weight_at(weights, weights->kind, weights->is_zero_centered, h, i);
        s->squares_x = fmaf(xi, xi, s->squares_x);
        s->squares_k = fmaf(ki, ki, s->squares_k);
        s->dot = fmaf(xi * w, ki, s->dot);
    }
    for (int first = 0; first < GATE_SLOTS; first += GATE_GROUP) {
        gate_sums *s = &slot[first];
        for (int half = GATE_GROUP / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++) {
                s[i].squares_x += s[i + half].squares_x;
                s[i].squares_k += s[i + half].squares_k;
                s[i].dot += s[i + half].dot;
            }
        total.squares_x += s->squares_x;
        total.squares_k += s->squares_k;
        total.dot += s->dot;
    }
    return total;
}

gate_sums tgl_gate_sums(const gate_weights *weights, int64_t hidden, int64_t h, const uint16_t *x, const uint16_t *k)
{
    return TGL_CHOOSE(plain_sums, tgl_gate_fast_sums)(weights, hidden, h, x, k);
}

static void plain_results(const uint16_t *x, const uint16_t *v, float gate, bool has_residual, int64_t hidden,
                          uint16_t *out)
{
    for (int64_t i = 0; i < hidden; i++)
        out[i] = tgl_bf16_from_f32(gate_result(has_residual ? tgl_bf16_to_f32(x[i]) : 0, tgl_bf16_to_f32(v[i]), gate,
                                               has_residual));
}

void tgl_gate_results(const uint16_t *x, const uint16_t *v, float gate, bool has_residual, int64_t hidden,
                      uint16_t *out)
{
    TGL_CHOOSE(plain_results, tgl_gate_fast_results)(x, v, gate, has_residual, hidden, out);
}
