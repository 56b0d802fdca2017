/* SPDX-License-Identifier: MIT
 * test_score_fast.c - the scores that find candidates on the CPU are as near to the exact ones as they claim:
 * for every 997th float, in the slow set for all of them. */
#include "moe/score_fast.h"

#include <math.h>

#include "core/threads.h"
#include "test.h"

enum { ROWS = 1 << 16 };
typedef struct { int scoring; uint32_t step; int64_t wrong[ROWS]; float wrong_at[ROWS]; } work;
static work all;

/* The floats whose upper half is in begin .. end - 1. */
static void compare(const void *context, int64_t begin, int64_t end)
{
    const work *w = context;
    const tgl_softmax none = { 0.0f, 1.0f };
    for (int64_t row = begin; row < end; row++)
        for (uint32_t low = (uint32_t)row % w->step; low < 1 << 16; low += w->step) {
            const float x = tgl_f32_from_bits((uint32_t)row << 16 | low);
            if (!isfinite(x)) continue;
            const double fast = (double)tgl_fast_score(w->scoring, x);
            const double exact = (double)tgl_raw_score(w->scoring, x, none);
            if (fabs(fast - exact) <= (double)tgl_fast_score_error(w->scoring, x)) continue;
            all.wrong[row]++;
            all.wrong_at[row] = x;
        }
}

static void check(int scoring)
{
    all = (work){ .scoring = scoring, .step = test_slow() ? 1 : 997 };
    CHECK_OK(tgl_parallel_rows(ROWS, 1 << 20, compare, &all));
    int64_t wrong = 0;
    float at = 0;
    for (int row = 0; row < ROWS; row++) {
        wrong += all.wrong[row];
        if (all.wrong[row]) at = all.wrong_at[row];
    }
    CHECK_THAT(wrong == 0, "%lld floats, among them %a: fast %a, exact %a", (long long)wrong, (double)at,
               (double)tgl_fast_score(scoring, at),
               (double)tgl_raw_score(scoring, at, (tgl_softmax){ 0.0f, 1.0f }));
}

TEST(sigmoid) { check(TGL_SIGMOID); }
TEST(sqrtsoftplus) { check(TGL_SQRTSOFTPLUS); }

/* The error that is allowed grows with the largest logit of a row, never falls. */
TEST(error_of_a_row)
{
    float last = 0;
    for (float x = -1; x < 1e38f; x = x < 1 ? x + 0.25f : 2 * x) {
        CHECK(tgl_fast_score_error(TGL_SQRTSOFTPLUS, x) >= last);
        CHECK(tgl_fast_score_error(TGL_SIGMOID, x) > 0);
        last = tgl_fast_score_error(TGL_SQRTSOFTPLUS, x);
    }
    CHECK(tgl_fast_score_error(TGL_SQRTSOFTPLUS, INFINITY) == INFINITY);
}
