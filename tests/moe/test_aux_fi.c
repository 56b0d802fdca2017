/* SPDX-License-Identifier: MIT
 * tgl_moe_aux_fi, on every device of the tests. Written from the specification: an expert's count times the
 * number of experts, over tokens times num_aux_topk; whole numbers of 64 bits, each rounded to f32 once, then
 * one division. */
#include "mapping.h"

TESTS_OF_TABLE("moe_aux_fi")

/* ---- examples ---- */

static void check_shares(const int64_t *idx, int64_t num_tokens, int64_t num_topk, int64_t num_aux_topk,
                         const float *want, int64_t num_experts)
{
    float poison[64];
    REQUIRE(num_experts <= 64);
    memset(poison, 0xa5, sizeof poison);
    FOR_BACKENDS(b) {
        tensor in, out;
        place(b, &in, TGL_I64, 2, SHAPE(num_tokens, num_topk), idx);
        place(b, &out, TGL_F32, 1, &num_experts, poison);
        const scratch s = make_scratch(b, tgl_moe_aux_fi_workspace_size(&in.t, &out.t));
        CHECK_OK(tgl_moe_aux_fi(&in.t, &out.t, num_aux_topk, s.data, s.bytes, b->stream));
        check_contents(b, &out, want, "fi");
        check_scratch(b, &s, "the call");
        backend_free(b, s.data);
        discard(b, &in);
    }
}
#define EXPERTS(...) ((const int64_t[]){ __VA_ARGS__ })
#define SHARES(...) ((const float[]){ __VA_ARGS__ }), sizeof((float[]){ __VA_ARGS__ }) / sizeof(float)

TEST(worked_example)
{
    /* doc: aux_fi */
    const int64_t *topk_idx = EXPERTS(0, 2, /**/ 2, 0, /**/ 0, -1, /**/ -1, -1); /* counts are 3, 0, 2 */
    check_shares(topk_idx, 4, 2, 2, SHARES(1.125f, 0, 0.75f));
    check_shares(topk_idx, 4, 2, 1, SHARES(2.25f, 0, 1.5f));
    /* end */
}

TEST(one_rounding)
{
    const int64_t *topk_idx = EXPERTS(0, 0, 1, -1, -5, 3);
    check_shares(topk_idx, 3, 2, 1, SHARES(2.0f, 1.0f, 0));
    check_shares(topk_idx, 3, 2, 7, SHARES(6.0f / 21.0f, 3.0f / 21.0f, 0));
    check_shares(topk_idx, 6, 1, INT64_MAX / 6,
                 SHARES(6.0f / 9223372036854775808.0f, 3.0f / 9223372036854775808.0f, 0));
    check_shares(topk_idx, 3, 2, 5592407, SHARES(6.0f / 16777220.0f, 3.0f / 16777220.0f, 0)); /* 16777221 */
}

TEST(no_tokens) { check_shares(NULL, 0, 2, 3, SHARES(0, 0, 0, 0)); }

TEST(num_sms)
{
    check_num_sms("moe_aux_fi", (const char *const[]){ "num_tokens=40 num_topk=8 num_experts=9",
                                                       "num_tokens=5000 num_topk=8 num_experts=256 routing=skewed",
                                                       "num_tokens=900 num_topk=8 num_experts=5000", NULL });
}

TEST(graph) { check_replayed("moe_aux_fi", "num_tokens=5000 num_topk=8 num_experts=256", 1); }

/* ---- errors ---- */

extern tgl_signature tgl_moe_aux_fi_signature;
static tgl_status call(DLTensor *const *t, const void *params, void *workspace, size_t bytes)
{
    return tgl_moe_aux_fi(t[0], t[1], *(const int64_t *)params, workspace, bytes, NULL);
}
static tgl_status invoke(DLTensor *const *t, const void *params) { return call(t, params, NULL, 0); }
static size_t workspace_size(DLTensor *const *t) { return tgl_moe_aux_fi_workspace_size(t[0], t[1]); }
#define GOOD_CALL &tgl_moe_aux_fi_signature, "num_tokens=3 num_topk=2 num_experts=5 num_aux_topk=2", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype.bits = 16, "topk_idx: dtype is i16, want i32 or i64");
    CHECK_ERROR(scalar[0] = 0, "num_aux_topk: is 0, want >= 1");
    CHECK_ERROR(scalar[0] = INT64_MAX / 2, "num_aux_topk: is 4611686018427387903 for 3 tokens, want a product < 2^63");
    CHECK_ERROR(x[1].shape[0] = (int64_t)1 << 31, "fi: shape is [2147483648], want [0..2147483647]");
}

TEST(errors_of_workspace)
{
    check_workspace_errors(&(workspace_op){ &tgl_moe_aux_fi_signature, invoke, call, workspace_size },
                           "num_tokens=1000000 num_topk=8 num_experts=256 num_aux_topk=2");
}

TEST(empty) { check_empty(&tgl_moe_aux_fi_signature, "num_tokens=0 num_topk=8 num_experts=0 num_aux_topk=1", invoke); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
