/* SPDX-License-Identifier: MIT
 * tgl_mhc_pre_apply_mix_fwd and _bwd, on every device of the tests. */
#include "mhc_support.h"

TESTS_OF_TABLES("mhc_pre_apply_mix")

/* doc: pre_apply_mix */
static const float X[] = { 1, -2, 0.5f, 3, /**/ 2, 1, -1, 0.25f }, PRE[] = { 0.39041978f, 0.45507687f };

TEST(worked_example)
{
    const float want[] = { 1.296875f, -0.326171875f, -0.259765625f, 1.28125f };
    /* end */
    FOR_BACKENDS(b) CALL(mhc_pre_apply_mix_fwd, b, NULL, BF16(X, 1, 2, 4), F32(PRE, 1, 2), BF16_IS(want, 1, 4));
}

TEST(worked_example_bwd) /* from nothing, whatever is there; and onto the gradient of post */
{
    const float grad[] = { 1, -1, 0.5f, 0 }, of_mix[] = { 3.25f, 0.5f };
    const float old[] = { 0.7890625f,      0.423828125f, -0.578125f,    0.73046875f,
                          /**/ 0.7109375f, 0.578125f,    -0.423828125f, 0.271484375f };
    const float alone[] = { 0.390625f, -0.390625f, 0.1953125f, 0, /**/ 0.455078125f, -0.455078125f, 0.2275390625f, 0 };
    const float added[] = { 1.1796875f,      0.033447265625f, -0.3828125f,    0.73046875f,
                            /**/ 1.1640625f, 0.123046875f,    -0.1962890625f, 0.271484375f };
    const float nan[] = { NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    const struct {
        const float *before, *after;
        bool accumulate;
    } cases[] = { { old, added, true }, { old, alone, false }, { nan, alone, false }, { nan, nan, true } };
    FOR_BACKENDS(b)
        for (int i = 0; i < 4; i++)
            CALL(mhc_pre_apply_mix_bwd, b, &cases[i].accumulate, BF16(grad, 1, 4), BF16(X, 1, 2, 4), F32(PRE, 1, 2),
                 CHANGED(TGL_BF16, cases[i].before, cases[i].after, 1, 2, 4), F32_NEAR(of_mix, 2e-6, 1, 2));
}

TEST(nan_times_zero)
{
    const float x[] = { 1, NAN, /**/ 2, 3 }, mix[] = { 0, 0.5f }, want[] = { 1, NAN };
    FOR_BACKENDS(b) CALL(mhc_pre_apply_mix_fwd, b, NULL, BF16(x, 1, 2, 2), F32(mix, 1, 2), BF16_IS(want, 1, 2));
}

TEST(graph)
{
    check_replayed("mhc_pre_apply_mix_fwd", "num_tokens=3 hidden=264", 1);
    check_replayed("mhc_pre_apply_mix_bwd", "num_tokens=3 hidden=264", 1);
}

#define SAMPLE "num_tokens=3 hidden=5 num_streams=2"
#define GOOD_CALL CALL_OF(mhc_pre_apply_mix_fwd, SAMPLE)
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_F16), "x: dtype is f16, want bf16");
    CHECK_ERROR(x[1].shape[1] = 3; x[1].strides = NULL, "mix: shape is [3, 3], want [3, 2]");
}

TEST(empty)
{
    check_empty(CALL_OF(mhc_pre_apply_mix_fwd, "num_tokens=0 hidden=8 num_streams=4"));
    check_empty(CALL_OF(mhc_pre_apply_mix_bwd, "num_tokens=0 hidden=8 num_streams=4"));
}
TEST(no_driver) { check_no_driver(GOOD_CALL); }
#undef GOOD_CALL

#define GOOD_CALL CALL_OF(mhc_pre_apply_mix_bwd, SAMPLE)
TEST(errors_bwd)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[4].shape[1] = 3; x[4].strides = NULL, "grad_mix: shape is [3, 3], want [3, 2]");
    CHECK_ERROR(x[3].strides[1] = 4,
                "grad_x: strides are [10, 4, 1], want 1 in the last dimension, and rows that do not overlap");
}
TEST(no_driver_bwd) { check_no_driver(GOOD_CALL); }
