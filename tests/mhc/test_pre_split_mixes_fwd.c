/* SPDX-License-Identifier: MIT
 * tgl_mhc_pre_split_mixes_fwd, on every device of the tests: bits by the table of cases; here by hand. */
#include "example.h"

TESTS_OF_TABLE("mhc_pre_split_mixes_fwd")

TEST(worked_example)
{
    const float comb[] = { 0.5515525f, -0.1912612f, 0.4558979f, 0.3308499f };
    FOR_BACKENDS(b) /* post_mult is 2 */
        CALL(mhc_pre_split_mixes_fwd, b, PARAMS(.has_pre_eps = true, .pre_eps = 0.01f), F32(MIXES, 1, 8), F32(SCALE, 3),
             F32(BASE, 8), F32_NEAR(PRE, 1e-7, 1, 2), F32_NEAR(POST, 3e-7, 1, 2), F32_NEAR(comb, 1e-7, 1, 2, 2));
}

TEST(gates) /* saturated ones are 0 and 1; an epsilon of 0 is one; without comb there are two scales */
{
    const float mixes[] = { 1e4f, -1e4f, INFINITY, NAN, 100, -100, 0, 1 }, ones[] = { 1, 1 }, zeros[8] = { 0 };
    const float pre[] = { 1, 0, 1, NAN }, post[] = { 3.5f, 0.5f, 2, 3 / (1 + expf(-1)) + 0.5f };
    const float default_pre[] = { 1 + 1e-6f, 1e-6f, 1 + 1e-6f, NAN }, default_post[] = { 2, 0, 1, 2 / (1 + expf(-1)) };
    FOR_BACKENDS(b) {
        CALL(mhc_pre_split_mixes_fwd, b,
             PARAMS(.has_pre_eps = true, .has_post_mult = true, .post_mult = 3, .post_eps = 0.5f), F32(mixes, 1, 8),
             F32(ones, 2), F32(zeros, 8), F32_NEAR(pre, 0, 1, 4), NEAR(TGL_F32, post, 0, 3e-7, 1, 4), ABSENT);
        CALL(mhc_pre_split_mixes_fwd, b, PARAMS(.pre_eps = 1), F32(mixes, 1, 8), F32(ones, 2), F32(zeros, 8),
             F32_NEAR(default_pre, 0, 1, 4), NEAR(TGL_F32, default_post, 1e-40, 3e-7, 1, 4), ABSENT);
    }
}

TEST(graph) { check_replayed("mhc_pre_split_mixes_fwd", "num_tokens=70", 1); }

#define GOOD_CALL CALL_OF(mhc_pre_split_mixes_fwd, "num_tokens=3 num_streams=2")
TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(CALL_OF(mhc_pre_split_mixes_fwd, "num_tokens=3 num_streams=2 -comb"));
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "mixes: dtype is bf16, want f32");
    CHECK_ERROR(x[1].shape[0] = 2, "scale: shape is [2], want [3]");
}

TEST(empty) { check_empty(CALL_OF(mhc_pre_split_mixes_fwd, "num_tokens=0 num_streams=4")); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
