/* SPDX-License-Identifier: MIT
 * best_fast.c - best.c's lists for vector units: branch-free loops search blocks of scores for those that may
 * get in. */
#include "moe/common/best.h"

#include <string.h>

enum {
    BLOCK = TGL_BEST_BLOCK,
    CHAINS = 16,
    FEW = 12, /* lists up to this size: the maxima of CHAINS chains are a good bound */
    MANY_CHAINS = 64,
    SHORT = 48 /* up to this size: those of MANY_CHAINS */
};

/* A bit per score that is not below the bound; set for NaN. */
static uint32_t not_below(float bound, const float *scores, int num_scores)
{
    uint32_t bits = 0;
    for (int i = 0; i < num_scores; i++) bits |= (uint32_t)!(scores[i] < bound) << i;
    return bits;
}

/* A bit per score above the bound; clear for NaN. */
static uint32_t above(float bound, const float *scores, int num_scores)
{
    uint32_t bits = 0;
    for (int i = 0; i < num_scores; i++) bits |= (uint32_t)(scores[i] > bound) << i;
    return bits;
}

/* Maxima of chains: score i belongs to chain i % num_chains. NaN is ignored. */
TGL_ALWAYS_INLINE void raise(float *restrict max, const float *restrict scores, int num_scores)
{
    for (int i = 0; i < num_scores; i++) max[i] = tgl_select_f32(scores[i] > max[i], scores[i], max[i]);
}

TGL_ALWAYS_INLINE void maxima(float *max, int num_chains, const float *scores, int64_t num_scores)
{
    for (int i = 0; i < num_chains; i++) max[i] = -INFINITY;
    int64_t e = 0;
    for (; e + num_chains <= num_scores; e += num_chains) raise(max, scores + e, num_chains);
    raise(max, scores + e, (int)(num_scores - e));
}

/* The size-th largest of the maxima: at least `size` scores are not below it. */
TGL_ALWAYS_INLINE float bound_of(int size, int num_chains, const float *scores, int64_t num_scores)
{
    float max[MANY_CHAINS], bound = INFINITY;
    int32_t num_above[MANY_CHAINS] = { 0 };
    maxima(max, num_chains, scores, num_scores);
    for (int j = 0; j < num_chains; j++)
        for (int i = 0; i < num_chains; i++) num_above[i] += max[j] > max[i];
    for (int i = 0; i < num_chains; i++) {
        const float candidate = tgl_select_f32(num_above[i] < size, max[i], INFINITY);
        bound = candidate < bound ? candidate : bound;
    }
    return bound;
}

/* The list of one run. There are about twice as many candidates as wanted; a candidate's place is the number
 * of candidates above it. False if there are too many, as with equal scores. */
TGL_ALWAYS_INLINE bool list_by_place(uint64_t *best, int size, int num_chains, const float *scores, int64_t num_scores,
                                     uint32_t first)
{
    const float bound = bound_of(size, num_chains, scores, num_scores);
    uint64_t ranks[2 * MANY_CHAINS + BLOCK];
    int num_ranks = 0;
    for (int64_t e = 0; e < num_scores; e += BLOCK) {
        const int count = num_scores - e < BLOCK ? (int)(num_scores - e) : BLOCK;
        uint32_t bits = count == BLOCK ? not_below(bound, scores + e, BLOCK) : not_below(bound, scores + e, count);
        for (; bits; bits &= bits - 1) {
            const int64_t found = e + __builtin_ctz(bits);
            ranks[num_ranks++] = tgl_rank(scores[found], first + (uint32_t)found);
        }
        if (num_ranks > 2 * num_chains) return false;
    }
    for (int i = 0; i < num_ranks; i++) {
        int num_above = 0;
        for (int j = 0; j < num_ranks; j++) num_above += ranks[j] > ranks[i];
        if (num_above < size) best[num_above] = ranks[i];
    }
    return true;
}

static bool few_list(uint64_t *best, int size, const float *scores, int64_t num_scores, uint32_t first)
{
    return list_by_place(best, size, CHAINS, scores, num_scores, first);
}
static bool many_list(uint64_t *best, int size, const float *scores, int64_t num_scores, uint32_t first)
{
    return list_by_place(best, size, MANY_CHAINS, scores, num_scores, first);
}

static void insert(uint64_t *ranks, int size, uint64_t rank)
{
    int i = size - 1;
    for (; i > 0 && ranks[i - 1] < rank; i--) ranks[i] = ranks[i - 1];
    ranks[i] = rank;
}

/* A short list is always sorted, and padded with TGL_RANK_NONE. */
static void add_to_short(tgl_best *best, const float *scores, int64_t num_scores, uint32_t first)
{
    const int size = best->size;
    const uint64_t limit = best->limit, *worst = &best->ranks[size - 1];
    const bool is_new = best->ranks[0] == TGL_RANK_NONE && limit == TGL_ALL_RANKS && size <= num_scores;
    if (is_new && size <= FEW && few_list(best->ranks, size, scores, num_scores, first)) return;
    if (is_new && size > FEW && many_list(best->ranks, size, scores, num_scores, first)) return;
    int64_t e = 0;
    for (; e < num_scores && *worst == TGL_RANK_NONE; e++) {
        const uint64_t rank = tgl_rank(scores[e], first + (uint32_t)e);
        if (rank < limit) insert(best->ranks, size, rank);
    }
    /* The list is full. Of equal scores the first stays, so only higher ones get in, and no NaN. */
    while (e < num_scores) {
        const int64_t end = num_scores - e < BLOCK ? num_scores : e + BLOCK;
        if (end - e == BLOCK && !above(tgl_rank_value(*worst), scores + e, BLOCK)) e = end;
        for (; e < end; e++) {
            if (!(scores[e] > tgl_rank_value(*worst))) continue;
            const uint64_t rank = tgl_rank(scores[e], first + (uint32_t)e);
            if (rank < limit) insert(best->ranks, size, rank);
        }
    }
}

/* Radix sort of the keys in descending order, lowest digit first. It is stable, so equal keys stay in the
 * order of their indices. A digit that all keys share is skipped. */
static void sort(uint64_t *ranks, int num_ranks)
{
    enum { KEY_SHIFT = 32, DIGITS = 4, DIGIT_BITS = 8, NUM_VALUES = 1 << DIGIT_BITS };
    uint64_t spare[TGL_BEST_POOL + BLOCK], *from = ranks, *to = spare;
    uint16_t places[DIGITS][NUM_VALUES] = { 0 };
    for (int i = 0; i < num_ranks; i++)
        for (int d = 0; d < DIGITS; d++) places[d][(uint8_t)(ranks[i] >> (KEY_SHIFT + d * DIGIT_BITS))]++;
    for (int d = 0; d < DIGITS; d++) {
        const int shift = KEY_SHIFT + d * DIGIT_BITS;
        if (places[d][(uint8_t)(from[0] >> shift)] == num_ranks) continue;
        for (int value = NUM_VALUES - 1, place = 0; value >= 0; value--) {
            const int count = places[d][value];
            places[d][value] = (uint16_t)place;
            place += count;
        }
        for (int i = 0; i < num_ranks; i++) to[places[d][(uint8_t)(from[i] >> shift)]++] = from[i];
        uint64_t *const swap = from;
        from = to;
        to = swap;
    }
    if (from != ranks) memcpy(ranks, from, (size_t)num_ranks * sizeof *ranks);
}

/* For a long list, gathers whatever may get in; a full pool is sorted and cut to the best. A pool four times
 * the list's size is rarely full and quickly sorted. */
static void add_to_long(tgl_best *best, const float *scores, int64_t num_scores, uint32_t first)
{
    const int size = best->size, full = 4 * size < TGL_BEST_POOL ? 4 * size : TGL_BEST_POOL;
    const uint64_t limit = best->limit;
    uint64_t *ranks = best->ranks;
    int num_ranks = best->num_ranks;
    for (int64_t e = 0; e < num_scores; e += BLOCK) {
        if (num_ranks > full) {
            sort(ranks, num_ranks);
            num_ranks = size;
            best->worst = ranks[size - 1];
        }
        const int count = num_scores - e < BLOCK ? (int)(num_scores - e) : BLOCK;
        const float bound = tgl_rank_value(best->worst);
        uint32_t bits = best->worst == TGL_RANK_NONE ? UINT32_MAX >> (BLOCK - count)
                        : count == BLOCK             ? above(bound, scores + e, BLOCK)
                                                     : above(bound, scores + e, count);
        for (; bits; bits &= bits - 1) {
            const int64_t found = e + __builtin_ctz(bits);
            ranks[num_ranks] = tgl_rank(scores[found], first + (uint32_t)found);
            num_ranks += ranks[num_ranks] < limit;
        }
    }
    best->num_ranks = num_ranks;
}

void TGL_FAST(tgl_best_add)(tgl_best *best, const float *scores, int64_t num_scores, uint32_t first)
{
    if (best->size <= SHORT) add_to_short(best, scores, num_scores, first);
    else add_to_long(best, scores, num_scores, first);
}

void TGL_FAST(tgl_best_end)(tgl_best *best)
{
    if (best->size > SHORT) sort(best->ranks, best->num_ranks);
}

/* Four chains at a time, written out: gcc does not vectorise the plain loop. */
typedef float floats __attribute__((vector_size(16)));
typedef int32_t masks __attribute__((vector_size(16)));

static floats pick(masks condition, floats yes, floats no)
{
    return (floats)((condition & (masks)yes) | (~condition & (masks)no));
}

/* Merges the best two of another chain into each chain. */
static void add_chains(floats *first, floats *second, floats other_first, floats other_second)
{
    const floats lower = pick(other_first > *first, *first, other_first);
    *first = pick(other_first > *first, other_first, *first);
    *second = pick(other_second > *second, other_second, *second);
    *second = pick(lower > *second, lower, *second);
}

void TGL_FAST(tgl_best_two_add)(tgl_best_two *best, const float *scores, int64_t num_scores)
{
    enum { NUM = sizeof(floats) / sizeof(float) };
    const float none = -INFINITY;
    floats first = { best->first, none, none, none }, second = { best->second, none, none, none };
    for (int64_t e = 0; e < num_scores; e += NUM) {
        floats x;
        const int64_t left = num_scores - e;
        if (left >= NUM) memcpy(&x, scores + e, sizeof x);
        else x = (floats){ scores[e], left > 1 ? scores[e + 1] : none, left > 2 ? scores[e + 2] : none, none };
        const floats lower = pick(x > first, first, x);
        first = pick(x > first, x, first);
        second = pick(lower > second, lower, second);
    }
    add_chains(&first, &second, (floats){ first[2], first[3] }, (floats){ second[2], second[3] });
    add_chains(&first, &second, (floats){ first[1] }, (floats){ second[1] });
    *best = (tgl_best_two){ first[0], second[0] };
}
