/* SPDX-License-Identifier: MIT
 * tgl_moe_group_count, on every device of the tests. Written from the specification: how often each group
 * occurs; other numbers are ignored. */
#include "mapping.h"

TESTS_OF_TABLE("moe_group_count")

/* ---- examples ---- */

static void check_dtype(const backend *b, tgl_dtype dtype, const void *idx, const int64_t *shape, const int32_t *want,
                        int64_t num_groups)
{
    tensor in, out;
    place(b, &in, dtype, 2, shape, idx);
    place(b, &out, TGL_I32, 1, &num_groups, NULL);
    const scratch s = make_scratch(b, tgl_moe_group_count_workspace_size(&in.t, &out.t));
    CHECK_OK(tgl_moe_group_count(&in.t, &out.t, s.data, s.bytes, b->stream));
    check_contents(b, &out, want, dtype == TGL_I32 ? "counts of i32" : "counts of i64");
    check_scratch(b, &s, "the call");
    backend_free(b, s.data);
    discard(b, &in);
}

static void check_counts(const int64_t *idx, int64_t num_tokens, int64_t num_topk, const int32_t *want,
                         int64_t num_groups)
{
    int32_t narrow[64];
    REQUIRE(num_tokens * num_topk <= 64);
    for (int64_t i = 0; i < num_tokens * num_topk; i++) narrow[i] = (int32_t)idx[i];
    FOR_BACKENDS(b) {
        check_dtype(b, TGL_I64, idx, SHAPE(num_tokens, num_topk), want, num_groups);
        check_dtype(b, TGL_I32, narrow, SHAPE(num_tokens, num_topk), want, num_groups);
    }
}
#define GROUPS(...) ((const int64_t[]){ __VA_ARGS__ })
#define COUNTS(...) ((const int32_t[]){ __VA_ARGS__ }), sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t)

TEST(worked_example)
{
    /* doc: group_count */
    check_counts(GROUPS(0, 2, /**/ 2, 0, /**/ 0, -1, /**/ -1, -1), 4, 2, COUNTS(3, 0, 2));
    /* end */
}

TEST(what_is_no_group)
{
    check_counts(GROUPS(-1, -2, INT32_MIN, 3, 4, INT32_MAX), 2, 3, COUNTS(0, 0, 0));
    check_counts(GROUPS(2, 3, 2, -3, 2, 1), 3, 2, COUNTS(0, 1, 3));
    check_counts(GROUPS(0, 0, 0, 0), 1, 4, COUNTS(4));
    check_counts(GROUPS(1, 1, 1, 1), 4, 1, COUNTS(0));
}

TEST(indices_of_64_bits) /* their lower halves are groups */
{
    const int64_t high = (int64_t)1 << 32, idx[] = { high, high + 1, INT64_MIN, INT64_MIN + 1, 1 - high, 1 };
    FOR_BACKENDS(b) check_dtype(b, TGL_I64, idx, SHAPE(3, 2), COUNTS(0, 1));
}

TEST(num_sms)
{
    check_num_sms("moe_group_count", (const char *const[]){ "num_tokens=40 num_topk=8 num_groups=9",
                                                            "num_tokens=5000 num_topk=8 num_groups=256 routing=skewed",
                                                            "num_tokens=900 num_topk=8 num_groups=5000", NULL });
}

/* Exchanges between blocks, for runs with weak memory (tests/run): bins in shared memory, bins in the
 * workspace. */
TEST(exchange)
{
    FOR_BACKENDS(b)
        check_lines("moe_group_count",
                    (const char *const[]){ "num_tokens=2000 num_topk=8 num_groups=256 routing=skewed",
                                           "num_tokens=2000 num_topk=8 num_groups=20000 routing=skewed",
                                           "num_tokens=1100 num_topk=8 num_groups=16000 routing=uniform,one", NULL },
                    b);
}

TEST(graph) { check_replayed("moe_group_count", "num_tokens=5000 num_topk=8 num_groups=256", 1); }

/* ---- errors ---- */

extern tgl_signature tgl_moe_group_count_signature;
static tgl_status call(DLTensor *const *t, const void *params, void *workspace, size_t bytes)
{
    return tgl_moe_group_count(t[0], t[1], workspace, bytes, NULL);
}
static tgl_status invoke(DLTensor *const *t, const void *params) { return call(t, params, NULL, 0); }
static size_t workspace_size(DLTensor *const *t) { return tgl_moe_group_count_workspace_size(t[0], t[1]); }
static const workspace_op op = { &tgl_moe_group_count_signature, invoke, call, workspace_size };
#define GOOD_CALL &tgl_moe_group_count_signature, "num_tokens=3 num_topk=2 num_groups=5", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].strides[1] = 2,
                "group_idx: strides are [2, 2], want 1 in the last dimension and >= 0 in the others");
    CHECK_ERROR(x[1].shape[0] = (int64_t)1 << 31, "counts: shape is [2147483648], want [0..2147483647]");
    CHECK_ERROR(x[1].data = (char *)x[0].data + 40, "counts: memory is shared with group_idx, want no overlap");
}

TEST(errors_of_workspace) { check_workspace_errors(&op, "num_tokens=1000000 num_topk=8 num_groups=256"); }

TEST(workspace_size_grows)
{
    check_workspace_grows(&op, "num_topk=8 num_groups=1");
    check_workspace_grows(&op, "num_topk=8 num_groups=343");
    check_workspace_grows(&op, "num_topk=8 num_groups=8192");
    check_workspace_grows(&op, "num_topk=8 num_groups=8193");
}

TEST(empty)
{
    check_empty(&tgl_moe_group_count_signature, "num_tokens=0 num_topk=8 num_groups=0", invoke);
    check_empty(&tgl_moe_group_count_signature, "num_tokens=3 num_topk=8 num_groups=0", invoke);
}
TEST(no_driver) { check_no_driver(GOOD_CALL); }
