/* SPDX-License-Identifier: MIT
 * fused_weight.h - what the kernel of fused_weight and the code that launches it agree on. */
#ifndef TEGULA_ENGRAM_FUSED_WEIGHT_H
#define TEGULA_ENGRAM_FUSED_WEIGHT_H

#include "numerics/bf16.h"

#define FUSED_WEIGHT_THREADS 128
#define FUSED_WEIGHT_VECTOR 4 /* columns of a thread, in a kernel with vectors */

typedef struct {
    const void *weight_hidden, *weight_embed;
    float *out;
    int64_t num_streams, hidden;
    int64_t hidden_stride, embed_stride; /* in elements */
    int32_t is_bf16;
} fused_weight_args;

TGL_INLINE float fused_weight_of(float weight_hidden, float weight_embed)
{
    return tgl_one_nan(weight_hidden * weight_embed);
}

#endif
