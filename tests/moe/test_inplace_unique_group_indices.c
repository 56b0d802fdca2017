/* SPDX-License-Identifier: MIT
 * tgl_moe_inplace_unique_group_indices, on every device of the tests. Written from the specification: in a
 * row from left to right, a group that came before becomes -1. */
#include "support.h"

TESTS_OF_TABLE("moe_inplace_unique_group_indices")

/* ---- examples ---- */

static void check_row(const int64_t *row, const int64_t *want, int64_t count, int64_t num_groups)
{
    int32_t narrow[64], narrow_want[64];
    REQUIRE(count <= 64);
    for (int64_t i = 0; i < count; i++) narrow[i] = (int32_t)row[i], narrow_want[i] = (int32_t)want[i];
    FOR_BACKENDS(b) {
        tensor i64, i32;
        place(b, &i64, TGL_I64, 2, SHAPE(1, count), row);
        place(b, &i32, TGL_I32, 2, SHAPE(1, count), narrow);
        CHECK_OK(tgl_moe_inplace_unique_group_indices(&i64.t, num_groups, b->stream));
        CHECK_OK(tgl_moe_inplace_unique_group_indices(&i32.t, num_groups, b->stream));
        check_contents(b, &i64, want, "i64");
        check_contents(b, &i32, narrow_want, "i32");
    }
}
#define ROW(...) ((int64_t[]){ __VA_ARGS__ })

TEST(worked_examples)
{
    /* doc: inplace_unique_group_indices */
    check_row(ROW(3, 1, 3, 1), ROW(3, 1, -1, -1), 4, 8);
    check_row(ROW(-1, 2, -1, 2), ROW(-1, 2, -1, -1), 4, 8);
    check_row(ROW(0, 1, 2, 3), ROW(0, 1, 2, 3), 4, 8);
    /* end */
}

TEST(negative_values_stay)
{
    check_row(ROW(-5, -5, -1, -1, 0, -5, 0), ROW(-5, -5, -1, -1, 0, -5, -1), 7, 8);
    check_row(ROW(INT32_MIN, INT32_MIN, 7, INT32_MIN, 7), ROW(INT32_MIN, INT32_MIN, 7, INT32_MIN, -1), 5, 8);
}

TEST(one_group)
{
    check_row(ROW(0), ROW(0), 1, 1);
    check_row(ROW(0, 0, 0, 0, 0, 0, 0, 0), ROW(0, -1, -1, -1, -1, -1, -1, -1), 8, 1);
}

TEST(rows_do_not_see_each_other) /* the same group in every row, in every place */
{
    for (int64_t k = 1; k <= 40; k += k < 10 ? 1 : 11)
        FOR_BACKENDS(b) {
            int64_t groups[40 * 9], want[40 * 9];
            for (int64_t t = 0; t < 9; t++)
                for (int64_t i = 0; i < k; i++) {
                    groups[t * k + i] = i % 3;
                    want[t * k + i] = i < 3 ? i : -1;
                }
            tensor g;
            place(b, &g, TGL_I64, 2, SHAPE(9, k), groups);
            CHECK_OK(tgl_moe_inplace_unique_group_indices(&g.t, 3, b->stream));
            check_contents(b, &g, want, "group_indices");
        }
}

TEST(values_that_differ_in_the_upper_half_only)
{
    FOR_BACKENDS(b) {
        const int64_t high = (int64_t)1 << 32;
        const int64_t groups[] = { 1, high + 1, 1, 2 * high + 1, high + 1, 0, high, 0 };
        const int64_t want[] = { 1, high + 1, -1, 2 * high + 1, -1, 0, high, -1 };
        tensor g;
        place(b, &g, TGL_I64, 2, SHAPE(1, 8), groups);
        CHECK_OK(tgl_moe_inplace_unique_group_indices(&g.t, 4 * high, b->stream));
        check_contents(b, &g, want, "group_indices");
    }
}

TEST(twice_is_once)
{
    test_random r = test_seed("twice_is_once");
    FOR_BACKENDS(b) {
        int32_t groups[20 * 9], once[20 * 9];
        for (int i = 0; i < 180; i++) groups[i] = (int32_t)test_below(&r, 9) - 1;
        tensor g;
        place(b, &g, TGL_I32, 2, SHAPE(20, 9), groups);
        CHECK_OK(tgl_moe_inplace_unique_group_indices(&g.t, 8, b->stream));
        CHECK_OK(backend_download(b, once, g.t.data, sizeof once));
        CHECK(memcmp(once, groups, sizeof once) != 0);
        CHECK_OK(tgl_moe_inplace_unique_group_indices(&g.t, 8, b->stream));
        check_contents(b, &g, once, "twice");
    }
}

TEST(graph) /* a launch a call */
{
    check_replayed("moe_inplace_unique_group_indices", "num_tokens=70 num_topk=8 num_groups=16", 1);
    check_replayed("moe_inplace_unique_group_indices", "num_tokens=9 num_topk=33 num_groups=16", 1);
}

/* ---- errors ---- */

OP(moe_inplace_unique_group_indices, t[0], *(const int64_t *)params)
#define GOOD_CALL CALL_OF(moe_inplace_unique_group_indices, "num_tokens=3 num_topk=4 num_groups=8")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].strides[0] = 0, "group_indices: strides are [0, 1], want >= 4 between rows");
    CHECK_ERROR(scalar[0] = -1, "num_groups: is -1, want >= 0");
}

TEST(empty)
{
    check_empty(CALL_OF(moe_inplace_unique_group_indices, "num_tokens=0 num_topk=4 num_groups=8"));
    check_empty(CALL_OF(moe_inplace_unique_group_indices, "num_tokens=4 num_topk=0 num_groups=8"));
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }

TEST(a_single_row_has_any_stride)
{
    int64_t groups[] = { 2, 2, 1 };
    tensor g;
    make(&g, groups, cpu, TGL_I64, 2, SHAPE(1, 3));
    g.strides[0] = 0;
    CHECK_OK(tgl_moe_inplace_unique_group_indices(&g.t, 8, NULL));
    CHECK(groups[0] == 2 && groups[1] == -1 && groups[2] == 1);
}
