/* SPDX-License-Identifier: MIT */
#include "quant/activate.h"

#include <float.h>

#include "core/clones.h"
#include "quant/lanes.h"

#define INLINE static inline __attribute__((always_inline))     /* so that is_bf16 is a constant */

bool tgl_swiglu_is_small(const void *gates, const void *ups, bool is_bf16, int64_t count, float clamp)
{
    float amax[2];
    tgl_amax_of_both(gates, ups, is_bf16, count, amax);
    return amax[0] <= TGL_EXP_SMALL && amax[0] <= clamp && amax[1] <= clamp;        /* not with a NaN */
}

INLINE float small_activation(const void *gates, const void *ups, bool is_bf16, int64_t i)
{
    const float gate = tgl_value_at(gates, is_bf16, i);
    return tgl_swiglu(gate, tgl_value_at(ups, is_bf16, i), 1.0f + tgl_exp_small(-gate));
}

/* Four quarters of a step at a time: exp is a chain of operations that wait for each other, and a core looks
 * less far ahead than one of them is long. */
INLINE void activate_small(const void *gates, const void *ups, bool is_bf16, int64_t count, int64_t ahead,
                           float *restrict to)
{
    enum { STEP = 128, N = STEP / 4 };
    const int64_t bytes = is_bf16 ? 2 : 4;
    int64_t done = 0;
    for (; done + STEP <= count; done += STEP) {
        tgl_ask_for(gates, done * bytes + ahead, STEP * bytes);
        tgl_ask_for(ups, done * bytes + ahead, STEP * bytes);
        for (int64_t i = done; i < done + N; i++) {
            to[i] = small_activation(gates, ups, is_bf16, i);
            to[N + i] = small_activation(gates, ups, is_bf16, N + i);
            to[2 * N + i] = small_activation(gates, ups, is_bf16, 2 * N + i);
            to[3 * N + i] = small_activation(gates, ups, is_bf16, 3 * N + i);
        }
    }
    for (int64_t i = done; i < count; i++) to[i] = small_activation(gates, ups, is_bf16, i);
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
                         int64_t ahead, float clamp, float *to)
{
    if (is_bf16 && is_small) activate_small(gates, ups, true, count, ahead, to);
    else if (is_bf16) activate(gates, ups, true, count, clamp, to);
    else if (is_small) activate_small(gates, ups, false, count, ahead, to);
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
        activate_any(gates, ups, x->is_bf16, is_small, n, x->row_bytes, clamp, to + j);
    }
}

/* The same, rounded to bf16: two neighbours at a time, which come apart by a shift and a mask and together
 * again so, where no result is NaN. An N1 is as fast with two loops, by lanes.h, and does not need it. */
#ifdef __x86_64__
enum { HAS_PAIRS = true };
#else
enum { HAS_PAIRS = false };
#endif

/* tgl_bf16_from_f32() in the upper half, of what is no NaN; below, there is anything. */
INLINE uint32_t rounded_to_bf16(float value)
{
    const uint32_t bits = tgl_f32_to_bits(value);
    return bits + 0x7FFF + (bits >> 16 & 1);
}

INLINE void activate_pair(const char *gates, const char *ups, int64_t i, char *to)
{
    uint32_t g, u;
    memcpy(&g, gates + 4 * i, 4);
    memcpy(&u, ups + 4 * i, 4);
    const float even = tgl_f32_from_bits(g << 16), odd = tgl_f32_from_bits(g & 0xFFFF0000);
    const float a = tgl_swiglu(even, tgl_f32_from_bits(u << 16), 1.0f + tgl_exp_small(-even));
    const float b = tgl_swiglu(odd, tgl_f32_from_bits(u & 0xFFFF0000), 1.0f + tgl_exp_small(-odd));
    const uint32_t both = rounded_to_bf16(a) >> 16 | (rounded_to_bf16(b) & 0xFFFF0000);
    memcpy(to + 4 * i, &both, 4);
}

/* Returns how many: whole steps. */
TGL_CLONES
static int64_t activate_pairs(const char *gates, const char *ups, int64_t count, int64_t ahead,
                              char *restrict to)
{
    enum { STEP = 128, N = STEP / 8 };
    int64_t done = 0;
    for (; done + STEP <= count; done += STEP) {
        tgl_ask_for(gates, done * 2 + ahead, STEP * 2);
        tgl_ask_for(ups, done * 2 + ahead, STEP * 2);
        for (int64_t i = done / 2; i < done / 2 + N; i++) {
            activate_pair(gates, ups, i, to);
            activate_pair(gates, ups, N + i, to);
            activate_pair(gates, ups, 2 * N + i, to);
            activate_pair(gates, ups, 3 * N + i, to);
        }
    }
    return done;
}

void tgl_activate_to_bf16(const tgl_values *x, int64_t num_cols, int64_t row, int64_t col, int64_t count,
                          float clamp, uint16_t *to)
{
    enum { PIECE = 1024 };
    TGL_LINES float activations[PIECE];
    const char *row_of_x = x->data + row * x->row_bytes;
    for (int64_t j = 0; j < count; j += PIECE) {
        const int64_t n = count - j < PIECE ? count - j : PIECE;
        int64_t done = 0;
        if (HAS_PAIRS && x->is_bf16) {
            const char *gates = row_of_x + (col + j) * 2, *ups = gates + num_cols * 2;
            if (tgl_swiglu_is_small(gates, ups, true, n, clamp < FLT_MAX ? clamp : FLT_MAX))
                done = activate_pairs(gates, ups, n, x->row_bytes, (char *)(to + j));
        }
        tgl_activate(x, num_cols, row, col + j + done, n - done, clamp, activations);
        tgl_round_to_bf16(activations, n - done, to + j + done);
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
