/* SPDX-License-Identifier: MIT
 * short_keys.cuh - the best of a row, by rounds of one warp reduction each. A short key is the upper bits of
 * a score's key followed by the complement of the expert. Short keys are distinct, so a round is one 32-bit
 * reduction, and the lane that finds its own key in the result has won. A lane keeps its keys in sorted lists
 * of four.
 *   macros    NUM_LISTS 1 .. 8: lists per lane; a list has up to 128 experts over all lanes */
#ifndef TEGULA_MOE_SHORT_KEYS_CUH
#define TEGULA_MOE_SHORT_KEYS_CUH

#include "device/ptx.cuh"
#include "numerics/rank.h"

static_assert(NUM_LISTS >= 1 && NUM_LISTS <= 8, "NUM_LISTS is 1 .. 8");

enum {
    EXPERT_BITS = (NUM_LISTS == 1   ? 7
                   : NUM_LISTS == 2 ? 8
                   : NUM_LISTS <= 4 ? 9
                                    : 10),
    EXPERT_MASK = (1 << EXPERT_BITS) - 1
};

typedef struct { u32 key[NUM_LISTS][4]; } lists; /* each in descending order */

DEV u32 short_key(u32 key, u32 expert) { return (key & ~EXPERT_MASK) | (~expert & EXPERT_MASK); }
DEV u32 expert_of(u32 short_key) { return ~short_key & EXPERT_MASK; }

DEV void sort2(u32 &a, u32 &b)
{
    const u32 high = max(a, b), low = min(a, b);
    a = high;
    b = low;
}

DEV void sort4(u32 (&k)[4])
{
    sort2(k[0], k[1]);
    sort2(k[2], k[3]);
    sort2(k[0], k[2]);
    sort2(k[1], k[3]);
    sort2(k[1], k[2]);
}

DEV u32 head(const lists &l)
{
    u32 best = l.key[0][0];
#pragma unroll
    for (int i = 1; i < NUM_LISTS; i++) best = max(best, l.key[i][0]);
    return best;
}

/* Removes the key from the list that it heads, if it is this lane's. */
DEV void pop(lists &l, u32 key)
{
#pragma unroll
    for (int i = 0; i < NUM_LISTS; i++)
        if (l.key[i][0] == key) {
            l.key[i][0] = l.key[i][1];
            l.key[i][1] = l.key[i][2];
            l.key[i][2] = l.key[i][3];
            l.key[i][3] = TGL_RANK_NONE;
        }
}

#endif
