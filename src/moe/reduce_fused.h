/* SPDX-License-Identifier: MIT
 * reduce_fused.h - what the kernels of reduce_fused, the code that launches them and the CPU loops share. */
#ifndef TEGULA_MOE_REDUCE_FUSED_H
#define TEGULA_MOE_REDUCE_FUSED_H

#include "numerics/base.h"

/* Element types of x and out. */
#define REDUCE_F32 0
#define REDUCE_BF16 1
#define REDUCE_F16 2
#define REDUCE_E4M3 3
#define REDUCE_BYTES(type) ((type) == REDUCE_F32 ? 4 : (type) == REDUCE_E4M3 ? 1 : 2)

/* Strides are in elements. x_sf, topk_weights and sf may be NULL. */
typedef struct {
    const void *x;
    const float *x_sf, *topk_weights;
    const int32_t *token_topk_to_pos;
    const float *sf;
    void *out;
    int64_t num_positions, num_tokens, num_topk, hidden;
    int64_t x_stride, weights_stride, out_stride;
    int32_t x_type, out_type;   /* macros of the kernels */
    int32_t tokens;     /* of a block at a time: their slots are loaded at once, one per lane */
} reduce_args;

/* reduce_fused_bulk: max threads of a block. */
#define REDUCE_BULK_THREADS 256

/* Measured on an H200, 2026-11-15 and 16: max tokens of a block at a time; fewer rather than less than
 * REDUCE_BLOCKS blocks; with fewer tokens than REDUCE_FEW_TOKENS bulk copies do not pay. */
#define REDUCE_TOKENS 2
#define REDUCE_BLOCKS 4096
#define REDUCE_FEW_TOKENS 512

/* ---- on the CPU ---- */
#ifndef __CUDACC__
#include "core/cpu.h"
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

#endif
