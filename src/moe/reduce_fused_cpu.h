/* SPDX-License-Identifier: MIT
 * reduce_fused_cpu.h - what the plain and the fast loop of reduce_fused share. */
#ifndef TEGULA_MOE_REDUCE_FUSED_CPU_H
#define TEGULA_MOE_REDUCE_FUSED_CPU_H

#include "core/cpu.h"
#include "moe/reduce_fused.h"
#include "numerics/bf16.h"
#include "numerics/e4m3.h"
#include "numerics/f16.h"

/* Tokens begin .. end - 1 of a reduce_args. */
TGL_DECLARE_FAST(void, tgl_reduce_rows, const void *context, int64_t begin, int64_t end);

TGL_ALWAYS_INLINE float reduce_load(const void *x, int type, int64_t i)
{
    switch (type) {
    case REDUCE_F32: return ((const float *)x)[i];
    case REDUCE_BF16: return tgl_bf16_to_f32(((const uint16_t *)x)[i]);
    case REDUCE_F16: return tgl_f16_to_f32(((const uint16_t *)x)[i]);
    default: return tgl_e4m3_to_f32(((const uint8_t *)x)[i]);
    }
}

TGL_ALWAYS_INLINE void reduce_store(void *out, int type, int64_t i, float value)
{
    switch (type) {
    case REDUCE_F32: ((float *)out)[i] = tgl_one_nan(value); break;
    case REDUCE_BF16: ((uint16_t *)out)[i] = tgl_bf16_from_f32(value); break;
    case REDUCE_F16: ((uint16_t *)out)[i] = tgl_f16_from_f32(value); break;
    default: ((uint8_t *)out)[i] = tgl_e4m3_from_f32(value); break;
    }
}

#endif
