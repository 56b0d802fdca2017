/* SPDX-License-Identifier: MIT
 * tgl_mhc_norm_fn_finish_fwd, on every device of the tests. */
#include "mhc_support.h"

TESTS_OF_TABLE("mhc_norm_fn_finish_fwd")

TEST(worked_example) /* the projection of docs/mhc.md's example, in two parts */
{
    /* doc: norm_fn_finish */
    const float products[] = {
        0,          -0.0625f, 0.3125f,    0.25f,      0.1875f,  -0.75f,   0.0625f,   0, /**/
        -0.359375f, 0.15625f, -0.421875f, -0.015625f, 0.71875f, -0.1875f, 0.109375f, -0.359375f
    };
    const float squares[] = { 10, 10.3125f };
    const float want[] = { -0.2255335f, 0.05883483f, -0.06864063f, 0.1470871f,
                           0.5687367f,  -0.5883483f, 0.1078639f,   -0.2255335f };
    /* end */
    FOR_BACKENDS(b) {
        tensor p, s, mixes, out_mul, sqrsum;
        float seen[8];
        place(b, &p, TGL_F32, 3, SHAPE(2, 1, 8), products);
        place(b, &s, TGL_F32, 2, SHAPE(2, 1), squares);
        place(b, &mixes, TGL_F32, 2, SHAPE(1, 8), NULL);
        place(b, &out_mul, TGL_F32, 2, SHAPE(1, 8), NULL);
        place(b, &sqrsum, TGL_F32, 1, SHAPE(1), NULL);
        CHECK_OK(tgl_mhc_norm_fn_finish_fwd(&p.t, &s.t, &mixes.t, &out_mul.t, &sqrsum.t, 8, &(tgl_mhc_params){ 0 },
                                            b->stream));
        fetch(b, &mixes, seen);
        check_near(b->name, seen, want, 8, 1e-7, 0);
        fetch(b, &out_mul, seen);
        for (int j = 0; j < 8; j++) CHECK(seen[j] == products[j] + products[8 + j]);
        fetch(b, &sqrsum, seen);
        CHECK(seen[0] == 20.3125f);
        discard(b, &p), discard(b, &s);
    }
}

TEST(tree) /* neighbours first: other orders give other sums */
{
    enum { SPLITS = 49 };
    static float parts[SPLITS][2] = {
        [0] = { 0x1p24f, 0x1p24f }, [2] = { 1, 0 }, [3] = { 1, 0 }, [32] = { 0, 1 }, [48] = { 0, 1 }
    };
    static const float squares[SPLITS] = { 4 };
    FOR_BACKENDS(b) {
        tensor p, s, mixes;
        float seen[2];
        place(b, &p, TGL_F32, 3, SHAPE(SPLITS, 1, 2), parts);
        place(b, &s, TGL_F32, 2, SHAPE(SPLITS, 1), squares);
        place(b, &mixes, TGL_F32, 2, SHAPE(1, 2), NULL);
        const tgl_mhc_params params = { .has_rms_eps = true };
        CHECK_OK(tgl_mhc_norm_fn_finish_fwd(&p.t, &s.t, &mixes.t, NULL, NULL, 4, &params, b->stream));
        fetch(b, &mixes, seen);
        for (int j = 0; j < 2; j++) /* 2^24 + 1 would be rounded to 2^24 */
            CHECK_THAT(seen[j] == 0x1p24f + 2, "%s: row %d is %.9g, want 16777218", b->name, j, (double)seen[j]);
        discard(b, &p), discard(b, &s);
    }
}

TEST(graph) { check_replayed("mhc_norm_fn_finish_fwd", "num_tokens=70", 1); }

extern tgl_signature tgl_mhc_norm_fn_finish_fwd_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_mhc_norm_fn_finish_fwd(t[0], t[1], t[2], t[3], t[4], 100, params, NULL);
}
#define GOOD_CALL &tgl_mhc_norm_fn_finish_fwd_signature, "num_splits=2 num_tokens=3 num_rows=8", invoke

static tgl_status invoke_without_columns(DLTensor *const *t, const void *params)
{
    return tgl_mhc_norm_fn_finish_fwd(t[0], t[1], t[2], t[3], t[4], 0, params, NULL);
}

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "out_mul_parts: dtype is bf16, want f32");
    CHECK_ERROR(x[1].shape[0] = 3, "sqrsum_parts: shape is [3, 3], want [2, 3]");
    errors_call *const c = errors_open(&tgl_mhc_norm_fn_finish_fwd_signature, "num_splits=2 num_tokens=3 num_rows=8",
                                       invoke_without_columns, 0);
    REQUIRE(c);
    CHECK_INT(invoke_without_columns(c->tensors, c->given), TGL_ERR_ARGUMENT);
    CHECK_TEXT(tgl_last_error(), "num_columns: is 0, want >= 1");
}

TEST(empty) { check_empty(&tgl_mhc_norm_fn_finish_fwd_signature, invoke, "num_splits=2 num_tokens=0 num_rows=8"); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
