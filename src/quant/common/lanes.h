/* SPDX-License-Identifier: MIT
 * lanes.h - inner loops of fast casts, over runs of values with one factor, or one each. The bodies, 8 to 64
 * values at a time, are NEON intrinsics (lanes_neon.inc) or C that compilers vectorise (lanes_c.inc). Results
 * have the bits of the functions in numerics/, which do the tails. */
#ifndef TEGULA_QUANT_LANES_H
#define TEGULA_QUANT_LANES_H

#include <math.h>

#include "quant/common/cast.h"
#include "quant/lossless.h"

#if defined(__aarch64__) && defined(__ARM_NEON) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define TGL_HAS_NEON 1
#else
#define TGL_HAS_NEON 0
#endif

/* Prefetches `bytes` bytes, `ahead` bytes past the values. An address past the end is harmless. */
TGL_ALWAYS_INLINE void tgl_prefetch(const void *values, int64_t ahead, int64_t bytes)
{
    enum { LINE = 64, LEVEL = TGL_HAS_NEON ? 3 : 2 }; /* into L1, or L2 */
    for (int64_t i = 0; i < bytes; i += LINE)
        __builtin_prefetch((const void *)((uintptr_t)values + (uintptr_t)(ahead + i)), 0, LEVEL);
}

/* ---- tails, from value `i` on ---- */

/* Bits of a magnitude: as integers they have the order of floats; NaN is above all numbers. */
TGL_ALWAYS_INLINE int32_t tgl_tail_amax(const void *values, bool is_bf16, int64_t i, int64_t count, int32_t amax)
{
    for (; i < count; i++) {
        const int32_t bits = (int32_t)(tgl_f32_to_bits(tgl_value_at(values, is_bf16, i)) & 0x7FFFFFFF);
        amax = bits > amax ? bits : amax;
    }
    return amax;
}

TGL_ALWAYS_INLINE void tgl_tail_to_e4m3(const void *values, bool is_bf16, int64_t i, int64_t count,
                                        const float *factors, bool has_each, uint8_t *to)
{
    for (; i < count; i++)
        to[i] = tgl_e4m3_from_small_f32(tgl_value_at(values, is_bf16, i) * factors[has_each ? i : 0]);
}

TGL_ALWAYS_INLINE void tgl_tail_to_e2m1(const void *values, bool is_bf16, int64_t i, int64_t count,
                                        const float *factors, bool has_each, uint8_t *to)
{
    for (; i < count; i += 2) {
        const float even = tgl_value_at(values, is_bf16, i) * factors[has_each ? i : 0];
        const float odd = tgl_value_at(values, is_bf16, i + 1) * factors[has_each ? i + 1 : 0];
        to[i / 2] = (uint8_t)(tgl_e2m1_from_small_f32(even) | tgl_e2m1_from_small_f32(odd) << 4);
    }
}

TGL_ALWAYS_INLINE void tgl_store_as(void *to, bool is_bf16, int64_t i, float value)
{
    if (is_bf16) ((uint16_t *)to)[i] = tgl_bf16_from_f32(value);
    else ((float *)to)[i] = value;
}

TGL_ALWAYS_INLINE void tgl_tail_from_e4m3(const uint8_t *restrict codes, int64_t i, int64_t count, float factor,
                                          bool is_bf16, void *restrict to)
{
    for (; i < count; i++) tgl_store_as(to, is_bf16, i, tgl_e4m3_to_f32(codes[i]) * factor);
}

TGL_ALWAYS_INLINE void tgl_tail_from_e5m6(const uint8_t *codes, int64_t i, int64_t count, float factor, bool is_bf16,
                                          void *to)
{
    enum { STEP = 64 }; /* at a time, so that the conversion is vectorised */
    for (; i < count; i += STEP) {
        uint16_t each[STEP];
        const int64_t n = count - i < STEP ? count - i : STEP;
        for (int64_t k = 0; k < n; k += 8) {
            uint32_t words[3];
            memcpy(words, codes + (i + k) / 8 * 12, sizeof words);
            tgl_e5m6x8_unpack(words, each + k);
        }
        for (int64_t k = 0; k < n; k++) tgl_store_as(to, is_bf16, i + k, tgl_e5m6_to_f32(each[k]) * factor);
    }
}

static __attribute__((noinline, unused)) void tgl_tail_lossless(const uint8_t *x, int64_t i, int64_t num_pairs,
                                                                int shift, uint8_t *out)
{ /* rare, so not inlined: the caller keeps its registers */
    for (; i < num_pairs; i++) {
        out[2 * i] = tgl_lossless_exact(x[i] & 15, shift);
        out[2 * i + 1] = tgl_lossless_exact(x[i] >> 4, shift);
    }
}

#if TGL_HAS_NEON
#include "quant/common/lanes_neon.inc"
#else
#include "quant/common/lanes_c.inc"
#endif
#endif
