/* SPDX-License-Identifier: MIT */
#include "moe/best.h"

#include <string.h>

enum {
    BLOCK = 32,
    CHAINS = 16,
    FEW = 12,                   /* up to here the maxima of chains bound them well */
    SHORT = 64,                 /* up to here insertion does better, for scores in random order */
    POOL = 2 * TGL_BEST_MAX
};

/* Which scores are not below the bound, a bit each; NaN is below nothing. Here and in what follows loops have
 * no branch inside, so that they become vector code. */
static uint32_t not_below(float bound, const float *scores, int num_scores)
{
    uint32_t bits = 0;
    for (int i = 0; i < num_scores; i++) bits |= (uint32_t)!(scores[i] < bound) << i;
    return bits;
}

/* Is one of the block above the bound? */
static int has_above(float bound, const float *scores)
{
    int found = 0;
    for (int i = 0; i < BLOCK; i++) found |= scores[i] > bound;
    return found;
}

/* Maxima of chains, to which the scores are dealt in turn; NaN is above nothing. */
static void lift(float *restrict most, const float *restrict scores, int num_scores)
{
    for (int i = 0; i < num_scores; i++)
        most[i] = tgl_select_f32(scores[i] > most[i], scores[i], most[i]);
}

static void maxima(float most[CHAINS], const float *scores, int64_t num_scores)
{
    for (int i = 0; i < CHAINS; i++) most[i] = -INFINITY;
    int64_t e = 0;
    for (; e + CHAINS <= num_scores; e += CHAINS) lift(most, scores + e, CHAINS);
    lift(most, scores + e, (int)(num_scores - e));
}

float tgl_best_value(const float *scores, int64_t num_scores)
{
    float most[CHAINS], best = -INFINITY;
    maxima(most, scores, num_scores);
    for (int i = 0; i < CHAINS; i++) best = most[i] > best ? most[i] : best;
    return best;
}

/* The size-th of the maxima: at least `size` scores are not below it. */
static float bound_of(int size, const float *scores, int64_t num_scores)
{
    float most[CHAINS], bound = INFINITY;
    int32_t num_above[CHAINS] = { 0 };
    maxima(most, scores, num_scores);
    for (int j = 0; j < CHAINS; j++)
        for (int i = 0; i < CHAINS; i++) num_above[i] += most[j] > most[i];
    for (int i = 0; i < CHAINS; i++) {
        const float candidate = tgl_select_f32(num_above[i] < size, most[i], INFINITY);
        bound = candidate < bound ? candidate : bound;
    }
    return bound;
}

/* Of about twice as many candidates as are wanted, each one's place in the list is how many are above it.
 * False if there are too many, as of equal scores. */
static int few_list(uint64_t *best, int size, const float *scores, int64_t num_scores)
{
    const float bound = bound_of(size, scores, num_scores);
    uint64_t ranks[2 * BLOCK];
    int num_ranks = 0;
    for (int64_t e = 0; e < num_scores; e += BLOCK) {
        const int count = num_scores - e < BLOCK ? (int)(num_scores - e) : BLOCK;
        uint32_t bits = count == BLOCK ? not_below(bound, scores + e, BLOCK)
                                       : not_below(bound, scores + e, count);
        for (; bits; bits &= bits - 1) {
            const int64_t found = e + __builtin_ctz(bits);
            ranks[num_ranks++] = tgl_rank(scores[found], (uint32_t)found);
        }
        if (num_ranks > BLOCK) return 0;
    }
    for (int i = 0; i < num_ranks; i++) {
        int num_above = 0;
        for (int j = 0; j < num_ranks; j++) num_above += ranks[j] > ranks[i];
        if (num_above < size) best[num_above] = ranks[i];
    }
    return 1;
}

void tgl_best_add(uint64_t *best, int size, uint64_t limit, const float *scores, int64_t num_scores,
                  uint32_t first)
{
    const uint64_t *worst = &best[size - 1];
    int64_t e = 0;
    for (; e < num_scores && *worst == TGL_RANK_NONE; e++) {
        const uint64_t rank = tgl_rank(scores[e], first + (uint32_t)e);
        if (rank < limit) tgl_best_insert(best, size, rank);
    }
    /* The list is full. Of equal scores the first stays, so only higher ones get in; NaN is above nothing. */
    while (e < num_scores) {
        const int64_t end = num_scores - e < BLOCK ? num_scores : e + BLOCK;
        if (end - e == BLOCK && !has_above(tgl_rank_value(*worst), scores + e)) e = end;
        for (; e < end; e++) {
            if (!(scores[e] > tgl_rank_value(*worst))) continue;
            const uint64_t rank = tgl_rank(scores[e], first + (uint32_t)e);
            if (rank < limit) tgl_best_insert(best, size, rank);
        }
    }
}

/* Merges two neighbouring runs in descending order. */
static void merge(uint64_t *out, const uint64_t *runs, int middle, int end)
{
    int i = 0, j = middle, k = 0;
    while (i < middle && j < end) {
        const uint64_t a = runs[i], b = runs[j];
        const int first = a > b;                        /* added, not branched on: it cannot be predicted */
        out[k++] = first ? a : b;
        i += first;
        j += 1 - first;
    }
    memcpy(out + k, runs + i, (size_t)(middle - i) * sizeof *runs);
    memcpy(out + k + middle - i, runs + j, (size_t)(end - j) * sizeof *runs);
}

static void sort(uint64_t *ranks, int num_ranks)
{
    enum { RUN = 8 };
    uint64_t spare[POOL], *from = ranks, *to = spare;
    for (int begin = 0; begin < num_ranks; begin += RUN)
        for (int i = begin + 1; i < num_ranks && i < begin + RUN; i++)
            tgl_best_insert(ranks + begin, i - begin + 1, ranks[i]);
    for (int run = RUN; run < num_ranks; run *= 2) {
        for (int begin = 0; begin < num_ranks; begin += 2 * run) {
            const int left = num_ranks - begin, end = left < 2 * run ? left : 2 * run;
            merge(to + begin, from + begin, end < run ? end : run, end);
        }
        uint64_t *const swap = from;
        from = to;
        to = swap;
    }
    if (from != ranks) memcpy(ranks, from, (size_t)num_ranks * sizeof *ranks);
}

/* Whatever may get in is gathered; when the pool is full, it is sorted and all but the best go. A pool of
 * four lists is seldom full and quickly sorted. */
static void long_list(uint64_t *best, int size, uint64_t limit, const float *scores, int64_t num_scores)
{
    uint64_t pool[POOL], worst = TGL_RANK_NONE;
    const int capacity = 4 * size < POOL ? 4 * size : POOL;
    int num_ranks = 0;
    for (int64_t e = 0; e < num_scores;) {
        const int64_t end = num_scores - e < BLOCK ? num_scores : e + BLOCK;
        const int may_skip = worst != TGL_RANK_NONE && end - e == BLOCK;
        if (may_skip && !has_above(tgl_rank_value(worst), scores + e)) e = end;
        for (; e < end; e++) {
            const uint64_t rank = tgl_rank(scores[e], (uint32_t)e);
            pool[num_ranks] = rank;
            num_ranks += rank < limit && rank > worst;
            if (num_ranks == capacity) {
                sort(pool, capacity);
                num_ranks = size;
                worst = pool[size - 1];
            }
        }
    }
    sort(pool, num_ranks);
    memcpy(best, pool, (size_t)size * sizeof *best);
}

void tgl_best_of(uint64_t *best, int size, uint64_t limit, const float *scores, int64_t num_scores)
{
    if (size > SHORT) {
        long_list(best, size, limit, scores, num_scores);
        return;
    }
    if (size <= FEW && limit == TGL_ALL_RANKS && few_list(best, size, scores, num_scores)) return;
    tgl_best_clear(best, size);
    tgl_best_add(best, size, limit, scores, num_scores, 0);
}

/* Four chains at a time; of plain loops gcc makes no vector code here. */
typedef float floats __attribute__((vector_size(16)));
typedef int32_t masks __attribute__((vector_size(16)));

static floats pick(masks condition, floats yes, floats no)
{
    return (floats)((condition & (masks)yes) | (~condition & (masks)no));
}

void tgl_best_two_add(tgl_best_two *best, const float *scores, int64_t num_scores)
{
    enum { NUM = sizeof(floats) / sizeof(float) };
    const floats none = { -INFINITY, -INFINITY, -INFINITY, -INFINITY };
    floats first = none, second = none;
    for (int64_t e = 0; e < num_scores; e += NUM) {
        floats x = none;
        if (num_scores - e >= NUM) memcpy(&x, scores + e, sizeof x);
        else memcpy(&x, scores + e, (size_t)(num_scores - e) * sizeof *scores);
        const floats lower = pick(x > first, first, x);
        first = pick(x > first, x, first);
        second = pick(lower > second, lower, second);
    }
    for (int i = 0; i < NUM; i++) {
        const float lower = first[i] > best->first ? best->first : first[i];
        const float next = lower > second[i] ? lower : second[i];
        best->first = first[i] > best->first ? first[i] : best->first;
        best->second = next > best->second ? next : best->second;
    }
}
