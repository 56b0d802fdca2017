/* SPDX-License-Identifier: MIT
 * scale.h - scale factors: the factor of a block, and its place in memory. For C and CUDA, and all ops. */
#ifndef TEGULA_QUANT_SCALE_H
#define TEGULA_QUANT_SCALE_H

#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e5m6.h"
#include "numerics/ue8m0.h"

/* Formats as kernels name them: the values of tgl_quant_format. */
#define TGL_FORMAT_E4M3 0
#define TGL_FORMAT_E2M1 1
#define TGL_FORMAT_E5M6 2

/* Bytes of `count` codes; count is even for e2m1, a multiple of 8 for e5m6. */
TGL_INLINE int64_t tgl_code_bytes(int format, int64_t count)
{
    return format == TGL_FORMAT_E4M3 ? count : format == TGL_FORMAT_E2M1 ? count / 2 : count / 8 * 12;
}

/* ---- from amax to a factor ---- */

/* A block's factor: a value is code * sf, a code is encode(value * inv). */
typedef struct { float sf, inv; } tgl_scale;

typedef struct {
    float max;          /* the format's largest value */
    float floor;        /* >= 0: a smaller amax counts as this */
    int32_t is_rounded; /* factors are powers of two */
} tgl_scale_rule;

TGL_INLINE tgl_scale_rule tgl_scale_rule_of(int format, int is_rounded)
{
    tgl_scale_rule rule;
    const int is_e4m3 = format == TGL_FORMAT_E4M3, is_e2m1 = format == TGL_FORMAT_E2M1;
    rule.max = is_e4m3 ? TGL_E4M3_MAX : is_e2m1 ? TGL_E2M1_MAX : TGL_E5M6_MAX;
    rule.floor = is_e2m1 ? 0x1.8p-124f /* 6 * 2^-126 */ : 1e-4f;
    rule.is_rounded = is_rounded;
    return rule;
}

/* amax is the largest magnitude of a block: not NaN, may be infinite. Both are divisions: a product with a
 * rounded reciprocal would differ in the last bit. An infinite amax gives inv = 0: finite values of the block
 * become zeros, infinite ones NaN. */
TGL_INLINE tgl_scale tgl_scale_of(float amax, tgl_scale_rule rule)
{
    const float a = amax > rule.floor ? amax : rule.floor;
    tgl_scale scale;
    scale.sf = a / rule.max;
    if (rule.is_rounded) {
        const uint8_t code = tgl_ue8m0_from_f32(scale.sf);
        scale.sf = tgl_ue8m0_to_f32(code);
        scale.inv = tgl_ue8m0_inverse_to_f32(code);
    } else {
        const float inv = rule.max / a;
        scale.inv = a > 0 ? inv : 0;
    }
    return scale;
}

/* ---- factors in memory ---- */

/* A matrix of factors, one per block, in row m and column k. A kernel that is compiled for one kind sets
 * `kind` to its macro first, and the branches are gone. */
#define TGL_SF_ROWS 0   /* f32, factor (m, k) is element m * stride + k */
#define TGL_SF_COLS 1   /* f32, element k * stride + m */
#define TGL_SF_PACKED 2 /* words of four UE8M0 codes, (m, k) is byte k % 4 of word k / 4 * stride + m */
typedef struct {
    void *data;
    int64_t stride;
    int32_t kind;
} tgl_sf;

/* The element (float or word) that holds factor (m, k). */
TGL_INLINE int64_t tgl_sf_offset(const tgl_sf *sf, int64_t m, int64_t k)
{
    if (sf->kind == TGL_SF_ROWS) return m * sf->stride + k;
    return (sf->kind == TGL_SF_COLS ? k : k / 4) * sf->stride + m;
}

TGL_INLINE float tgl_sf_get(const tgl_sf *sf, int64_t m, int64_t k)
{
    const int64_t i = tgl_sf_offset(sf, m, k);
    if (sf->kind != TGL_SF_PACKED) return ((const float *)sf->data)[i];
    return tgl_ue8m0_to_f32(tgl_ue8m0x4_get(((const uint32_t *)sf->data)[i], (int)(k % 4)));
}

/* The UE8M0 code of a power of two; of any other factor, the exponent. */
TGL_INLINE uint32_t tgl_sf_code_of(float factor) { return tgl_f32_to_bits(factor) >> 23 & 0xFF; }

/* Stores factor (m, k) of num_cols; the last one also sets the remaining codes of its word to 0. One thread
 * must set all codes of a word. (factors.cuh is for kernels.) */
TGL_INLINE void tgl_sf_set(const tgl_sf *sf, int64_t m, int64_t k, int64_t num_cols, float factor)
{
    const int64_t i = tgl_sf_offset(sf, m, k);
    if (sf->kind != TGL_SF_PACKED) {
        ((float *)sf->data)[i] = factor;
    } else {
        uint32_t *word = (uint32_t *)sf->data + i;
        const int shift = (int)(k % 4) * 8;
        const uint32_t replaced = (k == num_cols - 1 ? 0xFFFFFFFFu : 0xFFu) << shift;
        *word = (*word & ~replaced) | tgl_sf_code_of(factor) << shift;
    }
}

#endif
