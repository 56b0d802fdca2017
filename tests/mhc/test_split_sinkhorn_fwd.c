/* SPDX-License-Identifier: MIT
 * tgl_mhc_split_sinkhorn_fwd, on every device of the tests: bits by the table of cases, which has an oracle of its own;
 * here by hand, and against the two ops that it stands for. */
#include "example.h"

TESTS_OF_TABLE("mhc_split_sinkhorn_fwd")

TEST(worked_example)
{
    FOR_BACKENDS(b)
        CALL(mhc_split_sinkhorn_fwd, b, PARAMS(.has_pre_eps = true, .pre_eps = 0.01f, .sinkhorn_repeat = 2),
             F32(MIXES, 1, 8), F32(SCALE, 3), F32(BASE, 8), F32_NEAR(PRE, 2e-6, 1, 2), F32_NEAR(POST, 2e-6, 1, 2),
             F32_NEAR(COMB, 2e-6, 1, 2, 2));
}

TEST(is_split_then_sinkhorn)
{
    enum { TOKENS = 67, MOST = TOKENS * 80 };
    static float mixes[MOST], logits[MOST], want[3][MOST];
    float scale[3], base[80];
    for (int i = 0; i < MOST; i++) mixes[i] = (float)normal(3, i) * (i % 7 ? 1 : 40);
    for (int i = 0; i < 80; i++) base[i] = (float)normal(5, i), scale[i % 3] = (float)normal(7, i);
    mixes[100] = NAN, mixes[200] = INFINITY, mixes[300] = -INFINITY;
    const tgl_mhc_params params = { .has_pre_eps = true,
                                    .pre_eps = 0.01f,
                                    .has_post_mult = true,
                                    .post_mult = 1.5f,
                                    .post_eps = 1e-3f,
                                    .has_sinkhorn_eps = true,
                                    .sinkhorn_eps = 1e-3f };
    for (int n = 1; n <= 8; n++)
        FOR_BACKENDS(b) {
            const int64_t columns = n * (n + 2);
            CALL(mhc_pre_split_mixes_fwd, b, &params, F32(mixes, TOKENS, columns), F32(scale, 3), F32(base, columns),
                 GET(TGL_F32, want[0], TOKENS, n), GET(TGL_F32, want[1], TOKENS, n),
                 GET(TGL_F32, logits, TOKENS, n, n));
            CALL(mhc_sinkhorn_fwd, b, &params, F32(logits, TOKENS, n, n), GET(TGL_F32, want[2], TOKENS, n, n));
            CALL(mhc_split_sinkhorn_fwd, b, &params, F32(mixes, TOKENS, columns), F32(scale, 3), F32(base, columns),
                 OUT(TGL_F32, want[0], TOKENS, n), OUT(TGL_F32, want[1], TOKENS, n),
                 OUT(TGL_F32, want[2], TOKENS, n, n));
        }
}

TEST(graph) { check_replayed("mhc_split_sinkhorn_fwd", "num_tokens=70", 1); }

#define GOOD_CALL CALL_OF(mhc_split_sinkhorn_fwd, "num_tokens=3 num_streams=2")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "mixes: dtype is bf16, want f32");
    CHECK_ERROR(x[1].shape[0] = 2, "scale: shape is [2], want [3]");
    CHECK_ERROR(x[0].shape[1] = 4; x[0].strides = NULL, "mixes: shape is [3, 4], want [3, 8]");
}

TEST(empty) { check_empty(CALL_OF(mhc_split_sinkhorn_fwd, "num_tokens=0 num_streams=4")); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
