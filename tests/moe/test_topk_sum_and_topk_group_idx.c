/* SPDX-License-Identifier: MIT
 * tgl_moe_topk_sum_and_topk_group_idx, on every device of the tests. Written from the specification: groups
 * are ranked by the sum of their best scores, added in descending order in f32; the lower index wins a
 * tie. */
#include <math.h>

#include "support.h"

TESTS_OF_TABLE("moe_topk_sum_and_topk_group_idx")

/* ---- examples ---- */

static void check_groups(const float *scores, int64_t num_groups, int64_t experts_per_group, int64_t num_topk_sum,
                         const int64_t *want, int64_t num_topk_groups)
{
    FOR_BACKENDS(b) {
        tensor s, i64, i32;
        int64_t poison[64];
        int32_t narrow[64];
        for (int i = 0; i < 64; i++) poison[i] = -77, narrow[i] = (int32_t)(i < num_topk_groups ? want[i] : 0);
        place(b, &s, TGL_F32, 3, SHAPE(1, num_groups, experts_per_group), scores);
        place(b, &i64, TGL_I64, 2, SHAPE(1, num_topk_groups), poison);
        place(b, &i32, TGL_I32, 2, SHAPE(1, num_topk_groups), poison);
        CHECK_OK(tgl_moe_topk_sum_and_topk_group_idx(&s.t, &i64.t, num_topk_sum, b->stream));
        CHECK_OK(tgl_moe_topk_sum_and_topk_group_idx(&s.t, &i32.t, num_topk_sum, b->stream));
        check_contents(b, &i64, want, "i64");
        check_contents(b, &i32, narrow, "i32");
        discard(b, &s);
    }
}
#define GROUPS(...) ((int64_t[]){ __VA_ARGS__ }), sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)

TEST(worked_example)
{
    /* doc: topk_sum_and_topk_group_idx */
    const float scores[] = { 1, 2, 3, /**/ 5, 0, 0, /**/ 4, 4, -9 }; /* three groups of three */
    check_groups(scores, 3, 3, 2, GROUPS(2, 0));                     /* sums of two: 5, 5, 8 */
    check_groups(scores, 3, 3, 1, GROUPS(1, 2));                     /* the best: 3, 5, 4 */
    /* end */
}

TEST(equal_scores_count_twice)
{
    check_groups((float[]){ 4, 4, 0, /**/ 7, 0, 0 }, 2, 3, 2, GROUPS(0, 1));
    check_groups((float[]){ 0, 4, 4, /**/ 4, 0, 4 }, 2, 3, 2, GROUPS(0, 1));
}

TEST(ties_between_groups)
{
    check_groups((float[]){ 1, 2, /**/ 2, 1, /**/ 3, 0, /**/ 0, 3 }, 4, 2, 2, GROUPS(0, 1, 2, 3));
    check_groups((float[]){ 1, 2, /**/ 2, 1, /**/ 3, 0, /**/ 0, 3 }, 4, 2, 1, GROUPS(2, 3, 0, 1));
    check_groups((float[]){ -0.0f, 0, -0.0f, 0 }, 4, 1, 1, GROUPS(0, 1, 2, 3));
}

TEST(groups_of_minus_infinity_come_last_in_order)
{
    const float scores[] = { -INFINITY, -INFINITY, /**/ 1, -INFINITY, /**/ -INFINITY, -INFINITY, /**/ -1, -2 };
    check_groups(scores, 4, 2, 2, GROUPS(3, 0, 1, 2));
    check_groups(scores, 4, 2, 1, GROUPS(1, 3, 0, 2));
}

TEST(nan_counts_as_minus_infinity)
{
    check_groups((float[]){ NAN, 5, /**/ 1, 1 }, 2, 2, 2, GROUPS(1, 0));
    check_groups((float[]){ NAN, 5, /**/ 1, 1 }, 2, 2, 1, GROUPS(0, 1));
    check_groups((float[]){ NAN, 5, 4, /**/ 1, 1, 1 }, 2, 3, 2, GROUPS(0, 1));
    /* +inf and -inf sum to NaN, which comes last */
    check_groups((float[]){ INFINITY, -INFINITY, /**/ -1, -1, /**/ NAN, NAN }, 3, 2, 2, GROUPS(1, 0, 2));
    check_groups((float[]){ NAN, NAN, /**/ INFINITY, -INFINITY, /**/ 0, 0 }, 3, 2, 2, GROUPS(2, 0, 1));
}

TEST(sums_are_rounded_to_f32_in_descending_order)
{
    /* 2^24 + 1 is 2^24 in f32, twice; the small ones first would give 2^24 + 2 */
    check_groups((float[]){ 1, 16777216, 1, /**/ 16777218, 0, 0 }, 2, 3, 3, GROUPS(1, 0));
    check_groups((float[]){ 1, 1, 16777216, /**/ 16777216, 0, 0 }, 2, 3, 3, GROUPS(0, 1));
    check_groups((float[]){ 3e38f, 3e38f, /**/ INFINITY, 0 }, 2, 2, 2, GROUPS(0, 1)); /* overflow is +inf: a tie */
    check_groups((float[]){ 1e-45f, 1e-45f, /**/ 1e-45f, 0 }, 2, 2, 2, GROUPS(0, 1)); /* subnormals count */
    check_groups((float[]){ 1e-45f, 0, /**/ 1e-45f, 1e-45f }, 2, 2, 2, GROUPS(1, 0));
}

TEST(strided_groups) /* groups 4 elements apart, tokens 9 */
{
    FOR_BACKENDS(b) {
        const float scores[] = { 1, 2, 90, 90, 3, 4, 90, 90, 90, 6, 5, 90, 90, 1, 2, 90, 90, 90 };
        const int64_t want[] = { 1, 0, 0, 1 };
        tensor s, idx;
        place(b, &s, TGL_F32, 1, SHAPE(18), scores);
        void *data = s.t.data;
        make(&s, data, b->device, TGL_F32, 3, SHAPE(2, 2, 2));
        s.strides[0] = 9, s.strides[1] = 4;
        place(b, &idx, TGL_I64, 2, SHAPE(2, 2), (int64_t[4]){ 0 });
        CHECK_OK(tgl_moe_topk_sum_and_topk_group_idx(&s.t, &idx.t, 2, b->stream));
        check_contents(b, &idx, want, "group_idx");
        discard(b, &s);
    }
}

TEST(graph) /* a launch a call */
{
    check_replayed("moe_topk_sum_and_topk_group_idx",
                   "num_tokens=70 num_groups=8 experts_per_group=32 num_topk_groups=4", 1);
    check_replayed("moe_topk_sum_and_topk_group_idx",
                   "num_tokens=9 num_groups=40 experts_per_group=3 num_topk_groups=4", 1);
}

/* ---- errors ---- */

OP(moe_topk_sum_and_topk_group_idx, t[0], t[1], *(const int64_t *)params)
#define GOOD_CALL                            \
    CALL_OF(moe_topk_sum_and_topk_group_idx, \
            "num_tokens=3 num_groups=4 experts_per_group=5 num_topk_groups=2 num_topk_sum=2")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].shape[2] = (int64_t)1 << 31,
                "scores: shape is [3, 4, 2147483648], want [3, 0..2147483647, 0..2147483647]");
    CHECK_ERROR(x[1].shape[1] = x[1].strides[0] = 5, "group_idx: shape is [3, 5], want [3, 0..4]");
    CHECK_ERROR(scalar[0] = 0, "num_topk_sum: is 0, want 1..5");
    CHECK_ERROR(scalar[0] = 6, "num_topk_sum: is 6, want 1..5");
}

TEST(empty)
{
#define GROUPS_OF_EMPTY " num_groups=4 experts_per_group=8 num_topk_sum=2"
    check_empty(CALL_OF(moe_topk_sum_and_topk_group_idx, "num_tokens=0 num_topk_groups=2" GROUPS_OF_EMPTY));
    check_empty(CALL_OF(moe_topk_sum_and_topk_group_idx, "num_tokens=2 num_topk_groups=0" GROUPS_OF_EMPTY));
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
