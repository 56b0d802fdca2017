/* SPDX-License-Identifier: MIT
 * tgl_mhc_post_fwd and _bwd, on every device of the tests. */
#include "example.h"

TESTS_OF_TABLES("mhc_post")

/* Into memory of its own, then onto the residual. comb may be NULL. */
static void forward(const float *post, const float *comb, const float *want)
{
    const tgl_dtype given = comb ? TGL_F32 : 0;
    FOR_BACKENDS(b) {
        CALL(mhc_post_fwd, b, NULL, BF16(Y, 1, 4), BF16(X, 1, 2, 4), F32(post, 1, 2), IN(given, comb, 1, 2, 2),
             BF16_IS(want, 1, 2, 4));
        CALL(mhc_post_fwd, b, NULL, BF16(Y, 1, 4), CHANGED(TGL_BF16, X, want, 1, 2, 4), F32(post, 1, 2),
             IN(given, comb, 1, 2, 2), SAME_AS(1));
    }
}

TEST(worked_example)
{
    forward(POST, COMB,
            (float[]){ 1.875f, -1.6328125f, 1.671875f, 2.0625f, /**/ 2.109375f, -1.34375f, 1.78125f, 1.6796875f });
}

TEST(identity) /* and a permutation: comb is [input, output] */
{
    const float none[] = { 0, 0 }, same[] = { 1, 0, 0, 1 }, up[] = { 0, 0, 1, 0 };
    forward(none, same, X), forward(none, up, (float[]){ 2, 1, -1, 0.25f, /**/ 0, 0, 0, 0 });
}

TEST(without_comb) /* the worked example; with its identity the same, but for the sign of zero and infinities */
{
    const float want[] = { 1.453125f,     -2.90625f,      2.3125f,    3.21875f,
                           /**/ 2.53125f, -0.0732421875f, 1.1484375f, 0.51953125f };
    const float same[] = { 1, 0, 0, 1 };
    forward(POST, NULL, want), forward(POST, same, want);
}

TEST(worked_example_bwd)
{
    const float grad[] = { 1, 0, -1, 2, /**/ 0.5f, 1, 0, -1 }, of_post[] = { -1, -1 };
    const float of_x[] = { 1.4375f, 1.0703125f, -0.90234375f, 0.734375f }, of_comb[] = { 6.5f, -4.5f, 3.5f, 1.75f };
    const float of_residual[] = { 0.7890625f,      0.423828125f, -0.578125f,    0.73046875f,
                                  /**/ 0.7109375f, 0.578125f,    -0.423828125f, 0.271484375f };
    FOR_BACKENDS(b) {
        CALL(mhc_post_bwd, b, NULL, BF16(grad, 1, 2, 4), BF16(Y, 1, 4), BF16(X, 1, 2, 4), F32(POST, 1, 2),
             F32(COMB, 1, 2, 2), BF16_IS(of_x, 1, 4), BF16_IS(of_residual, 1, 2, 4), F32_NEAR(of_post, 3e-6, 1, 2),
             F32_NEAR(of_comb, 3e-6, 1, 2, 2));
        CALL(mhc_post_bwd, b, NULL, BF16(grad, 1, 2, 4), BF16(Y, 1, 4), ABSENT, F32(POST, 1, 2), ABSENT,
             BF16_IS(of_x, 1, 4), ABSENT, F32_NEAR(of_post, 3e-6, 1, 2), ABSENT);
    }
}

TEST(graph)
{
    check_replayed("mhc_post_fwd", "num_tokens=3 hidden=264", 1);
    check_replayed("mhc_post_bwd", "num_tokens=3 hidden=264", 1);
}

#define SAMPLE "num_tokens=3 hidden=5 num_streams=2"
#define GOOD_CALL CALL_OF(mhc_post_fwd, SAMPLE)
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_F16), "x: dtype is f16, want bf16");
    CHECK_ERROR(x[3].shape[2] = 3; x[3].strides = NULL, "comb_mix: shape is [3, 2, 3], want [3, 2, 2]");
    CHECK_ERROR(x[4].strides[1] = 4,
                "out: strides are [10, 4, 1], want 1 in the last dimension, and rows that do not overlap");
}

TEST(empty)
{
    check_empty(CALL_OF(mhc_post_fwd, "num_tokens=0 hidden=8 num_streams=4"));
    check_empty(CALL_OF(mhc_post_bwd, "num_tokens=0 hidden=8 num_streams=4"));
}
TEST(no_driver) { check_no_driver(GOOD_CALL); }
#undef GOOD_CALL

#define GOOD_CALL CALL_OF(mhc_post_bwd, SAMPLE)
TEST(errors_bwd)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(c->tensors[4] = NULL, "comb_mix: is NULL, want a tensor with grad_comb_mix");
    CHECK_ERROR(x[6].strides[0] = 9,
                "grad_residual: strides are [9, 5, 1], want 1 in the last dimension, and rows that do not overlap");
}
TEST(no_driver_bwd) { check_no_driver(GOOD_CALL); }
