/* SPDX-License-Identifier: MIT
 * tgl_moe_topk_gate, on every device of the tests. Written from the specification: experts ordered by score
 * descending, then by index ascending; the first num_topk of them. */
#include <math.h>

#include "support.h"

TESTS_OF_TABLE("moe_topk_gate")

/* ---- examples ---- */

/* One row of scores, and the experts that it gives. */
static void check_row(const float *scores, int64_t num_experts, const int64_t *want, int64_t num_topk)
{
    FOR_BACKENDS(b) {
        tensor s, i64, i32;
        int64_t poison[64];
        int32_t narrow[64];
        for (int i = 0; i < 64; i++) poison[i] = -77, narrow[i] = (int32_t)(i < num_topk ? want[i] : 0);
        place(b, &s, TGL_F32, 2, SHAPE(1, num_experts), scores);
        place(b, &i64, TGL_I64, 2, SHAPE(1, num_topk), poison);
        place(b, &i32, TGL_I32, 2, SHAPE(1, num_topk), poison);
        CHECK_OK(tgl_moe_topk_gate(&s.t, &i64.t, b->stream));
        CHECK_OK(tgl_moe_topk_gate(&s.t, &i32.t, b->stream));
        check_contents(b, &i64, want, "i64");
        check_contents(b, &i32, narrow, "i32");
        discard(b, &s);
    }
}
#define SCORES(...) ((float[]){ __VA_ARGS__ }), sizeof((float[]){ __VA_ARGS__ }) / sizeof(float)
#define EXPERTS(...) ((int64_t[]){ __VA_ARGS__ }), sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)

TEST(worked_examples)
{
    /* doc: topk_gate */
    check_row(SCORES(0.1f, 0.9f, 0.9f, 0.3f), EXPERTS(1, 2));
    check_row(SCORES(0.5f, 0.5f, 0.5f, 0.5f), EXPERTS(0, 1));
    check_row(SCORES(-1, -INFINITY, -2, -INFINITY), EXPERTS(0, 2, 1));
    check_row(SCORES(0.0f, -0.0f, -3, 0.0f), EXPERTS(0, 1, 3));
    /* end */
}

TEST(minus_infinity_is_chosen_once)
{
    check_row(SCORES(-INFINITY, 1, -INFINITY), EXPERTS(1, 0, 2));
    check_row(SCORES(-INFINITY, -INFINITY, -INFINITY, -INFINITY), EXPERTS(0, 1, 2, 3));
}

TEST(nan_counts_as_minus_infinity)
{
    check_row(SCORES(NAN, 1, -NAN, 2), EXPERTS(3, 1, 0, 2));
    check_row(SCORES(-INFINITY, NAN, -INFINITY, -3e38f), EXPERTS(3, 0, 1, 2));
    check_row(SCORES(NAN, -INFINITY, NAN), EXPERTS(0, 1, 2));
    check_row(SCORES(NAN), EXPERTS(0));
}

TEST(extremes_of_the_order)
{
    check_row(SCORES(3.4028235e38f, INFINITY, -3.4028235e38f, 1e-45f, -1e-45f, 0, -INFINITY),
              EXPERTS(1, 0, 3, 5, 4, 2, 6));
    check_row(SCORES(-0.0f, 0.0f, -0.0f, 0.0f), EXPERTS(0, 1, 2, 3));
    check_row(SCORES(0.0f, -0.0f, 1e-45f, -0.0f), EXPERTS(2, 0, 1, 3));
    check_row(SCORES(-1e-45f, -0.0f, -1e-45f), EXPERTS(1, 0, 2));
}

TEST(ties_around_the_last_place) /* which of equal scores get in, anywhere in the row */
{
    float scores[384];
    for (int first = 0; first < 384; first += 13)
        for (int second = first + 1; second < 384; second += 29) {
            for (int i = 0; i < 384; i++) scores[i] = i % 5 ? -1.0f : -2.0f;
            scores[first] = scores[second] = 3;
            const int64_t next = first == 1 ? second == 2 ? 3 : 2 : second == 1 ? 2 : 1;
            check_row(scores, 384, EXPERTS(first, second, next));
        }
}

/* Every pattern of a float's upper 16 bits, compared with its neighbours in the order. */
TEST(order_of_all_magnitudes)
{
    enum { ROWS = 128, EXPERTS_PER_ROW = 512 };
    static float scores[ROWS * EXPERTS_PER_ROW];
    static int64_t seen[ROWS * EXPERTS_PER_ROW];
    for (uint32_t i = 0; i < ROWS * EXPERTS_PER_ROW; i++) {
        const uint32_t bits = (i * 40503u & 0xffff) << 16; /* odd, so each comes once */
        memcpy(&scores[i], &bits, 4);
    }
    FOR_BACKENDS(b) {
        if (b->is_emulated && !test_slow()) continue;
        tensor s, idx;
        place(b, &s, TGL_F32, 2, SHAPE(ROWS, EXPERTS_PER_ROW), scores);
        place(b, &idx, TGL_I64, 2, SHAPE(ROWS, EXPERTS_PER_ROW), seen);
        CHECK_OK(tgl_moe_topk_gate(&s.t, &idx.t, b->stream));
        CHECK_OK(backend_download(b, seen, idx.t.data, sizeof seen));
        for (int r = 0; r < ROWS; r++) {
            bool chosen[EXPERTS_PER_ROW] = { false };
            for (int k = 0; k < EXPERTS_PER_ROW; k++) {
                const int64_t e = seen[r * EXPERTS_PER_ROW + k];
                REQUIRE(e >= 0 && e < EXPERTS_PER_ROW && !chosen[e]);
                chosen[e] = true;
                if (k == 0) continue;
                const int64_t before = seen[r * EXPERTS_PER_ROW + k - 1];
                float x = scores[r * EXPERTS_PER_ROW + before], y = scores[r * EXPERTS_PER_ROW + e];
                if (isnan(x)) x = -INFINITY;
                if (isnan(y)) y = -INFINITY;
                CHECK_THAT(x > y || (x == y && before < e), "%s: row %d: %a of %d comes before %a of %d", b->name, r,
                           (double)x, (int)before, (double)y, (int)e);
            }
        }
        discard(b, &s);
        discard(b, &idx);
    }
}

TEST(graph) /* a launch a call */
{
    check_replayed("moe_topk_gate", "num_tokens=70 num_experts=256 num_topk=8", 1);
    check_replayed("moe_topk_gate", "num_tokens=9 num_experts=1025 num_topk=8", 1);
}

/* ---- errors ---- */

extern tgl_signature tgl_moe_topk_gate_signature;
/* doc: errors */
static tgl_status invoke(DLTensor *const *t, const void *params) { return tgl_moe_topk_gate(t[0], t[1], NULL); }
#define GOOD_CALL &tgl_moe_topk_gate_signature, "num_tokens=3 num_experts=5 num_topk=2", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].shape[1] = (int64_t)1 << 31, "scores: shape is [3, 2147483648], want [3, 0..2147483647]");
    CHECK_ERROR(x[1].shape[1] = x[1].strides[0] = 6, "topk_idx: shape is [3, 6], want [3, 0..5]");
    CHECK_ERROR(x[1].data = (char *)x[0].data + 56, "topk_idx: memory is shared with scores, want no overlap");
}
/* end */

TEST(empty)
{
    check_empty(&tgl_moe_topk_gate_signature, "num_tokens=0 num_experts=64 num_topk=6", invoke);
    check_empty(&tgl_moe_topk_gate_signature, "num_tokens=3 num_experts=64 num_topk=0", invoke);
    check_empty(&tgl_moe_topk_gate_signature, "num_tokens=3 num_experts=0 num_topk=0", invoke);
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
