/* SPDX-License-Identifier: MIT
 * test_best.c - the lists of best ranks on the CPU, against one pick after another: rows with many and few
 * distinct scores, NaN and infinities, of lengths around a block and a chain. */
#include "moe/common/best.h"

#include "test.h"

enum { MAX_SCORES = 400, MAX_LONG = 5000 };

static float score_of(test_random *r, int kind)
{
    switch (kind) {
    case 0: return (float)test_below(r, 1 << 20) - (1 << 19);
    case 1: return (float)test_below(r, 40); /* ties around the last place */
    case 2: return test_below(r, 4) ? -INFINITY : (float)test_below(r, 9) - 4;
    case 3: return test_below(r, 3) ? NAN : (float)test_below(r, 99);
    case 4: return test_below(r, 2) ? 0.0f : -0.0f;
    default: return test_below(r, 5) ? INFINITY : NAN;
    }
}
enum { NUM_KINDS = 6 };

static float value_of(float score) { return isnan(score) ? -INFINITY : score; }

/* The next best after `limit`, the previous pick; -1: the first. */
static int next_best(const float *scores, int num_scores, int limit)
{
    int best = -1;
    for (int e = 0; e < num_scores; e++) {
        const float value = value_of(scores[e]), last = limit < 0 ? INFINITY : value_of(scores[limit]);
        const bool is_below = limit < 0 || value < last || (value == last && e > limit);
        if (is_below && (best < 0 || value > value_of(scores[best]))) best = e;
    }
    return best;
}

static void check_list(const float *scores, int num_scores, int size, int after)
{
    tgl_best best;
    int limit = -1;
    for (int i = 0; i < after; i++) limit = next_best(scores, num_scores, limit);
    const uint64_t last = after ? tgl_rank(scores[limit], (uint32_t)limit) : TGL_ALL_RANKS;
    tgl_best_of(&best, size, last, scores, num_scores);
    for (int i = 0; i < size; i++) {
        limit = next_best(scores, num_scores, limit);
        const uint32_t index = tgl_rank_index(best.ranks[i]);
        if (!CHECK_THAT(index == (uint32_t)limit && tgl_rank_value(best.ranks[i]) == value_of(scores[limit]),
                        "%d of %d scores after %d: pick %d is %u, want %d", size, num_scores, after, i, (unsigned)index,
                        limit))
            return;
    }
}

TEST(lists)
{
    test_random r = test_seed("lists");
    const int lengths[] = { 1, 2, 15, 16, 17, 31, 32, 33, 64, 72, 95, 96, 97, 256, 384, 400 };
    float scores[MAX_SCORES];
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
        for (int kind = 0; kind < NUM_KINDS; kind++) {
            const int length = lengths[n], sizes[] = { 1, 2, 6, 8, 11, 12, 13, 16, 33, 48, 49, 300 };
            for (int e = 0; e < length; e++) scores[e] = score_of(&r, kind);
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
                for (int after = 0; after < 8 && sizes[s] + after <= length; after += 7)
                    check_list(scores, length, sizes[s], after);
        }
}

/* Pools that fill up once, often (rising scores) and never; whole rows; equal scores. */
TEST(long_lists)
{
    test_random r = test_seed("long lists");
    enum { RISING = NUM_KINDS, FALLING, EQUAL, NUM_ORDERS };
    const int lengths[] = { TGL_BEST_MAX, 1025, 2047, 2048, 2049, 2080, 2081, 4096, 4129, MAX_LONG };
    const int sizes[] = { 49, 100, 511, 512, 513, 1023, TGL_BEST_MAX };
    static float scores[MAX_LONG];
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
        for (int order = 0; order < NUM_ORDERS; order++) {
            const int length = lengths[n];
            for (int e = 0; e < length; e++)
                scores[e] = order == RISING    ? (float)e
                            : order == FALLING ? (float)-e
                            : order == EQUAL   ? 2.5f
                                               : score_of(&r, order);
            const int size = sizes[test_below(&r, sizeof sizes / sizeof *sizes)];
            check_list(scores, length, size, 0);
            if (size + 7 <= length) check_list(scores, length, size, 7);
            if (length == TGL_BEST_MAX) check_list(scores, length, length, 0);
        }
}

/* Lists of up to 12 are made by place from up to 32 candidates, by insertion from more; lists of up to 48
 * from up to 128. Here about that many equal scores are above all others. */
TEST(many_equal_scores)
{
    float scores[MAX_SCORES];
    for (int size = 1; size <= 48; size++)
        for (int equal = size <= 12 ? 28 : 124; equal < (size <= 12 ? 40 : 136); equal++) {
            for (int e = 0; e < MAX_SCORES; e++) scores[e] = -(float)e;
            for (int i = 0; i < equal; i++) scores[i * 2] = 5;
            check_list(scores, MAX_SCORES, size, 0);
        }
}

TEST(runs) /* of a row, added one by one */
{
    test_random r = test_seed("runs");
    float scores[MAX_SCORES];
    for (int kind = 0; kind < NUM_KINDS; kind++)
        for (int round = 0; round < 40; round++) {
            const int length = 1 + (int)test_below(&r, MAX_SCORES), max = length < 80 ? length : 80;
            const int size = 1 + (int)test_below(&r, (uint32_t)max);
            for (int e = 0; e < length; e++) scores[e] = score_of(&r, kind);
            tgl_best list;
            tgl_best_two two = TGL_BEST_TWO_NONE;
            tgl_best_begin(&list, size, TGL_ALL_RANKS);
            for (int e = 0, count; e < length; e += count) {
                count = 1 + (int)test_below(&r, 50);
                if (count > length - e) count = length - e;
                tgl_best_add(&list, scores + e, count, (uint32_t)e);
                tgl_best_two_add(&two, scores + e, count);
            }
            tgl_best_end(&list);
            int pick = -1;
            for (int i = 0; i < size; i++) {
                pick = next_best(scores, length, pick);
                CHECK_INT(tgl_rank_index(list.ranks[i]), pick);
            }
            const int first = next_best(scores, length, -1), second = next_best(scores, length, first);
            CHECK(two.first == value_of(scores[first]));
            CHECK(two.second == (second < 0 ? -INFINITY : value_of(scores[second])));
        }
}

TEST(of_nothing)
{
    const float none = 7;
    tgl_best_two two = { 3, 2 };
    tgl_best_two_add(&two, &none, 0);
    CHECK(two.first == 3 && two.second == 2);
}
