/* SPDX-License-Identifier: MIT */
#include "quant/activate.h"

#include "core/clones.h"

#define INLINE static inline __attribute__((always_inline))     /* so that is_bf16 is a constant */

bool tgl_swiglu_is_small(const void *gates, const void *ups, bool is_bf16, int64_t count, float clamp)
{
    const float gate = tgl_amax(gates, is_bf16, count), up = tgl_amax(ups, is_bf16, count);
    return gate <= TGL_EXP_SMALL && gate <= clamp && up <= clamp;       /* not with a NaN */
}

INLINE float small_activation(const void *gates, const void *ups, bool is_bf16, int64_t i)
{
    const float gate = tgl_value_at(gates, is_bf16, i);
    return tgl_swiglu(gate, tgl_value_at(ups, is_bf16, i), 1.0f + tgl_exp_small(-gate));
}

/* Four quarters at a time: exp is a chain of operations that wait for each other, and a core looks less far
 * ahead than one of them is long. */
INLINE void activate_small(const void *gates, const void *ups, bool is_bf16, int64_t count,
                           float *restrict to)
{
    const int64_t n = count / 4;
    for (int64_t i = 0; i < n; i++) {
        to[i] = small_activation(gates, ups, is_bf16, i);
        to[n + i] = small_activation(gates, ups, is_bf16, n + i);
        to[2 * n + i] = small_activation(gates, ups, is_bf16, 2 * n + i);
        to[3 * n + i] = small_activation(gates, ups, is_bf16, 3 * n + i);
    }
    for (int64_t i = 4 * n; i < count; i++) to[i] = small_activation(gates, ups, is_bf16, i);
}

INLINE void activate(const void *gates, const void *ups, bool is_bf16, int64_t count, float clamp,
                     float *restrict to)
{
    for (int64_t i = 0; i < count; i++) {
        const float l = tgl_swiglu_gate(tgl_value_at(gates, is_bf16, i), clamp);
        const float r = tgl_swiglu_up(tgl_value_at(ups, is_bf16, i), clamp);
        to[i] = tgl_swiglu(l, r, tgl_swiglu_divisor(l));
    }
}

TGL_CLONES
static void activate_any(const void *gates, const void *ups, bool is_bf16, bool is_small, int64_t count,
                         float clamp, float *to)
{
    if (is_bf16 && is_small) activate_small(gates, ups, true, count, to);
    else if (is_bf16) activate(gates, ups, true, count, clamp, to);
    else if (is_small) activate_small(gates, ups, false, count, to);
    else activate(gates, ups, false, count, clamp, to);
}

void tgl_activate(const tgl_values *x, int64_t num_cols, int64_t row, int64_t col, int64_t count, float clamp,
                  float *to)
{
    enum { PIECE = 1024 };                      /* one large value does not slow the whole row */
    const int64_t bytes = x->is_bf16 ? 2 : 4;
    const char *row_of_x = x->data + row * x->row_bytes;
    for (int64_t j = 0; j < count; j += PIECE) {
        const int64_t n = count - j < PIECE ? count - j : PIECE;
        const char *gates = row_of_x + (col + j) * bytes, *ups = gates + num_cols * bytes;
        const bool is_small = tgl_swiglu_is_small(gates, ups, x->is_bf16, n, clamp);
        activate_any(gates, ups, x->is_bf16, is_small, n, clamp, to + j);
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
