/* SPDX-License-Identifier: MIT
 * swiglu_lanes.h - inner loops of SwiGLU and, on aarch64 only, of its backward pass. */
#ifndef TEGULA_QUANT_SWIGLU_LANES_H
#define TEGULA_QUANT_SWIGLU_LANES_H

#include "quant/common/lanes.h"
#include "quant/common/swiglu.h"

enum {
    TGL_RUN_STEP = 32, /* a run's columns are a multiple of this, */
    TGL_MAX_RUN = 512, /* and at most this */
    TGL_RUN_SUMS = 16  /* column j adds to sum j % TGL_RUN_SUMS */
};

/* A run of columns with one factor for its gates and one for its ups: inputs, and where results go. */
typedef struct {
    const uint8_t *gates, *ups; /* e4m3 */
    float gate_sf, up_sf;
    const uint16_t *grads; /* bf16, of the weighted activations */
    float weight, clamp;
    uint16_t *out, *bf16_gate_grads, *bf16_up_grads;
    float *gate_grads, *up_grads;
    float *sums;     /* of grad * activation, added to */
    int32_t amax[2]; /* out: bits of the largest magnitudes of gradients of gates and ups */
} tgl_backward_run;

/* If every exp is a normal number and nothing is clamped. */
TGL_ALWAYS_INLINE float tgl_small_activation(const float *gates, const float *ups, int64_t i)
{
    return tgl_swiglu(gates[i], ups[i], 1.0f + tgl_exp_small(-gates[i]));
}

#if TGL_HAS_NEON
#include "quant/common/swiglu_neon.inc"
#else
/* Four quarters of a step at once: exp is a chain of dependent operations, longer than a core looks ahead. */
TGL_ALWAYS_INLINE int64_t tgl_front_activate(const float *gates, const float *ups, int64_t count, int64_t ahead,
                                             float *restrict to)
{
    enum { STEP = 128, N = STEP / 4 };
    int64_t done = 0;
    for (; done + STEP <= count; done += STEP) {
        tgl_prefetch(gates, done * 4 + ahead, STEP * 4);
        tgl_prefetch(ups, done * 4 + ahead, STEP * 4);
        for (int64_t i = done; i < done + N; i++) {
            to[i] = tgl_small_activation(gates, ups, i);
            to[N + i] = tgl_small_activation(gates, ups, N + i);
            to[2 * N + i] = tgl_small_activation(gates, ups, 2 * N + i);
            to[3 * N + i] = tgl_small_activation(gates, ups, 3 * N + i);
        }
    }
    return done;
}
TGL_ALWAYS_INLINE bool tgl_run_backward(tgl_backward_run *run, int64_t count) { return false; }
#endif

TGL_ALWAYS_INLINE void tgl_run_activate(const float *gates, const float *ups, int64_t count, int64_t ahead,
                                        float *restrict to)
{
    int64_t i = tgl_front_activate(gates, ups, count, ahead, to);
    for (; i < count; i++) to[i] = tgl_small_activation(gates, ups, i);
}
#endif
