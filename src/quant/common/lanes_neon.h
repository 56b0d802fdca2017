/* SPDX-License-Identifier: MIT
 * lanes_neon.h - the loops of lanes.h in NEON's intrinsics.
 *
 * Compilers make vectors of plain loops too, but of 32 bits a value where 16 do, and so of twice the
 * operations: e4m3 of bf16 takes 0.40 ns a value on a Neoverse N1 at 2.5 GHz, and 0.23 by tables, but 0.78
 * by gcc 12, 0.96 by clang 14.
 *
 * Such a core starts two vector operations a cycle, shifts one, and has room for about 30 that wait. So a
 * turn of a loop has few operations, and two chains of them that do not depend on each other. Subnormal
 * numbers cost nothing there, which the decoders use. */
#include <arm_neon.h>
#include <math.h>
#include <string.h>

#define TGL_ALONE static __attribute__((noinline, unused))      /* so that registers suffice */

typedef struct { float32x4_t low, high; } tgl_f32x8;

/* The floats whose upper 16 bits are in `high`, and their lower ones in `low`. */
TGL_ALWAYS_INLINE tgl_f32x8 tgl_join(uint16x8_t low, uint16x8_t high)
{
    return (tgl_f32x8){ vreinterpretq_f32_u16(vzip1q_u16(low, high)),
                        vreinterpretq_f32_u16(vzip2q_u16(low, high)) };
}
TGL_ALWAYS_INLINE uint16x8_t tgl_low_halves(tgl_f32x8 v)
{
    return vuzp1q_u16(vreinterpretq_u16_f32(v.low), vreinterpretq_u16_f32(v.high));
}
TGL_ALWAYS_INLINE uint16x8_t tgl_high_halves(tgl_f32x8 v)
{
    return vuzp2q_u16(vreinterpretq_u16_f32(v.low), vreinterpretq_u16_f32(v.high));
}
TGL_ALWAYS_INLINE uint8x16_t tgl_low_bytes(uint16x8_t a, uint16x8_t b)
{
    return vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
}
TGL_ALWAYS_INLINE uint8x16_t tgl_high_bytes(uint16x8_t a, uint16x8_t b)
{
    return vuzp2q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
}

TGL_ALWAYS_INLINE tgl_f32x8 tgl_load8(const void *values, bool is_bf16, int64_t i)
{
    if (is_bf16) return tgl_join(vdupq_n_u16(0), vld1q_u16((const uint16_t *)values + i));
    return (tgl_f32x8){ vld1q_f32((const float *)values + i), vld1q_f32((const float *)values + i + 4) };
}
TGL_ALWAYS_INLINE void tgl_store8(float *to, tgl_f32x8 v)
{
    vst1q_f32(to, v.low);
    vst1q_f32(to + 4, v.high);
}
TGL_ALWAYS_INLINE tgl_f32x8 tgl_times8(tgl_f32x8 a, tgl_f32x8 b)
{
    return (tgl_f32x8){ vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high) };
}
TGL_ALWAYS_INLINE tgl_f32x8 tgl_all8(float value)
{
    return (tgl_f32x8){ vdupq_n_f32(value), vdupq_n_f32(value) };
}

/* ---- the largest magnitude ----
 * Of bits without their signs, as integers. */

TGL_ALWAYS_INLINE int32_t tgl_run_amax(const void *values, bool is_bf16, int64_t count)
{
    int64_t i = 0;
    if (is_bf16) {
        const uint16x8_t mask = vdupq_n_u16(0x7FFF);
        uint16x8_t a = vdupq_n_u16(0), b = a;
        for (; i + 16 <= count; i += 16) {
            a = vmaxq_u16(a, vandq_u16(mask, vld1q_u16((const uint16_t *)values + i)));
            b = vmaxq_u16(b, vandq_u16(mask, vld1q_u16((const uint16_t *)values + i + 8)));
        }
        return tgl_tail_amax(values, true, i, count, vmaxvq_u16(vmaxq_u16(a, b)) << 16);
    }
    const int32x4_t mask = vdupq_n_s32(0x7FFFFFFF);
    int32x4_t a = vdupq_n_s32(0), b = a;
    for (; i + 8 <= count; i += 8) {
        a = vmaxq_s32(a, vandq_s32(mask, vreinterpretq_s32_f32(vld1q_f32((const float *)values + i))));
        b = vmaxq_s32(b, vandq_s32(mask, vreinterpretq_s32_f32(vld1q_f32((const float *)values + i + 4))));
    }
    return tgl_tail_amax(values, false, i, count, vmaxvq_s32(vmaxq_s32(a, b)));
}

/* ---- encoding ---- */

/* values * factors, of which there is one or one each. */
TGL_ALWAYS_INLINE tgl_f32x8 tgl_products(const void *values, bool is_bf16, const float *factors, bool has_each,
                                        int64_t i)
{
    return tgl_times8(tgl_load8(values, is_bf16, i),
                      has_each ? tgl_load8(factors, false, i) : tgl_all8(factors[0]));
}

/* tgl_minifloat_from_magnitude() of 8 numbers, whose signs are ignored; `high` has their upper halves. The
 * anchor, which an addition rounds at, has in its lower half what the code has for the exponent: so the sum's
 * lower half is the code. */
TGL_ALWAYS_INLINE uint16x8_t tgl_minifloats(tgl_f32x8 v, uint16x8_t high, int mantissa_bits, int bias)
{
    const int min_normal = (128 - bias) << 7, drop = 23 - mantissa_bits;
    const uint16x8_t exponent = vandq_u16(high, vdupq_n_u16(0x7F80));
    const uint16x8_t above = vqsubq_u16(exponent, vdupq_n_u16((uint16_t)min_normal));
    const uint16x8_t power = vaddq_u16(above, vdupq_n_u16((uint16_t)(min_normal + (drop << 7))));
    const uint16x8_t signed_power = vbslq_u16(vdupq_n_u16(0x7FFF), power, high);
    const tgl_f32x8 anchor = tgl_join(mantissa_bits == 3 ? vshrq_n_u16(above, 4) : vshrq_n_u16(above, 6),
                                      signed_power);
    return tgl_low_halves((tgl_f32x8){ vaddq_f32(v.low, anchor.low), vaddq_f32(v.high, anchor.high) });
}

/* tgl_e4m3_from_small_f32() of products. */
TGL_ALWAYS_INLINE uint8x16_t tgl_e4m3x16(tgl_f32x8 a, tgl_f32x8 b)
{
    const uint16x8_t high_a = tgl_high_halves(a), high_b = tgl_high_halves(b);
    const uint8x16_t codes = tgl_low_bytes(tgl_minifloats(a, high_a, 3, 7), tgl_minifloats(b, high_b, 3, 7));
    return vbslq_u8(vdupq_n_u8(0x7F), codes, tgl_high_bytes(high_a, high_b));
}
/* From `i` on, as many sixteens as there are before `end`; returns where they end. */
TGL_ALWAYS_INLINE int64_t tgl_any_to_e4m3(const void *values, bool is_bf16, int64_t i, int64_t end,
                                         const float *factors, bool has_each, uint8_t *to)
{
    for (; i + 32 <= end; i += 32)
        for (int64_t j = i; j < i + 32; j += 16)
            vst1q_u8(to + j, tgl_e4m3x16(tgl_products(values, is_bf16, factors, has_each, j),
                                         tgl_products(values, is_bf16, factors, has_each, j + 8)));
    for (; i + 16 <= end; i += 16)
        vst1q_u8(to + i, tgl_e4m3x16(tgl_products(values, is_bf16, factors, has_each, i),
                                     tgl_products(values, is_bf16, factors, has_each, i + 8)));
    return i;
}

/* Codes that are normal numbers take three quarters of the operations: bits are rounded where they are. The
 * upper halves of 8 products, rounded, less those of 2^-6. */
TGL_ALWAYS_INLINE uint16x8_t tgl_e4m3_above(tgl_f32x8 v)
{
    const uint32x4_t last_place = vdupq_n_u32(1u << 20), by = vdupq_n_u32((1u << 19) - 1 - (121u << 23));
    const uint32x4_t a = vreinterpretq_u32_f32(v.low), b = vreinterpretq_u32_f32(v.high);
    const uint32x4_t even_a = vsubq_u32(a, vtstq_u32(a, last_place));       /* plus 1 where it is set */
    const uint32x4_t even_b = vsubq_u32(b, vtstq_u32(b, last_place));
    return vaddhn_high_u32(vaddhn_u32(even_a, by), even_b, by);
}
/* Their codes. `seen` collects signs and, where a product is below 2^-6, bits of 0x78. */
TGL_ALWAYS_INLINE uint8x16_t tgl_normal_e4m3x16(tgl_f32x8 a, tgl_f32x8 b, uint8x16_t *seen)
{
    const uint16x8_t above_a = tgl_e4m3_above(a), above_b = tgl_e4m3_above(b);
    const uint8x16_t tops = tgl_high_bytes(above_a, above_b);
    const uint8x16_t above = vshrn_high_n_u16(vshrn_n_u16(above_a, 4), above_b, 4);
    *seen = vorrq_u8(*seen, tops);
    return vbslq_u8(vdupq_n_u8(0x80), tops, vaddq_u8(above, vdupq_n_u8(8)));
}
TGL_ALWAYS_INLINE bool tgl_has_bits(uint8x16_t v) { return vmaxvq_u32(vreinterpretq_u32_u8(v)) != 0; }

TGL_ALWAYS_INLINE void tgl_run_to_e4m3(const void *values, bool is_bf16, int64_t count, int64_t ahead,
                                       const float *factors, bool has_each, uint8_t *to)
{
    enum { STEP = 64, N = STEP / 16, MANY = 256 };
    int64_t i = 0;
    while (i + STEP <= count) {
        uint8x16_t seen = vdupq_n_u8(0), codes[N];
        tgl_prefetch(values, i * (is_bf16 ? 2 : 4) + ahead, STEP * (is_bf16 ? 2 : 4));
        for (int k = 0; k < N; k++)
            codes[k] = tgl_normal_e4m3x16(
                tgl_products(values, is_bf16, factors, has_each, i + 16 * k),
                tgl_products(values, is_bf16, factors, has_each, i + 16 * k + 8), &seen);
        for (int k = 0; k < N; k++) vst1q_u8(to + i + 16 * k, codes[k]);    /* after all loads */
        if (!tgl_has_bits(vandq_u8(seen, vdupq_n_u8(0x78)))) i += STEP;
        else i = tgl_any_to_e4m3(values, is_bf16, i, count - i < MANY ? count : i + MANY, factors, has_each,
                                 to);           /* where there is one, there may be more */
    }
    i = tgl_any_to_e4m3(values, is_bf16, i, count, factors, has_each, to);
    tgl_tail_to_e4m3(values, is_bf16, i, count, factors, has_each, to);
}

/* ---- e4m3 of bf16, by tables ----
 * Of bf16 times one factor, as long as codes are normal numbers, the exponents of both add up in the code,
 * and all the rest depends on seven bits of mantissa and on the factor's mantissa. Codes are an eighth of a
 * power of two apart, or a little less, so eight mantissas side by side have one code, or two. A table has,
 * for the exponent's last bit and four bits of mantissa, the first code and the last byte that has it: 12
 * operations make 16 codes, instead of 33.
 *
 * There are few different factors as a rule, since the amax of a block is a bf16: tables are kept. */

typedef struct { uint8x16_t codes, lasts; } tgl_e4m3_table;      /* of even exponents */
enum { TGL_NUM_TABLES = 256 };
typedef struct {
    tgl_e4m3_table table[TGL_NUM_TABLES];
    uint32_t mantissa[TGL_NUM_TABLES];          /* the factor's, or ~0: no table */
} tgl_tables;

TGL_ALWAYS_INLINE void tgl_clear_tables(tgl_tables *t)
{
    for (int i = 0; i < TGL_NUM_TABLES; i++) t->mantissa[i] = ~0u;
}

/* For a factor and values in [1, 2). */
TGL_ALONE tgl_e4m3_table tgl_make_table(float factor)
{
    /* the least products that round to 9/8, 10/8, ... 16/8; ties go up only to even codes */
    static const float PRODUCTS[8] = { 0x1.100002p0f, 0x1.3p0f, 0x1.500002p0f, 0x1.7p0f,
                                       0x1.900002p0f, 0x1.Bp0f, 0x1.D00002p0f, 0x1.Fp0f };
    static const float STARTS[16] = { 1.0f, 1.0625f, 1.125f, 1.1875f, 1.25f, 1.3125f, 1.375f, 1.4375f,
                                      1.5f, 1.5625f, 1.625f, 1.6875f, 1.75f, 1.8125f, 1.875f, 1.9375f };
    const uint16x8_t one = vdupq_n_u16(0x3F80);
    const tgl_f32x8 f = tgl_all8(factor), least = tgl_load8(PRODUCTS, false, 0);
    /* the last bf16 not above a quotient that is too large, but not by much; or the next one: which of them
     * is the first to have such a product */
    const uint16x8_t near = tgl_high_halves(tgl_times8(least, tgl_all8(0x1.00001p0f / factor)));
    const tgl_f32x8 products = tgl_times8(tgl_join(vdupq_n_u16(0), near), f);
    const uint16x8_t is_less = tgl_low_halves((tgl_f32x8){
        vreinterpretq_f32_u32(vcltq_f32(products.low, least.low)),
        vreinterpretq_f32_u32(vcltq_f32(products.high, least.high)) });
    const uint16x8_t first = vsubq_u16(near, is_less);
    /* mantissas before these: of codes from 1 on, then from 2 on, of which those past 2 are out of reach */
    const uint16x8_t before = vandq_u16(vsubq_u16(first, vdupq_n_u16(1)), vdupq_n_u16(0x7F));
    const uint16x8_t far = vbslq_u16(vcltq_u16(first, one), before, vdupq_n_u16(0x7F));
    const uint8x16_t lasts = tgl_low_bytes(before, far);
    const uint16x8_t low = tgl_e4m3_above(tgl_times8(tgl_load8(STARTS, false, 0), f));
    const uint16x8_t high = tgl_e4m3_above(tgl_times8(tgl_load8(STARTS, false, 8), f));
    const uint8x16_t codes = vaddq_u8(vshrn_high_n_u16(vshrn_n_u16(low, 4), high, 4), vdupq_n_u8(8));
    return (tgl_e4m3_table){ codes, vqtbl1q_u8(lasts, vsubq_u8(codes, vdupq_n_u8(0x38))) };  /* 0x38 is 1 */
}

/* The way for all values and factors, in sixteens. */
TGL_ALONE void tgl_any_bf16_to_e4m3(const uint16_t *values, int64_t i, int64_t end, float factor,
                                          uint8_t *to)
{
    const float amax = tgl_f32_from_bits((uint32_t)tgl_run_amax(values + i, true, end - i));
    if (amax * fabsf(factor) < 464)             /* no NaN, none that overflows */
        tgl_any_to_e4m3(values, true, i, end, &factor, false, to);
    else
        for (; i < end; i++) to[i] = tgl_e4m3_from_f32(tgl_bf16_to_f32(values[i]) * factor);
}

/* Values of a row from column `col` on, in blocks with a factor each; all of these lengths are multiples of
 * TGL_TABLE_STEP. `is_small`: no code is past the largest one. */
enum { TGL_TABLE_STEP = 64 };
TGL_ALWAYS_INLINE void tgl_blocks_to_e4m3(const uint16_t *values, int64_t col, int64_t count, int64_t ahead,
                                         int64_t block_cols, const float *factors, bool is_small,
                                         tgl_tables *tables, uint8_t *to)
{
    enum { STEP = TGL_TABLE_STEP, N = STEP / 16, MANY = 2 * STEP };
    int64_t block = col / block_cols;
    for (int64_t i = 0, end; i < count; i = end, block++) {
        const uint32_t bits = tgl_f32_to_bits(factors[block]), mantissa = bits & 0x7FFFFF;
        const uint32_t exponent = bits >> 23, at = mantissa >> 15;
        end = (block + 1) * block_cols - col < count ? (block + 1) * block_cols - col : count;
        if (exponent < 64 || exponent > 240) {      /* negative ones, too */
            tgl_any_bf16_to_e4m3(values, i, end, factors[block], to);
            continue;
        }
        if (tables->mantissa[at] != mantissa) {
            tables->table[at] = tgl_make_table(tgl_f32_from_bits(mantissa | 0x3F800000));
            tables->mantissa[at] = mantissa;
        }
        const tgl_e4m3_table t = tables->table[at];
        const uint8x16_t first = vaddq_u8(t.codes, vdupq_n_u8((uint8_t)(8 * (exponent - 254))));
        const uint8x16x2_t codes = { { first, vaddq_u8(first, vdupq_n_u8(8)) } };
        const uint8x16x2_t lasts = { { t.lasts, vaddq_u8(t.lasts, vdupq_n_u8(0x80)) } };
        /* twice the upper byte of the first bf16 whose code is normal; 22 powers of two above it, codes still
         * fit in a byte */
        const uint8x16_t least = vdupq_n_u8((uint8_t)(248 - exponent));
        while (i < end) {
            const int64_t from = i, stop = end - i < MANY ? end : i + MANY;
            uint8x16_t is_else = vdupq_n_u8(0);
            for (; i < stop; i += STEP) {
                uint8x16_t low[N], high[N];
                tgl_prefetch(values, i * 2 + ahead, STEP * 2);
                for (int k = 0; k < N; k++) {
                    const uint16x8_t a = vld1q_u16(values + i + 16 * k);
                    const uint16x8_t b = vld1q_u16(values + i + 16 * k + 8);
                    low[k] = tgl_low_bytes(a, b);
                    high[k] = tgl_high_bytes(a, b);
                }
                for (int k = 0; k < N; k++) {
                    const uint8x16_t entry = vshrq_n_u8(low[k], 3), twice = vaddq_u8(high[k], high[k]);
                    const uint8x16_t is_past = vcgtq_u8(low[k], vqtbl2q_u8(lasts, entry));  /* -1 if so */
                    const uint8x16_t sum = vaddq_u8(vqtbl2q_u8(codes, entry), vshlq_n_u8(twice, 3));
                    const uint8x16_t code = vsubq_u8(sum, is_past);
                    if (is_small) {
                        is_else = vorrq_u8(is_else, vcltq_u8(twice, least));
                    } else {
                        is_else = vorrq_u8(is_else, vcgtq_u8(vsubq_u8(twice, least), vdupq_n_u8(22)));
                        is_else = vorrq_u8(is_else, vcgtq_u8(code, vdupq_n_u8(0x7E)));
                    }
                    vst1q_u8(to + i + 16 * k, vbslq_u8(vdupq_n_u8(0x80), high[k], code));
                }
            }
            if (vmaxvq_u32(vreinterpretq_u32_u8(is_else)))
                tgl_any_bf16_to_e4m3(values, from, stop, factors[block], to);
        }
    }
}
TGL_ALONE void tgl_small_blocks_to_e4m3(const uint16_t *values, int64_t col, int64_t count, int64_t ahead,
                                        int64_t block_cols, const float *factors, tgl_tables *tables, uint8_t *to)
{
    tgl_blocks_to_e4m3(values, col, count, ahead, block_cols, factors, true, tables, to);
}
TGL_ALONE void tgl_any_blocks_to_e4m3(const uint16_t *values, int64_t col, int64_t count, int64_t ahead,
                                      int64_t block_cols, const float *factors, tgl_tables *tables, uint8_t *to)
{
    tgl_blocks_to_e4m3(values, col, count, ahead, block_cols, factors, false, tables, to);
}
TGL_ALWAYS_INLINE void tgl_table_blocks_to_e4m3(const uint16_t *values, int64_t col, int64_t count, int64_t ahead,
                                                int64_t block_cols, const float *factors, bool is_small,
                                                tgl_tables *tables, uint8_t *to)
{
    (is_small ? tgl_small_blocks_to_e4m3 : tgl_any_blocks_to_e4m3)(values, col, count, ahead, block_cols, factors,
                                                                   tables, to);
}

/* tgl_e2m1_from_small_f32() of products, in pairs. */
TGL_ALWAYS_INLINE uint8x8_t tgl_e2m1x16(tgl_f32x8 a, tgl_f32x8 b)
{
    const uint16x8_t high_a = tgl_high_halves(a), high_b = tgl_high_halves(b);
    const uint8x16_t codes = tgl_low_bytes(tgl_minifloats(a, high_a, 1, 1), tgl_minifloats(b, high_b, 1, 1));
    const uint8x16_t signs = vandq_u8(vshrq_n_u8(tgl_high_bytes(high_a, high_b), 4), vdupq_n_u8(8));
    const uint16x8_t pairs = vreinterpretq_u16_u8(vorrq_u8(codes, signs));
    return vmovn_u16(vsraq_n_u16(pairs, pairs, 4));     /* the upper code to the nibble above the lower one */
}
TGL_ALWAYS_INLINE void tgl_run_to_e2m1(const void *values, bool is_bf16, int64_t count, int64_t ahead,
                                       const float *factors, bool has_each, uint8_t *to)
{
    int64_t i = 0;
    (void)ahead;
    for (; i + 32 <= count; i += 32)
        for (int64_t j = i; j < i + 32; j += 16)
            vst1_u8(to + j / 2, tgl_e2m1x16(tgl_products(values, is_bf16, factors, has_each, j),
                                            tgl_products(values, is_bf16, factors, has_each, j + 8)));
    tgl_tail_to_e2m1(values, is_bf16, i, count, factors, has_each, to);
}

/* tgl_bf16_from_f32() of what is no NaN */
TGL_ALWAYS_INLINE uint16x8_t tgl_bf16x8_of_numbers(tgl_f32x8 v)
{
    const uint16x8_t low = tgl_low_halves(v), high = tgl_high_halves(v);
    const uint16x8_t is_odd = vandq_u16(high, vdupq_n_u16(1));
    const uint16x8_t is_above = vcgtq_u16(vqaddq_u16(low, is_odd), vdupq_n_u16(0x8000));    /* -1 if so */
    return vsubq_u16(high, is_above);
}
TGL_ALWAYS_INLINE uint16x8_t tgl_bf16x8(tgl_f32x8 v)
{
    const uint16x8_t is_number = tgl_low_halves((tgl_f32x8){
        vreinterpretq_f32_u32(vceqq_f32(v.low, v.low)), vreinterpretq_f32_u32(vceqq_f32(v.high, v.high)) });
    return vbslq_u16(is_number, tgl_bf16x8_of_numbers(v), vdupq_n_u16(0x7FFF));
}
TGL_ALWAYS_INLINE void tgl_run_to_bf16(const float *values, int64_t count, uint16_t *to)
{
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        vst1q_u16(to + i, tgl_bf16x8(tgl_load8(values, false, i)));
        vst1q_u16(to + i + 8, tgl_bf16x8(tgl_load8(values, false, i + 8)));
    }
    for (; i < count; i++) to[i] = tgl_bf16_from_f32(values[i]);
}

/* ---- decoding ----
 * A code's exponent and mantissa in the place of a float's are a float too small by the difference of the
 * biases, subnormal where the code is. The factor makes up for that, if it does not overflow by it; the
 * product is the same real number and so rounds to the same float. */

TGL_ALWAYS_INLINE bool tgl_is_below(float factor, float limit) { return factor < limit && factor > -limit; }

/* As f32, or rounded to bf16. */
TGL_ALWAYS_INLINE void tgl_store8_as(void *to, bool is_bf16, int64_t i, tgl_f32x8 v)
{
    if (is_bf16) vst1q_u16((uint16_t *)to + i, tgl_bf16x8_of_numbers(v));
    else tgl_store8((float *)to + i, v);
}

/* Of codes in the upper bytes of lanes. */
TGL_ALWAYS_INLINE tgl_f32x8 tgl_from_e4m3x8(uint8x16_t codes, tgl_f32x8 factor)
{
    const int16x8_t shifted = vshrq_n_s16(vreinterpretq_s16_u8(codes), 4);
    const uint16x8_t high = vandq_u16(vreinterpretq_u16_s16(shifted), vdupq_n_u16(0x87F0));
    return tgl_times8(tgl_join(vdupq_n_u16(0), high), factor);
}
/* To bf16 by a table of the first 16 codes, which are subnormal or have the least exponent: the mantissas of
 * all. Other exponents add to the result's. Returns 0 if a code is a NaN, or for a factor with which a result
 * might be no normal number. */
TGL_ALWAYS_INLINE int64_t tgl_e4m3_to_bf16(const uint8_t *codes, int64_t count, float factor, uint16_t *to)
{
    static const float FIRST[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    if (!(factor > 0x1p-90f && factor < 0x1p90f)) return 0;
    const tgl_f32x8 by = tgl_all8(factor * 0x1p-9f);
    const uint16x8_t a = tgl_bf16x8_of_numbers(tgl_times8(tgl_load8(FIRST, false, 0), by));
    const uint16x8_t b = vsubq_u16(tgl_bf16x8_of_numbers(tgl_times8(tgl_load8(FIRST, false, 8), by)),
                                   vdupq_n_u16(1 << 7));        /* their exponent, as that of others */
    const uint8x16_t lows = tgl_low_bytes(a, b), highs = tgl_high_bytes(a, b), zero = vdupq_n_u8(0);
    uint8x16_t largest = zero;
    int64_t i = 0;
    for (; i + 32 <= count; i += 32)
        for (int64_t j = i; j < i + 32; j += 16) {
            const uint8x16_t c = vld1q_u8(codes + j), magnitude = vandq_u8(c, vdupq_n_u8(0x7F));
            const uint8x16_t entry = vminq_u8(magnitude, vbslq_u8(vdupq_n_u8(7), c, vdupq_n_u8(8)));
            const uint8x16_t low = vqtbl1q_u8(lows, entry), high = vqtbl1q_u8(highs, entry);
            largest = vmaxq_u8(largest, magnitude);
            for (int half = 0; half < 2; half++) {
                const uint8x16_t code = half ? vzip2q_u8(zero, c) : vzip1q_u8(zero, c);
                const uint8x16_t first = half ? vzip2q_u8(low, high) : vzip1q_u8(low, high);
                const int16x8_t moved = vshrq_n_s16(vreinterpretq_s16_u8(code), 4);
                const uint16x8_t exponent = vandq_u16(vreinterpretq_u16_s16(moved), vdupq_n_u16(0x8780));
                vst1q_u16(to + j + 8 * half, vaddq_u16(vreinterpretq_u16_u8(first), exponent));
            }
        }
    return vmaxvq_u8(largest) < 0x7F ? i : 0;
}
/* The same for f32 or bf16 and any factor below 2^7. */
TGL_ALWAYS_INLINE int64_t tgl_e4m3_by_bits(const uint8_t *codes, int64_t count, float factor, bool is_bf16, void *to)
{
    if (!tgl_is_below(factor, 0x1p7f)) return 0;
    const uint8x16_t zero = vdupq_n_u8(0);
    const tgl_f32x8 by = tgl_all8(factor * 0x1p120f);
    uint8x16_t largest = zero;
    int64_t i = 0;
    for (; i + 32 <= count; i += 32)
        for (int64_t j = i; j < i + 32; j += 16) {
            const uint8x16_t c = vld1q_u8(codes + j);
            largest = vmaxq_u8(largest, vandq_u8(c, vdupq_n_u8(0x7F)));
            tgl_store8_as(to, is_bf16, j, tgl_from_e4m3x8(vzip1q_u8(zero, c), by));
            tgl_store8_as(to, is_bf16, j + 8, tgl_from_e4m3x8(vzip2q_u8(zero, c), by));
        }
    return vmaxvq_u8(largest) < 0x7F ? i : 0;
}
TGL_ALWAYS_INLINE void tgl_run_from_e4m3(const uint8_t *codes, int64_t count, float factor, bool is_bf16, void *to)
{
    int64_t done = is_bf16 ? tgl_e4m3_to_bf16(codes, count, factor, (uint16_t *)to) : 0;
    if (!done) done = tgl_e4m3_by_bits(codes, count, factor, is_bf16, to);
    if (done == count) return;                  /* a branch: no address has to wait for the search for NaN */
    if (done) tgl_tail_from_e4m3(codes, done, count, factor, is_bf16, to);
    else tgl_tail_from_e4m3(codes, 0, count, factor, is_bf16, to);
}

/* tgl_e5m6_to_f32() times a factor, of whole groups of eight. Returns 0 if a code is infinite or NaN.
 * Bytes of a word in reverse, codes follow each other: of two in three bytes, the first is in the upper bits
 * of the first two, the second in the lower bits of the last two. */
TGL_ALWAYS_INLINE int64_t tgl_e5m6_by_bits(const uint8_t *codes, int64_t count, float factor, bool is_bf16, void *to)
{
    static const uint8_t PLACES[16] = { 2, 3, 1, 2, 7, 0, 6, 7, 4, 5, 11, 4, 9, 10, 8, 9 };
    static const int16_t SHIFTS[8] = { 0, 4, 0, 4, 0, 4, 0, 4 };
    if (!tgl_is_below(factor, 0x1p15f)) return 0;
    const uint8x16_t places = vld1q_u8(PLACES);
    const int16x8_t shifts = vld1q_s16(SHIFTS);
    const tgl_f32x8 by = tgl_all8(factor * 0x1p112f);
    uint16x8_t largest = vdupq_n_u16(0);
    int64_t i = 0;
    for (; i + 16 <= count; i += 8) {           /* a load has four bytes of the next group */
        const uint16x8_t pairs = vreinterpretq_u16_u8(vqtbl1q_u8(vld1q_u8(codes + i / 8 * 12), places));
        const uint16x8_t f16 = vshlq_u16(pairs, shifts);
        largest = vmaxq_u16(largest, vandq_u16(f16, vdupq_n_u16(0x7FFF)));
        const uint16x8_t high = vreinterpretq_u16_s16(vshrq_n_s16(vreinterpretq_s16_u16(f16), 3));
        tgl_store8_as(to, is_bf16, i,
                      tgl_times8(tgl_join(vdupq_n_u16(0), vandq_u16(high, vdupq_n_u16(0x8FFE))), by));
    }
    return vmaxvq_u16(largest) < 0x7C00 ? i : 0;
}
TGL_ALWAYS_INLINE void tgl_run_from_e5m6(const uint8_t *codes, int64_t count, float factor, bool is_bf16, void *to)
{
    const int64_t done = tgl_e5m6_by_bits(codes, count, factor, is_bf16, to);
    if (done < count) tgl_tail_from_e5m6(codes, done, count, factor, is_bf16, to);
}

/* tgl_e2m1_to_f32() as bf16 or f32, of 16 pairs. A byte each of a bf16 is looked up. */
TGL_ALWAYS_INLINE void tgl_from_e2m1x32(const uint8_t *codes, bool is_bf16, void *to)
{
    static const uint8_t HIGH[16] = { 0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40,
                                      0x80, 0xBF, 0xBF, 0xBF, 0xC0, 0xC0, 0xC0, 0xC0 };
    static const uint8_t LOW[16] = { 0, 0, 0x80, 0xC0, 0, 0x40, 0x80, 0xC0,
                                     0, 0, 0x80, 0xC0, 0, 0x40, 0x80, 0xC0 };
    const uint8x16_t high = vld1q_u8(HIGH), low = vld1q_u8(LOW), c = vld1q_u8(codes);
    const uint8x16_t even = vandq_u8(c, vdupq_n_u8(15)), odd = vshrq_n_u8(c, 4);
    for (int half = 0; half < 2; half++) {
        const uint8x16_t each = half ? vzip2q_u8(even, odd) : vzip1q_u8(even, odd);
        const uint8x16_t lows = vqtbl1q_u8(low, each), highs = vqtbl1q_u8(high, each);
        const uint16x8_t a = vreinterpretq_u16_u8(vzip1q_u8(lows, highs));
        const uint16x8_t b = vreinterpretq_u16_u8(vzip2q_u8(lows, highs));
        if (is_bf16) {
            vst1q_u16((uint16_t *)to + 16 * half, a);
            vst1q_u16((uint16_t *)to + 16 * half + 8, b);
        } else {
            tgl_store8((float *)to + 16 * half, tgl_join(vdupq_n_u16(0), a));
            tgl_store8((float *)to + 16 * half + 8, tgl_join(vdupq_n_u16(0), b));
        }
    }
}

/* f32 take stores of vectors, which compete with operations on them; those of other registers do not. So half
 * of the pairs come out of a table: 0.15 ns a value on an N1 instead of 0.20. Returns how many values. */
TGL_ALONE int64_t tgl_many_from_e2m1x2(const uint8_t *codes, int64_t count, float *to)
{
    enum { STEP = 64, MANY = 4096 };            /* to be worth a table */
    uint64_t pairs[256];
    if (count < MANY) return 0;
    for (int high = 0; high < 16; high++)
        for (int low = 0; low < 16; low++)
            pairs[16 * high + low] = (uint64_t)tgl_f32_to_bits(tgl_e2m1_to_f32((uint8_t)high)) << 32 |
                                     tgl_f32_to_bits(tgl_e2m1_to_f32((uint8_t)low));
    int64_t i = 0;
    for (; i + STEP <= count; i += STEP) {
        uint64_t words[2], each[16];
        memcpy(words, codes + i / 2 + 16, 16);
        tgl_from_e2m1x32(codes + i / 2, false, to + i);
        for (int k = 0; k < 16; k++) each[k] = pairs[words[k / 8] >> k % 8 * 8 & 0xFF];
        for (int k = 0; k < 16; k++) memcpy(to + i + 32 + 2 * k, &each[k], 8);
    }
    return i;
}

TGL_ALWAYS_INLINE void tgl_run_from_e2m1x2(const uint8_t *codes, int64_t num_pairs, bool is_bf16, void *to)
{
    const int64_t count = 2 * num_pairs;
    int64_t i = is_bf16 ? 0 : tgl_many_from_e2m1x2(codes, count, (float *)to);
    for (; i + 32 <= count; i += 32)
        tgl_from_e2m1x32(codes + i / 2, is_bf16, (char *)to + i * (is_bf16 ? 2 : 4));
    for (; i < count; i++) tgl_store_as(to, is_bf16, i, tgl_e2m1_to_f32((uint8_t)(codes[i / 2] >> i % 2 * 4)));
}

TGL_ALWAYS_INLINE void tgl_run_lossless(const uint8_t *x, int64_t num_pairs, int shift, uint8_t *out)
{
    static const uint8_t CODES[16] = { 0, 0x30, 0x38, 0x3C, 0x40, 0x44, 0x48, 0x4C,
                                       0x80, 0xB0, 0xB8, 0xBC, 0xC0, 0xC4, 0xC8, 0xCC };
    const uint8x16_t codes = vld1q_u8(CODES), is_not_zero = vtstq_u8(codes, vdupq_n_u8(0x7F));
    const uint8x16_t table = vaddq_u8(codes, vandq_u8(is_not_zero, vdupq_n_u8((uint8_t)(8 * shift))));
    int64_t i = 0;
    for (; i + 16 <= num_pairs; i += 16) {
        const uint8x16_t pairs = vld1q_u8(x + i);
        const uint8x16_t even = vqtbl1q_u8(table, vandq_u8(pairs, vdupq_n_u8(15)));
        const uint8x16_t odd = vqtbl1q_u8(table, vshrq_n_u8(pairs, 4));
        vst1q_u8(out + 2 * i, vzip1q_u8(even, odd));
        vst1q_u8(out + 2 * i + 16, vzip2q_u8(even, odd));
    }
    if (i < num_pairs) tgl_tail_lossless(x, i, num_pairs, shift, out);
}
