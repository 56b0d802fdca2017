/* SPDX-License-Identifier: MIT
 * tgl_mhc_norm_fn_finish_fwd, on every device of the tests. */
#include "example.h"

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
    const float sqrsum[] = { 20.3125f };
    num_columns = 8;
    FOR_BACKENDS(b)
        CALL(mhc_norm_fn_finish_fwd, b, PARAMS(0), F32(products, 2, 1, 8), F32(squares, 2, 1),
             F32_NEAR(want, 1e-7, 1, 8), OUT(TGL_F32, OUT_MUL, 1, 8), OUT(TGL_F32, sqrsum, 1));
}

TEST(tree) /* neighbours first: other orders give other sums */
{
    enum { SPLITS = 49 };
    static float parts[SPLITS][2] = {
        [0] = { 0x1p24f, 0x1p24f }, [2] = { 1, 0 }, [3] = { 1, 0 }, [32] = { 0, 1 }, [48] = { 0, 1 }
    };
    static const float squares[SPLITS] = { 4 },
                       want[] = { 0x1p24f + 2, 0x1p24f + 2 }; /* 2^24 + 1 would be rounded to 2^24 */
    num_columns = 4;
    FOR_BACKENDS(b)
        CALL(mhc_norm_fn_finish_fwd, b, PARAMS(.has_rms_eps = true), F32(parts, SPLITS, 1, 2), F32(squares, SPLITS, 1),
             OUT(TGL_F32, want, 1, 2), ABSENT, ABSENT);
}

TEST(graph) { check_replayed("mhc_norm_fn_finish_fwd", "num_tokens=70", 1); }

#define GOOD_CALL CALL_OF(mhc_norm_fn_finish_fwd, "num_splits=2 num_tokens=3 num_rows=8")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "out_mul_parts: dtype is bf16, want f32");
    CHECK_ERROR(x[1].shape[0] = 3, "sqrsum_parts: shape is [3, 3], want [2, 3]");
    num_columns = 0;
    CHECK_ERROR((void)0, "num_columns: is 0, want >= 1");
    num_columns = 100;
}

TEST(empty) { check_empty(CALL_OF(mhc_norm_fn_finish_fwd, "num_splits=2 num_tokens=0 num_rows=8")); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
