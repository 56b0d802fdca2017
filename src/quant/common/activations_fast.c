/* SPDX-License-Identifier: MIT
 * activations_fast.c - the loops of activations.c, written so that compilers vectorise them. */
#include <pthread.h>
#include <string.h>

#include "core/math.h"
#include "quant/common/activations.h"
#include "quant/common/swiglu_lanes.h"

enum {
    STEP = 128,           /* columns at a time */
    PIECE = 512,          /* columns that take the slow loop if one value is large */
    MAX_COUNTED = 1 << 16 /* columns counted in 32 bits */
};

bool TGL_FAST(tgl_swiglu_is_small)(const float *gates, const float *ups, int64_t count, float clamp)
{
    const float gate = tgl_f32_from_bits((uint32_t)tgl_run_amax(gates, false, count));
    const float up = tgl_f32_from_bits((uint32_t)tgl_run_amax(ups, false, count));
    return gate <= TGL_EXP_SMALL && gate <= clamp && up <= clamp; /* not with a NaN */
}

/* ---- f32 gates ---- */

static void activate_f32(const float *gates, const float *ups, int64_t count, int64_t ahead, float clamp,
                         float *restrict to)
{
    if (TGL_FAST(tgl_swiglu_is_small)(gates, ups, count, clamp)) {
        tgl_run_activate(gates, ups, count, ahead, to);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        const float l = tgl_swiglu_gate(gates[i], clamp);
        to[i] = tgl_swiglu(l, tgl_swiglu_up(ups[i], clamp), tgl_swiglu_divisor(l));
    }
}

/* ---- bf16 gates ----
 * A table has silu of all 65536. A model's gates span a few powers of 2, whose entries fit into L1. */

static float silu_of[1 << 16]; /* by the gate's bits */
static pthread_once_t silu_once = PTHREAD_ONCE_INIT;

static void fill_silu(void)
{
    for (uint32_t i = 0; i < 1 << 16; i++) {
        const float gate = tgl_f32_from_bits(i << 16);
        silu_of[i] = gate / tgl_swiglu_divisor(gate);
    }
}

/* One load for four gates: loads are the limit, not shifts. */
TGL_ALWAYS_INLINE void look_up(const uint16_t *gates, int64_t count, float *restrict to)
{
    enum { FIRST = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 0 : 3 };
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t words[2];
        float silu[8];
        memcpy(words, gates + i, sizeof words);
        for (int k = 0; k < 8; k++) silu[k] = silu_of[words[k / 4] >> 16 * (k % 4 ^ FIRST) & 0xFFFF];
        memcpy(to + i, silu, sizeof silu);
    }
    for (; i < count; i++) to[i] = silu_of[gates[i]];
}

/* silu_at_clamp: silu of a clamped gate. */
TGL_ALWAYS_INLINE void activate_step(const uint16_t *gates, const uint16_t *ups, int64_t count, bool has_clamp,
                                     float clamp, float silu_at_clamp, float *restrict to)
{
    float silu[STEP];
    look_up(gates, count, silu);
    for (int64_t i = 0; i < count; i++) {
        const float gate = tgl_bf16_to_f32(gates[i]), up = tgl_bf16_to_f32(ups[i]);
        const float of_gate = has_clamp ? tgl_select_f32(gate > clamp, silu_at_clamp, silu[i]) : silu[i];
        to[i] = of_gate * (has_clamp ? tgl_swiglu_up(up, clamp) : up);
    }
}

static void activate_bf16(const uint16_t *gates, const uint16_t *ups, int64_t count, int64_t ahead, float clamp,
                          float *restrict to)
{
    const float silu_at_clamp = clamp / tgl_swiglu_divisor(clamp);
    for (int64_t i = 0; i < count; i += STEP) {
        const int64_t n = tgl_min(STEP, count - i);
        tgl_prefetch(gates, i * 2 + ahead, n * 2);
        tgl_prefetch(ups, i * 2 + ahead, n * 2);
        if (isinf(clamp)) activate_step(gates + i, ups + i, n, false, clamp, silu_at_clamp, to + i);
        else activate_step(gates + i, ups + i, n, true, clamp, silu_at_clamp, to + i);
    }
}

/* ---- both ---- */

/* At most PIECE columns. */
static void activate(const tgl_activations *a, int64_t row, int64_t col, int64_t count, float *to)
{
    const int64_t bytes = a->x.is_bf16 ? 2 : 4;
    const char *gates = a->x.data + row * a->x.row_bytes + col * bytes, *ups = gates + a->num_cols * bytes;
    if (a->x.is_bf16)
        activate_bf16((const uint16_t *)gates, (const uint16_t *)ups, count, a->x.row_bytes, a->clamp, to);
    else activate_f32((const float *)gates, (const float *)ups, count, a->x.row_bytes, a->clamp, to);
    if (a->pos_to_token_topk) {
        const float weight = tgl_weight_of(a->pos_to_token_topk, a->topk_weights, a->num_weights, row);
        for (int64_t i = 0; i < count; i++) to[i] *= weight;
    }
}

const void *TGL_FAST(tgl_read_activations)(const void *context, int64_t row, int64_t col, int64_t count, float *to)
{
    const tgl_activations *a = context;
    TGL_LINES float activations[PIECE];
    if (a->x.is_bf16) pthread_once(&silu_once, fill_silu);
    for (int64_t j = 0; j < count; j += PIECE) {
        const int64_t n = tgl_min(PIECE, count - j);
        activate(a, row, col + j, n, a->is_bf16 ? activations : to + j);
        if (a->is_bf16) TGL_FAST(tgl_round_to_bf16)(activations, n, (uint16_t *)to + j);
    }
    return to;
}

TGL_ALWAYS_INLINE void count_clamped(const void *gates, const void *ups, bool is_bf16, int64_t count, float clamp,
                                     int64_t counts[3])
{
    int32_t gates_above = 0, ups_above = 0, ups_below = 0;
    for (int64_t i = 0; i < count; i++) {
        const float gate = tgl_value_at(gates, is_bf16, i), up = tgl_value_at(ups, is_bf16, i);
        gates_above += gate > clamp;
        ups_above += up > clamp;
        ups_below += up < -clamp;
    }
    counts[0] += gates_above;
    counts[1] += ups_above;
    counts[2] += ups_below;
}

void TGL_FAST(tgl_count_clamped)(const tgl_activations *a, int64_t row, int64_t counts[3])
{
    const int64_t bytes = a->x.is_bf16 ? 2 : 4;
    const char *gates = a->x.data + row * a->x.row_bytes, *ups = gates + a->num_cols * bytes;
    for (int64_t j = 0; j < a->num_cols; j += MAX_COUNTED) {
        const int64_t n = tgl_min(MAX_COUNTED, a->num_cols - j);
        if (a->x.is_bf16) count_clamped(gates + 2 * j, ups + 2 * j, true, n, a->clamp, counts);
        else count_clamped(gates + 4 * j, ups + 4 * j, false, n, a->clamp, counts);
    }
}
