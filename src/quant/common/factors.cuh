/* SPDX-License-Identifier: MIT
 * factors.cuh - scale.h for kernels: from amax to a factor, with the same bits in fewer instructions, and
 * factors in memory, in any layout. */
#ifndef TEGULA_QUANT_FACTORS_CUH
#define TEGULA_QUANT_FACTORS_CUH

#include "device/ptx.cuh"
#include "quant/common/scale.h"

/* ---- from amax to a factor ---- */

/* a / max and max / a, each rounded once, for a finite a not below the format's floor: no quotient is
 * subnormal or overflows. Newton steps on the fraction of a, in [1, 2); the exponent is added to the bits.
 * The compiler's division has a branch, so that those of several blocks would wait for each other. (Compared
 * for all fractions, with reciprocals that are two units off.) */
DEV tgl_scale divided_scale(float a, float max)
{
    const u32 bits = __float_as_uint(a), exponent = (bits & 0x7F800000) - 0x3F800000;
    const float m = __uint_as_float((bits & 0x007FFFFF) | 0x3F800000), by_max = 1 / max;
    const float near = rcp_fast(m), by_m = fmaf(fmaf(-m, near, 1), near, near);
    const float sf = m * by_max, inv = max * by_m;
    tgl_scale scale;
    scale.sf = __uint_as_float(__float_as_uint(fmaf(fmaf(-max, sf, m), by_max, sf)) + exponent);
    scale.inv = __uint_as_float(__float_as_uint(fmaf(fmaf(-m, inv, max), by_m, inv)) - exponent);
    return scale;
}

/* tgl_scale_of(). A rounded factor needs no division: the exponent of a / max, rounded up, is the difference
 * of the exponents, plus one if the fraction of a is above that of max. (The division never rounds down to a
 * power of two: for the next larger a, the quotient exceeds it by more than half a step. Compared for all
 * floats.) */
template <int FORMAT_, bool IS_ROUNDED_> DEV tgl_scale scale_of(float amax)
{
    const tgl_scale_rule rule = tgl_scale_rule_of(FORMAT_, IS_ROUNDED_);
    const float a = fmaxf(amax, rule.floor), infinity = __uint_as_float(0x7F800000);
    tgl_scale scale;
    if (IS_ROUNDED_) {
        const i32 max_bits = (i32)__float_as_uint(rule.max);
        const i32 exponent = ((i32)__float_as_uint(a) - max_bits + 0x3F800000 + 0x7FFFFF) >> 23;
        const i32 code = a < infinity ? max(exponent, 1) : 254;
        scale.sf = __uint_as_float((u32)code << 23);
        scale.inv = __uint_as_float((u32)(254 - code) << 23);
    } else {
        scale = divided_scale(a, rule.max);
        scale.sf = a < infinity ? scale.sf : infinity;
        scale.inv = a < infinity ? scale.inv : 0;
    }
    return scale;
}

/* The same with another floor. */
template <int FORMAT_, bool IS_ROUNDED_> DEV tgl_scale scale_of(float amax, float floor)
{
    const tgl_scale_rule rule = tgl_scale_rule_of(FORMAT_, IS_ROUNDED_);
    const float a = fmaxf(amax, floor);
    tgl_scale scale = scale_of<FORMAT_, IS_ROUNDED_>(a);
    if (a < rule.floor) scale = tgl_scale_of(a, { rule.max, 0, IS_ROUNDED_ });
    return scale;
}

/* ---- factors in memory ---- */

/* With a kind that is known at compile time. */
template <int KIND> DEV tgl_sf factors_of_kind(tgl_sf sf)
{
    sf.kind = KIND;
    return sf;
}

/* Row m as a matrix of one row. */
template <int KIND> DEV tgl_sf row_of_factors(const tgl_sf &sf, i64 m)
{
    tgl_sf row = factors_of_kind<KIND>(sf);
    row.data = (u32 *)sf.data + tgl_sf_offset(&row, m, 0);
    return row;
}

/* The element, a factor or a word of codes, that has factor (m, k). Loading it is separate from decoding it
 * (below), so that it can be prefetched. */
DEV u32 *element_at(const tgl_sf &sf, i64 m, i64 k) { return (u32 *)sf.data + tgl_sf_offset(&sf, m, k); }
DEV u32 load_element(const tgl_sf &sf, i64 m, i64 k) { return *element_at(sf, m, k); }
DEV void store_element(const tgl_sf &sf, i64 m, i64 k, u32 element) { *element_at(sf, m, k) = element; }

/* The factor's code; of f32, the exponent. */
DEV u32 code_of_element(const tgl_sf &sf, u32 element, u32 k)
{
    if (sf.kind != TGL_SF_PACKED) return tgl_sf_code_of(__uint_as_float(element));
    return tgl_ue8m0x4_get(element, (int)(k % 4));
}

DEV float factor_of_element(const tgl_sf &sf, u32 element, u32 k)
{
    if (sf.kind != TGL_SF_PACKED) return __uint_as_float(element);
    return tgl_ue8m0_to_f32((u8)code_of_element(sf, element, k));
}

/* 1 / 2^(code - 127), as by a division: the inverse of 254 is subnormal. Code 0 is the factor 0, 255 is
 * infinity. */
DEV float inverse_of_code(u32 code)
{
    const i32 bits = max((254 - (i32)code) * 0x800000, (255 - (i32)code) * 0x400000);
    return __uint_as_float(code ? (u32)bits : 0x7F800000);
}

DEV float inverse_of_element(const tgl_sf &sf, u32 element, u32 k)
{
    if (sf.kind != TGL_SF_PACKED) return 1 / __uint_as_float(element);
    return inverse_of_code(code_of_element(sf, element, k));
}

/* Adds the code of a factor to a word, at index 0 .. 3, which must be 0. */
DEV u32 word_with(u32 word, u32 index, float factor) { return word | tgl_sf_code_of(factor) << (8 * index); }

/* The address of factor (m, k), or of its code. */
DEV u8 *factor_at(const tgl_sf &sf, i64 m, i64 k)
{
    return (u8 *)element_at(sf, m, k) + (sf.kind == TGL_SF_PACKED ? (u32)k % 4 : 0);
}

/* Stores factor (m, k). Codes are stored as bytes, so that each may come from another thread; the last one
 * clears the rest of its word. */
DEV void store_factor(const tgl_sf &sf, i64 m, i64 k, bool is_last, float factor)
{
    u8 *at = factor_at(sf, m, k);
    const u32 index = (u32)k % 4;
    if (sf.kind != TGL_SF_PACKED) {
        *(float *)at = factor;
        return;
    }
    *at = (u8)tgl_sf_code_of(factor);
    if (!is_last) return;
#pragma unroll 1
    for (u32 i = 1; i < 4 - index; i++) at[i] = 0;
}

#endif
