/* SPDX-License-Identifier: MIT */
#include "quant/activate.h"

#include <math.h>
#include <pthread.h>

#include "core/clones.h"
#include "quant/swiglu_lanes.h"

#define INLINE static inline __attribute__((always_inline))     /* so that flags are constants */

enum { ACTIVATE_STEP = 128 };           /* columns at a time */

bool tgl_swiglu_is_small(const float *gates, const float *ups, int64_t count, float clamp)
{
    float amax[2];
    tgl_amax_of_both(gates, ups, count, amax);
    return amax[0] <= TGL_EXP_SMALL && amax[0] <= clamp && amax[1] <= clamp;        /* not with a NaN */
}

/* ---- gates that are f32 ---- */

INLINE float small_activation(const float *gates, const float *ups, int64_t i)
{
    return tgl_swiglu(gates[i], ups[i], 1.0f + tgl_exp_small(-gates[i]));
}

/* Four quarters of a step at a time: exp is a chain of operations that wait for each other, and a core looks
 * less far ahead than one of them is long. */
INLINE void activate_small(const float *gates, const float *ups, int64_t count, int64_t ahead,
                           float *restrict to)
{
    enum { N = ACTIVATE_STEP / 4 };
    int64_t done = tgl_lanes_activate(gates, ups, count, ahead, to);
    for (; done + ACTIVATE_STEP <= count; done += ACTIVATE_STEP) {
        tgl_ask_for(gates, done * 4 + ahead, ACTIVATE_STEP * 4);
        tgl_ask_for(ups, done * 4 + ahead, ACTIVATE_STEP * 4);
        for (int64_t i = done; i < done + N; i++) {
            to[i] = small_activation(gates, ups, i);
            to[N + i] = small_activation(gates, ups, N + i);
            to[2 * N + i] = small_activation(gates, ups, 2 * N + i);
            to[3 * N + i] = small_activation(gates, ups, 3 * N + i);
        }
    }
    for (int64_t i = done; i < count; i++) to[i] = small_activation(gates, ups, i);
}

TGL_CLONES
static void activate_f32(const float *gates, const float *ups, int64_t count, int64_t ahead, float clamp,
                         float *restrict to)
{
    if (tgl_swiglu_is_small(gates, ups, count, clamp)) {
        activate_small(gates, ups, count, ahead, to);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        const float l = tgl_swiglu_gate(gates[i], clamp);
        to[i] = tgl_swiglu(l, tgl_swiglu_up(ups[i], clamp), tgl_swiglu_divisor(l));
    }
}

/* ---- gates that are bf16 ----
 * There are 65536 of them: a table has what becomes of each. Those of a model lie within a few powers of 2, and
 * so what is used of the table within a first-level cache. */

static float silu_of[1 << 16];          /* by the gate's bits */
static pthread_once_t silu_once = PTHREAD_ONCE_INIT;

TGL_CLONES
static void fill_silu(void)
{
    for (uint32_t i = 0; i < 1 << 16; i++) {
        const float gate = tgl_f32_from_bits(i << 16);
        silu_of[i] = gate / tgl_swiglu_divisor(gate);
    }
}

/* Four gates come by one load: a core has more work with loads than with taking a word apart. */
INLINE void look_up(const uint16_t *gates, int64_t count, float *restrict to)
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

/* silu_at_clamp: what becomes of a gate that is cut. */
INLINE void activate_step(const uint16_t *gates, const uint16_t *ups, int64_t count, bool has_clamp,
                          float clamp, float silu_at_clamp, float *restrict to)
{
    float silu[ACTIVATE_STEP];
    look_up(gates, count, silu);
    for (int64_t i = 0; i < count; i++) {
        const float gate = tgl_bf16_to_f32(gates[i]), up = tgl_bf16_to_f32(ups[i]);
        const float of_gate = has_clamp ? tgl_select_f32(gate > clamp, silu_at_clamp, silu[i]) : silu[i];
        to[i] = of_gate * (has_clamp ? tgl_swiglu_up(up, clamp) : up);
    }
}

TGL_CLONES
static void activate_bf16(const uint16_t *gates, const uint16_t *ups, int64_t count, int64_t ahead,
                          float clamp, float *restrict to)
{
    const float silu_at_clamp = clamp / tgl_swiglu_divisor(clamp);
    for (int64_t i = 0; i < count; i += ACTIVATE_STEP) {
        const int64_t n = count - i < ACTIVATE_STEP ? count - i : ACTIVATE_STEP;
        tgl_ask_for(gates, i * 2 + ahead, n * 2);
        tgl_ask_for(ups, i * 2 + ahead, n * 2);
        if (isinf(clamp)) activate_step(gates + i, ups + i, n, false, clamp, silu_at_clamp, to + i);
        else activate_step(gates + i, ups + i, n, true, clamp, silu_at_clamp, to + i);
    }
}

/* ---- both ---- */

void tgl_activate(const tgl_values *x, int64_t num_cols, int64_t row, int64_t col, int64_t count, float clamp,
                  float *to)
{
    enum { PIECE = 512 };                       /* one large value does not slow the whole row */
    const int64_t bytes = x->is_bf16 ? 2 : 4;
    const char *row_of_x = x->data + row * x->row_bytes;
    if (x->is_bf16) pthread_once(&silu_once, fill_silu);
    for (int64_t j = 0; j < count; j += PIECE) {
        const int64_t n = count - j < PIECE ? count - j : PIECE;
        const void *gates = row_of_x + (col + j) * bytes, *ups = row_of_x + (num_cols + col + j) * bytes;
        if (x->is_bf16) activate_bf16(gates, ups, n, x->row_bytes, clamp, to + j);
        else activate_f32(gates, ups, n, x->row_bytes, clamp, to + j);
    }
}

void tgl_activate_to_bf16(const tgl_values *x, int64_t num_cols, int64_t row, int64_t col, int64_t count,
                          float clamp, uint16_t *to)
{
    enum { PIECE = 512 };
    TGL_LINES float activations[PIECE];
    for (int64_t j = 0; j < count; j += PIECE) {
        const int64_t n = count - j < PIECE ? count - j : PIECE;
        tgl_activate(x, num_cols, row, col + j, n, clamp, activations);
        tgl_round_to_bf16(activations, n, to + j);
    }
}

TGL_CLONES
static void count_clamped(const void *gates, const void *ups, bool is_bf16, int64_t count, float clamp,
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

void tgl_count_clamped(const tgl_values *x, int64_t num_cols, int64_t row, float clamp, int64_t counts[3])
{
    enum { PIECE = 1 << 16 };                   /* 32 bits count it */
    const int64_t bytes = x->is_bf16 ? 2 : 4;
    const char *gates = x->data + row * x->row_bytes, *ups = gates + num_cols * bytes;
    for (int64_t j = 0; j < num_cols; j += PIECE) {
        const int64_t count = num_cols - j < PIECE ? num_cols - j : PIECE;
        count_clamped(gates + j * bytes, ups + j * bytes, x->is_bf16, count, clamp, counts);
    }
}
