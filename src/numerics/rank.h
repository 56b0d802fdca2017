/* SPDX-License-Identifier: MIT
 * rank.h - how scores are ranked: higher is better, the lower index wins a tie, -0 equals +0, and NaN
 * counts as -inf. A key is a score as an integer with the same order. A rank is a key with the complement
 * of the index in its low bits, so that no two ranks of a row are equal and comparing ranks is the whole
 * rule. Keys and ranks of scores are never 0: TGL_RANK_NONE, for a score that is taken or missing, is
 * below that of -inf. */
#ifndef TEGULA_NUMERICS_RANK_H
#define TEGULA_NUMERICS_RANK_H

#include "numerics/base.h"

#define TGL_RANK_NONE 0u

/* The representative of equal scores: +0 for -0, -inf for NaN. */
TGL_INLINE float tgl_rank_score(float score)
{
    const float no_minus_zero = score + 0.0f;
#ifdef __CUDACC__
    return fmaxf(no_minus_zero, __uint_as_float(0xFF800000)); /* one instruction, which ignores NaN */
#else
    return score == score ? no_minus_zero : tgl_f32_from_bits(0xFF800000);
#endif
}

/* 0x007FFFFF for -inf, 0x80000000 for 0, 0xFF800000 for +inf. */
TGL_INLINE uint32_t tgl_rank_key(float score)
{
    const uint32_t bits = tgl_f32_to_bits(tgl_rank_score(score));
    return bits ^ (0x80000000 | (0u - (bits >> 31)));
}

TGL_INLINE uint64_t tgl_rank(float score, uint32_t index)
{
    return (uint64_t)tgl_rank_key(score) << 32 | (uint32_t)~index;
}

/* The index and the score (as of tgl_rank_score()) of a rank other than TGL_RANK_NONE. */
TGL_INLINE uint32_t tgl_rank_index(uint64_t rank) { return ~(uint32_t)rank; }
TGL_INLINE float tgl_rank_value(uint64_t rank)
{
    const uint32_t key = (uint32_t)(rank >> 32);
    return tgl_f32_from_bits(key ^ (0x80000000 | ((key >> 31) - 1u)));
}

#endif
