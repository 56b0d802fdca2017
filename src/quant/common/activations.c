/* SPDX-License-Identifier: MIT */
#include "quant/common/activations.h"

static float value(const void *context, int64_t row, int64_t col)
{
    const tgl_activations *a = context;
    const float gate = tgl_swiglu_gate(tgl_value_of(&a->x, row, col), a->clamp);
    const float up = tgl_swiglu_up(tgl_value_of(&a->x, row, a->num_cols + col), a->clamp);
    float y = tgl_swiglu(gate, up, tgl_swiglu_divisor(gate));
    if (a->pos_to_token_topk) y *= tgl_weight_of(a->pos_to_token_topk, a->topk_weights, a->num_weights, row);
    return a->is_bf16 ? tgl_bf16_to_f32(tgl_bf16_from_f32(y)) : y;
}

tgl_reader tgl_read_activations(const tgl_activations *a)
{
    return (tgl_reader){ value, TGL_CHOOSE(NULL, tgl_read_activations), a, a->is_bf16, true, 0 };
}

static void count_clamped(const tgl_activations *a, int64_t row, int64_t counts[3])
{
    for (int64_t col = 0; col < a->num_cols; col++) {
        const float gate = tgl_value_of(&a->x, row, col), up = tgl_value_of(&a->x, row, a->num_cols + col);
        counts[0] += gate > a->clamp;
        counts[1] += up > a->clamp;
        counts[2] += up < -a->clamp;
    }
}

void tgl_count_clamped(const tgl_activations *a, int64_t row, int64_t counts[3])
{
    TGL_CHOOSE(count_clamped, tgl_count_clamped)(a, row, counts);
}
