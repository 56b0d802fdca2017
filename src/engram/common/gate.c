/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "core/math.h"
#include "engram/common/gate_cpu.h"
#include "engram/common/gate_host.h"

#define FIELD(name) TGL_FIELD(tgl_engram_gate_params, name)
static const tgl_field FIELDS[] = { FIELD(eps),           FIELD(clamp_value),      FIELD(no_residual),
                                    FIELD(zero_centered), FIELD(constant_weights), FIELD(sign) };
const tgl_params TGL_ENGRAM_GATE_PARAMS = TGL_PARAMS(tgl_engram_gate_params, FIELDS);

/* The stride of a dimension that has none to speak of may be anything. */
static int64_t stride_of(const DLTensor *t, int dim)
{
    return tgl_is_empty(t) || t->shape[dim] == 1 ? 0 : tgl_stride(t, dim);
}

gate_in tgl_gate_in(const DLTensor *t)
{
    return (gate_in){ tgl_data(t), stride_of(t, 0), t->ndim > 2 ? stride_of(t, 1) : 0 };
}

gate_out tgl_gate_out(const DLTensor *t)
{
    return t ? (gate_out){ tgl_data(t), stride_of(t, 0), t->ndim > 2 ? stride_of(t, 1) : 0 } : (gate_out){ 0 };
}

gate_weights tgl_gate_weights(const DLTensor *hidden, const DLTensor *embed, const tgl_engram_gate_params *params)
{
    return (gate_weights){ .hidden = tgl_data(hidden),
                           .embed = embed ? tgl_data(embed) : NULL,
                           .hidden_stride = stride_of(hidden, 0),
                           .embed_stride = embed ? stride_of(embed, 0) : 0,
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

tgl_status tgl_gate_expect_apart(const char *name, const DLTensor *t)
{
    if (!t || tgl_is_empty(t)) return TGL_OK;
    const int last = t->ndim - 1;
    const int64_t width = t->shape[last], tokens = t->shape[0], streams = last > 1 ? t->shape[1] : 1;
    const int64_t token = stride_of(t, 0), stream = last > 1 ? stride_of(t, 1) : 0;
    /* of the two dimensions, the one with the smaller stride lies within a step of the other */
    const bool is_token_near = token < stream;
    const int64_t near = is_token_near ? tokens : streams, far = is_token_near ? streams : tokens;
    const int64_t near_stride = is_token_near ? token : stream, far_stride = is_token_near ? stream : token;
    if ((width == 1 || tgl_stride(t, last) == 1) && (near == 1 || near_stride >= width) &&
        (far == 1 || far_stride >= (near - 1) * near_stride + width))
        return TGL_OK;
    char text[64];
    snprintf(text, sizeof text, last > 1 ? "%" PRId64 ", %" PRId64 : "%" PRId64, tgl_stride(t, 0), tgl_stride(t, 1));
    return tgl_fail(TGL_ERR_ARGUMENT,
                    "%s: strides are [%s, %" PRId64 "], want rows of %" PRId64
                    " neighbouring elements that do not overlap",
                    name, text, tgl_stride(t, last), width);
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
