/* SPDX-License-Identifier: MIT
 * partials.h - sums that a GEMM left in parts, as splits of its columns: added as a tree of neighbours, padded with +0
 * to a power of two of at least PARTIALS_BLOCK. */
#ifndef TEGULA_MHC_PARTIALS_H
#define TEGULA_MHC_PARTIALS_H

#include "mhc/common/mhc.h"

#define PARTIALS_BLOCK 16         /* parts whose loads are in flight together */
#define PARTIALS_LEVELS 8         /* of the tree over blocks */
#define PARTIALS_SPLITS "1..4096" /* PARTIALS_BLOCK << PARTIALS_LEVELS */

typedef struct {
    const float *out_mul, *sqrsum; /* [num_splits, num_tokens, rows], [num_splits, num_tokens] */
    int64_t num_splits;
} partials;

TGL_INLINE float partials_block(const float *from, int64_t stride, int64_t count)
{
    float l[PARTIALS_BLOCK];
    MHC_UNROLL
    for (int i = 0; i < PARTIALS_BLOCK; i++) l[i] = i < count ? from[i * stride] : 0.0f;
    return mhc_tree(l, PARTIALS_BLOCK / 2) + mhc_tree(l + PARTIALS_BLOCK / 2, PARTIALS_BLOCK / 2);
}

TGL_INLINE float partials_sum(const float *from, int64_t stride, int64_t count)
{
    float sum = 0, level[PARTIALS_LEVELS] = { 0 }; /* of 2^l blocks, the left of a pair */
    int32_t blocks = 1;
    while ((int64_t)blocks * PARTIALS_BLOCK < count) blocks *= 2;
    MHC_KEEP_LOOP
    for (int32_t b = 0; b < blocks; b++) {
        const int64_t first = (int64_t)b * PARTIALS_BLOCK;
        sum = first < count ? partials_block(from + first * stride, stride, count - first) : 0.0f;
        MHC_UNROLL
        for (int l = 0; l < PARTIALS_LEVELS; l++) { /* as a counter is incremented: a 1 is carried on */
            const int is_carried = (b & ((1 << l) - 1)) == (1 << l) - 1;
            if (is_carried && b >> l & 1) sum = level[l] + sum;
            else if (is_carried) level[l] = sum;
        }
    }
    return sum;
}

#endif
