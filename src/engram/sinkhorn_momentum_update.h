/* SPDX-License-Identifier: MIT
 * sinkhorn_momentum_update.h - what the kernel of sinkhorn_momentum_update, its launch and the CPU loop agree on. */
#ifndef TEGULA_ENGRAM_SINKHORN_MOMENTUM_UPDATE_H
#define TEGULA_ENGRAM_SINKHORN_MOMENTUM_UPDATE_H

#include "numerics/bf16.h"
#include "numerics/fma.h"

#define MOMENTUM_THREADS 256
#define MOMENTUM_VECTORS 4 /* of 4 elements, of a thread: all loads are issued before the first is used */

typedef struct {
    const void *grad;
    void *momentum;
    float *out;
    int64_t count;
    float old_share, new_share; /* beta1 and 1 - beta1, each rounded to f32 */
    int32_t has_vectors;        /* of 4 elements: addresses are multiples of their bytes */
} momentum_args;

TGL_INLINE float momentum_next(const momentum_args *a, float momentum, float grad)
{
    return tgl_one_nan(tgl_fma(momentum, a->old_share, a->new_share * grad));
}

/* With Nesterov's look-ahead; from the momentum before its rounding. */
TGL_INLINE float momentum_ahead(const momentum_args *a, float next, float grad)
{
    return tgl_one_nan(tgl_fma(grad, a->new_share, a->old_share * next));
}

#endif
