/* SPDX-License-Identifier: MIT */
#include "quant/swiglu.h"

#include "core/clones.h"

#define INLINE static inline __attribute__((always_inline))     /* so that is_bf16 is a constant */

INLINE void activate(const void *gate, const void *up, bool is_bf16, int64_t count, float clamp,
                     float *restrict to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = tgl_swiglu(tgl_swiglu_gate(tgl_value_at(gate, is_bf16, i), clamp),
                           tgl_swiglu_up(tgl_value_at(up, is_bf16, i), clamp));
}

TGL_CLONES
void tgl_activate(const tgl_values *x, int64_t num_cols, int64_t row, int64_t col, int64_t count, float clamp,
                  float *to)
{
    const int64_t bytes = x->is_bf16 ? 2 : 4;
    const char *gate = x->data + row * x->row_bytes + col * bytes, *up = gate + num_cols * bytes;
    if (x->is_bf16) activate(gate, up, true, count, clamp, to);
    else activate(gate, up, false, count, clamp, to);
}

INLINE void count_clamped(const void *gate, const void *up, bool is_bf16, int64_t count, float clamp,
                          int64_t counts[3])
{
    int32_t gates_above = 0, ups_above = 0, ups_below = 0;
    for (int64_t i = 0; i < count; i++) {
        const float l = tgl_value_at(gate, is_bf16, i), r = tgl_value_at(up, is_bf16, i);
        gates_above += l > clamp;
        ups_above += r > clamp;
        ups_below += r < -clamp;
    }
    counts[0] += gates_above;
    counts[1] += ups_above;
    counts[2] += ups_below;
}

TGL_CLONES
void tgl_count_clamped(const tgl_values *x, int64_t num_cols, int64_t row, float clamp, int64_t counts[3])
{
    enum { PIECE = 1 << 16 };                   /* 32 bits count it */
    const int64_t bytes = x->is_bf16 ? 2 : 4;
    const char *gates = x->data + row * x->row_bytes, *ups = gates + num_cols * bytes;
    for (int64_t j = 0; j < num_cols; j += PIECE) {
        const int64_t count = num_cols - j < PIECE ? num_cols - j : PIECE;
        if (x->is_bf16) count_clamped(gates + j * bytes, ups + j * bytes, true, count, clamp, counts);
        else count_clamped(gates + j * bytes, ups + j * bytes, false, count, clamp, counts);
    }
}
