/* SPDX-License-Identifier: MIT
 * tgl_moe_group_count, on every device of the tests. Written from the specification: how often each group
 * occurs; what is no group is passed over. */
#include "errors.h"
#include "mapping.h"

TESTS_OF_TABLE("moe_group_count")

/* ---- examples ---- */

static void check_counts(const int64_t *idx, int64_t num_tokens, int64_t num_topk, const int32_t *want,
                         int64_t num_groups)
{
    int32_t narrow[64], poison[64];
    REQUIRE(num_tokens * num_topk <= 64 && num_groups <= 64);
    for (int64_t i = 0; i < num_tokens * num_topk; i++) narrow[i] = (int32_t)idx[i];
    memset(poison, 0xa5, sizeof poison);
    FOR_BACKENDS(b)
        for (int is_narrow = 0; is_narrow < 2; is_narrow++) {
            tensor in, out;
            place(b, &in, is_narrow ? TGL_I32 : TGL_I64, 2, SHAPE(num_tokens, num_topk),
                  is_narrow ? (const void *)narrow : idx);
            place(b, &out, TGL_I32, 1, &num_groups, poison);
            const scratch s = make_scratch(b, tgl_moe_group_count_workspace_size(&in.t, &out.t));
            CHECK_OK(tgl_moe_group_count(&in.t, &out.t, s.data, s.bytes, b->stream));
            check_contents(b, &out, want, is_narrow ? "counts of i32" : "counts of i64");
            check_scratch(b, &s, "the call");
            backend_free(b, s.data);
            discard(b, &in);
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

TEST(indices_of_64_bits)    /* their lower halves are groups */
{
    const int64_t high = (int64_t)1 << 32, idx[] = { high, high + 1, INT64_MIN, INT64_MIN + 1, 1 - high, 1 };
    FOR_BACKENDS(b) {
        tensor in, out;
        place(b, &in, TGL_I64, 2, SHAPE(3, 2), idx);
        place(b, &out, TGL_I32, 1, SHAPE(2), idx);
        const scratch s = make_scratch(b, tgl_moe_group_count_workspace_size(&in.t, &out.t));
        CHECK_OK(tgl_moe_group_count(&in.t, &out.t, s.data, s.bytes, b->stream));
        check_contents(b, &out, ((const int32_t[]){ 0, 1 }), "counts");
        backend_free(b, s.data);
        discard(b, &in);
    }
}

TEST(num_sms)
{
    check_num_sms("moe_group_count", (const char *const[]){
        "num_tokens=40 num_topk=8 num_groups=9", "num_tokens=5000 num_topk=8 num_groups=256 routing=skewed",
        "num_tokens=900 num_topk=8 num_groups=5000", NULL });
}

/* Data between blocks, for runs with weak memory (tests/run): bins in shared memory, and in the workspace. */
TEST(exchange)
{
    FOR_BACKENDS(b)
        check_lines("moe_group_count", (const char *const[]){
            "num_tokens=2000 num_topk=8 num_groups=256 routing=skewed",
            "num_tokens=2000 num_topk=8 num_groups=20000 routing=skewed",
            "num_tokens=1100 num_topk=8 num_groups=16000 routing=uniform,one", NULL }, b);
}

TEST(graph) { check_replayed("moe_group_count", "num_tokens=5000 num_topk=8 num_groups=256", 1); }

/* ---- nothing to do ---- */

TEST(empty)     /* no data and no driver */
{
    const DLDevice devices[] = { cpu, { (DLDeviceType)TGL_DL_CUDA, 0 } };
    for (int d = 0; d < 2; d++) {
        tensor in, out;
        CHECK_OK(tgl_moe_group_count(make(&in, NULL, devices[d], TGL_I64, 2, SHAPE(0, 8)),
                                     make(&out, NULL, devices[d], TGL_I32, 1, SHAPE(0)), NULL, 0, NULL));
        CHECK_OK(tgl_moe_group_count(make(&in, memory, devices[d], TGL_I64, 2, SHAPE(3, 8)),
                                     make(&out, NULL, devices[d], TGL_I32, 1, SHAPE(0)), NULL, 0, NULL));
    }
}

/* ---- errors ---- */

extern tgl_signature tgl_moe_group_count_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    (void)params;
    return tgl_moe_group_count(t[0], t[1], NULL, 0, NULL);
}
#define GOOD_CALL &tgl_moe_group_count_signature, "num_tokens=3 num_topk=2 num_groups=5", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].strides[1] = 2,
                "group_idx: strides are [2, 2], want 1 in the last dimension and >= 0 in the others");
    CHECK_ERROR(x[1].shape[0] = (int64_t)1 << 31, "counts: shape is [2147483648], want [0..2147483647]");
    CHECK_ERROR(x[1].data = (char *)x[0].data + 40, "counts: memory is shared with group_idx, want no overlap");
}

TEST(errors_of_workspace)       /* told before anything is touched: these addresses are nobody's */
{
    const DLDevice cuda = { (DLDeviceType)TGL_DL_CUDA, 0 };
    tensor in, out;
    char text[128];
    make(&in, (void *)((uintptr_t)1 << 40), cuda, TGL_I64, 2, SHAPE(1000000, 8));
    make(&out, (void *)((uintptr_t)1 << 41), cuda, TGL_I32, 1, SHAPE(256));
    const size_t want = tgl_moe_group_count_workspace_size(&in.t, &out.t);
    REQUIRE(want > 0);
    snprintf(text, sizeof text, "workspace: is NULL, want %zu bytes of device memory", want);
    CHECK_FAILS(tgl_moe_group_count(&in.t, &out.t, NULL, want, NULL), TGL_ERR_WORKSPACE, text);
    snprintf(text, sizeof text, "workspace_bytes: is %zu, want >= %zu", want - 1, want);
    CHECK_FAILS(tgl_moe_group_count(&in.t, &out.t, memory, want - 1, NULL), TGL_ERR_WORKSPACE, text);
    snprintf(text, sizeof text, "workspace: address is %p, want a multiple of 256", (void *)(memory + 128));
    CHECK_FAILS(tgl_moe_group_count(&in.t, &out.t, memory + 128, want, NULL), TGL_ERR_WORKSPACE, text);
    in.t.device = out.t.device = cpu;
    CHECK_INT(tgl_moe_group_count_workspace_size(&in.t, &out.t), 0);
}

TEST(workspace_size_grows)      /* with the tokens, so that the largest batch decides */
{
    const DLDevice cuda = { (DLDeviceType)TGL_DL_CUDA, 0 };
    for (int64_t groups = 1; groups < 100000; groups *= 7) {
        size_t before = 0;
        for (int64_t tokens = 0; tokens < 1000000; tokens = tokens * 3 / 2 + 1) {
            tensor in, out;
            const size_t bytes =
                tgl_moe_group_count_workspace_size(make(&in, NULL, cuda, TGL_I64, 2, SHAPE(tokens, 8)),
                                                   make(&out, NULL, cuda, TGL_I32, 1, &groups));
            CHECK_THAT(bytes >= before, "%zu bytes for %d tokens, %zu for fewer", bytes, (int)tokens, before);
            before = bytes;
        }
    }
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
