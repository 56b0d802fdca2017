/* SPDX-License-Identifier: MIT
 * tgl_mhc_head_compute_mix_fwd and _bwd, on every device of the tests. */
#include "mhc_support.h"

TESTS_OF_TABLES("mhc_head_compute_mix")

TEST(worked_example)
{
    const float mixes[] = { -0.2255335f, 0.05883483f }, scale[] = { 1.5f }, base[] = { 0.1f, -0.2f };
    const float grad[] = { 1, -2 }, pre[] = { 0.4507053f, 0.4820921f };
    const float of_mixes[] = { 0.3697262f, -0.7476634f }, of_scale[] = { -0.0849162f };
    const float of_base[] = { 0.2464841f, -0.4984423f };
    FOR_BACKENDS(b) {
        CALL(mhc_head_compute_mix_fwd, b, PARAMS(.has_pre_eps = true, .pre_eps = 0.01f), F32(mixes, 1, 2),
             F32(scale, 1), F32(base, 2), F32_NEAR(pre, 1e-7, 1, 2));
        CALL(mhc_head_compute_mix_bwd, b, NULL, F32(mixes, 1, 2), F32(scale, 1), F32(base, 2), F32(grad, 1, 2),
             F32_NEAR(of_mixes, 1e-7, 1, 2), F32_NEAR(of_scale, 1e-7, 1), F32_NEAR(of_base, 1e-7, 2));
    }
}

TEST(graph)
{
    check_replayed("mhc_head_compute_mix_fwd", "num_tokens=70", 1);
    check_replayed("mhc_head_compute_mix_bwd", "num_tokens=200", 1);
}

#define SAMPLE "num_tokens=3 num_streams=4"
#define GOOD_CALL CALL_OF(mhc_head_compute_mix_fwd, SAMPLE)
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "mixes: dtype is bf16, want f32");
    CHECK_ERROR(x[1].shape[0] = 2, "scale: shape is [2], want [1]");
}

TEST(empty) { check_empty(CALL_OF(mhc_head_compute_mix_fwd, "num_tokens=0 num_streams=4")); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
#undef GOOD_CALL

#define GOOD_CALL CALL_OF(mhc_head_compute_mix_bwd, SAMPLE)
TEST(errors_bwd)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[4].shape[1] = 3; x[4].strides = NULL, "grad_mixes: shape is [3, 3], want [3, 4]");
}
TEST(errors_of_workspace) { check_workspace_errors(WORKSPACE_OF(mhc_head_compute_mix_bwd), SAMPLE); }
TEST(no_driver_bwd) { check_no_driver(GOOD_CALL); }
