/* SPDX-License-Identifier: MIT
 * lanes_c.h - loops over arrays of a constant length, in lanes of one width: compilers make vectors of them, as
 * wide as the file they are compiled for allows (core/cpu.h), and without a tail, which for a run of 32 values, a
 * block of e2m1, would be all there is. Other loops they do well as they are.
 *
 * A lane of 32 bits has two neighbours: two bf16 come apart by a shift and a mask, two codes together by a
 * shift, and there is half as much to narrow. Little endian, as both architectures are. */
#include <string.h>

#include "core/square.h"

enum { TGL_LANES = 32 };

/* tgl_minifloat_from_magnitude() in the last bits, below what is to be masked. The anchor, which an addition
 * rounds at, has the value's sign, and in its last bits what the code has for the exponent: so the sum's last
 * bits are the code. */
TGL_ALWAYS_INLINE uint32_t tgl_minifloat_lane(float value, int mantissa_bits, int bias)
{
    const int drop = 23 - mantissa_bits;
    const int32_t min_normal = (128 - bias) << 23, bits = (int32_t)tgl_f32_to_bits(value);
    const int32_t exponent = bits & 0x7F800000, power = exponent > min_normal ? exponent : min_normal;
    const int32_t anchor = power + (power >> drop) + ((drop << 23) - (min_normal >> drop));
    return tgl_f32_to_bits(value + tgl_f32_from_bits((uint32_t)anchor | ((uint32_t)bits & 0x80000000)));
}

/* a where the mask has ones, else b */
TGL_ALWAYS_INLINE uint32_t tgl_merge(uint32_t mask, uint32_t a, uint32_t b)
{
    return (a & mask) | (b & ~mask);
}

/* The codes of both in the last bits, each with its sign as its bit `sign_bit`; above, there is anything. */
TGL_ALWAYS_INLINE uint32_t tgl_minifloat_pair(float even, float odd, int mantissa_bits, int bias, int sign_bit)
{
    const int width = sign_bit + 1;
    const uint32_t magnitude = (1u << sign_bit) - 1;
    const uint32_t codes = tgl_merge(magnitude, tgl_minifloat_lane(even, mantissa_bits, bias),
                                     tgl_minifloat_lane(odd, mantissa_bits, bias) << width);
    const uint32_t signs = tgl_merge(1u << sign_bit, tgl_f32_to_bits(even) >> (32 - width),
                                     tgl_f32_to_bits(odd) >> (32 - 2 * width));
    return tgl_merge(magnitude | magnitude << width, codes, signs);
}

/* Codes of the products of TGL_LANES values with factors, of which there is one or one each; in pairs. */
TGL_ALWAYS_INLINE void tgl_minifloat_lanes(const void *values, bool is_bf16, const float *factors,
                                          bool has_each, int mantissa_bits, int bias, int sign_bit,
                                          uint16_t *to)
{
    uint32_t pairs[TGL_LANES / 2];
    for (int i = 0; i < TGL_LANES / 2; i++) {
        float even, odd;
        if (is_bf16) {
            uint32_t both;
            memcpy(&both, (const char *)values + 4 * i, 4);
            even = tgl_f32_from_bits(both << 16), odd = tgl_f32_from_bits(both & 0xFFFF0000);
        } else {
            even = ((const float *)values)[2 * i], odd = ((const float *)values)[2 * i + 1];
        }
        pairs[i] = tgl_minifloat_pair(even * factors[has_each ? 2 * i : 0],
                                      odd * factors[has_each ? 2 * i + 1 : 0], mantissa_bits, bias, sign_bit);
    }
    for (int i = 0; i < TGL_LANES / 2; i++) to[i] = (uint16_t)pairs[i];
}

TGL_ALWAYS_INLINE int32_t tgl_run_amax(const void *values, bool is_bf16, int64_t count)
{
    if (!is_bf16) return tgl_tail_amax(values, false, 0, count, 0);
    int16_t amax = 0;                           /* of 16 bits: twice as many lanes */
    for (int64_t i = 0; i < count; i++) {
        const int16_t bits = (int16_t)(((const uint16_t *)values)[i] & 0x7FFF);
        amax = bits > amax ? bits : amax;
    }
    return amax << 16;
}

TGL_ALWAYS_INLINE void tgl_run_to_e4m3(const void *values, bool is_bf16, int64_t count, int64_t ahead,
                                       const float *factors, bool has_each, uint8_t *to)
{
    const int64_t bytes = is_bf16 ? 2 : 4;
    int64_t i = 0;
    for (; i + TGL_LANES <= count; i += TGL_LANES) {
        uint16_t pairs[TGL_LANES / 2];
        tgl_prefetch(values, i * bytes + ahead, TGL_LANES * bytes);
        tgl_minifloat_lanes((const char *)values + i * bytes, is_bf16, factors + (has_each ? i : 0), has_each, 3,
                            7, 7, pairs);
        memcpy(to + i, pairs, sizeof pairs);
    }
    tgl_tail_to_e4m3(values, is_bf16, i, count, factors, has_each, to);
}

TGL_ALWAYS_INLINE void tgl_run_to_e2m1(const void *values, bool is_bf16, int64_t count, int64_t ahead,
                                       const float *factors, bool has_each, uint8_t *to)
{
    int64_t i = 0;
#ifdef TGL_HAS_SHUFFLE
    const int64_t bytes = is_bf16 ? 2 : 4;
    for (; i + TGL_LANES <= count; i += TGL_LANES) {
        uint16_t pairs[TGL_LANES / 2];
        tgl_u8s a, b;
        tgl_prefetch(values, i * bytes + ahead, TGL_LANES * bytes);
        tgl_minifloat_lanes((const char *)values + i * bytes, is_bf16, factors + (has_each ? i : 0), has_each, 1,
                            1, 3, pairs);
        memcpy(&a, pairs, 16);
        memcpy(&b, pairs + 8, 16);
        const tgl_u8s codes = tgl_even_bytes(a, b);
        memcpy(to + i / 2, &codes, 16);
    }
#else
    (void)ahead;
#endif
    tgl_tail_to_e2m1(values, is_bf16, i, count, factors, has_each, to);
}

TGL_ALWAYS_INLINE void tgl_run_to_bf16(const float *restrict values, int64_t count, uint16_t *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = tgl_bf16_from_f32(values[i]);
}

TGL_ALWAYS_INLINE void tgl_run_from_e4m3(const uint8_t *restrict codes, int64_t count, float factor, bool is_bf16,
                                         void *restrict to)
{
    uint8_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t magnitude = codes[i] & 0x7F;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest < 0x7F)
        for (int64_t i = 0; i < count; i++) tgl_store_as(to, is_bf16, i, tgl_e4m3_number_to_f32(codes[i]) * factor);
    else tgl_tail_from_e4m3(codes, 0, count, factor, is_bf16, to);
}

TGL_ALWAYS_INLINE void tgl_run_from_e5m6(const uint8_t *codes, int64_t count, float factor, bool is_bf16, void *to)
{
    tgl_tail_from_e5m6(codes, 0, count, factor, is_bf16, to);
}

TGL_ALWAYS_INLINE void tgl_run_from_e2m1x2(const uint8_t *restrict codes, int64_t num_pairs, bool is_bf16,
                                           void *restrict to)
{
    for (int64_t i = 0; i < num_pairs; i++)
        for (int k = 0; k < 2; k++) {
            const uint16_t value = tgl_e2m1_to_bf16((uint8_t)(codes[i] >> 4 * k));
            if (is_bf16) ((uint16_t *)to)[2 * i + k] = value;
            else ((float *)to)[2 * i + k] = tgl_bf16_to_f32(value);
        }
}

#ifdef TGL_HAS_SHUFFLE
/* tgl_lossless_exact() */
TGL_ALWAYS_INLINE tgl_u8s tgl_lossless_lanes(tgl_u8s codes, int shift)
{
    const tgl_u8s magnitude = codes & 7, sign = (tgl_u8s)((tgl_u16s)codes << 4) & 0x80;
    const tgl_u8s normal = 4 * magnitude + (uint8_t)(0x30 + 8 * shift) - ((tgl_u8s)(magnitude == 1) & 4);
    return sign | (normal & (tgl_u8s)(magnitude != 0));
}
#endif

TGL_ALWAYS_INLINE void tgl_run_lossless(const uint8_t *x, int64_t num_pairs, int shift, uint8_t *out)
{
    int64_t i = 0;
#ifdef TGL_HAS_SHUFFLE
    for (; i + 16 <= num_pairs; i += 16) {
        tgl_u8s pairs;
        memcpy(&pairs, x + i, 16);
        const tgl_u8s even = tgl_lossless_lanes(pairs & 15, shift);
        const tgl_u8s odd = tgl_lossless_lanes(pairs >> 4, shift);
        const tgl_u8s low = tgl_zip_low(even, odd, 1), high = tgl_zip_high(even, odd, 1);
        memcpy(out + 2 * i, &low, 16);
        memcpy(out + 2 * i + 16, &high, 16);
    }
#endif
    tgl_tail_lossless(x, i, num_pairs, shift, out);
}

/* Tables are NEON's. */
enum { TGL_TABLE_STEP = 64 };
typedef struct { char none; } tgl_tables;
TGL_ALWAYS_INLINE void tgl_clear_tables(tgl_tables *t) { (void)t; }
TGL_ALWAYS_INLINE void tgl_table_blocks_to_e4m3(const uint16_t *values, int64_t col, int64_t count, int64_t ahead,
                                                int64_t block_cols, const float *factors, bool is_small,
                                                tgl_tables *tables, uint8_t *to)
{
    (void)values, (void)col, (void)count, (void)ahead, (void)block_cols, (void)factors, (void)is_small;
    (void)tables, (void)to;
}
