/* SPDX-License-Identifier: MIT
 * tgl_mhc_split_sinkhorn_bwd, on every device of the tests: bits by the table of cases, which has an oracle of its own;
 * here by hand, and against the two ops that it stands for. */
#include "example.h"

TESTS_OF_TABLE("mhc_split_sinkhorn_bwd")

TEST(worked_example)
{
    const float pre[] = { 3.25f, 0.5f }, post[] = { -1, -1 }, comb[] = { 6.5f, -4.5f, 3.5f, 1.75f };
    const float want[] = { 0.3830134f, 0.06174586f, -0.4953421f, -0.4973054f,
                           0.8521441f, -0.8521441f, -0.8501027f, 0.8501027f };
    const float of_scale[] = { -0.1654991f, -0.03914661f, 0.9367748f };
    const float of_base[] = { 0.7660269f, 0.1234917f, -0.4953421f, -0.4973054f,
                              1.136192f,  -1.136192f, -1.133470f,  1.133470f };
    FOR_BACKENDS(b)
        CALL(mhc_split_sinkhorn_bwd, b, PARAMS(.sinkhorn_repeat = 2), F32(MIXES, 1, 8), F32(SCALE, 3), F32(BASE, 8),
             F32(pre, 1, 2), F32(post, 1, 2), F32(comb, 1, 2, 2), F32_NEAR(want, 2e-6, 1, 8),
             F32_NEAR(of_scale, 2e-6, 3), F32_NEAR(of_base, 2e-6, 8));
}

TEST(is_sinkhorn_then_split)
{
    enum { TOKENS = 131, MOST = TOKENS * 80 };
    static float mixes[MOST], grads[3][MOST], want[3][MOST], gates[MOST], logits[MOST], of_logits[MOST];
    float scale[3], base[80];
    for (int i = 0; i < MOST; i++) {
        mixes[i] = (float)normal(3, i) * (i % 7 ? 1 : 40);
        for (int k = 0; k < 3; k++) grads[k][i] = (float)normal(11 + k, i);
    }
    for (int i = 0; i < 80; i++) base[i] = (float)normal(5, i), scale[i % 3] = (float)normal(7, i);
    mixes[100] = NAN, mixes[200] = INFINITY, mixes[300] = -INFINITY;
    const tgl_mhc_params params = {
        .has_post_mult = true, .post_mult = 1.5f, .has_sinkhorn_eps = true, .sinkhorn_eps = 1e-3f
    };
    for (int n = 1; n <= 8; n++)
        FOR_BACKENDS(b) {
            const int64_t columns = n * (n + 2);
            CALL(mhc_pre_split_mixes_fwd, b, &params, F32(mixes, TOKENS, columns), F32(scale, 3), F32(base, columns),
                 GET(TGL_F32, gates, TOKENS, n), GET(TGL_F32, gates, TOKENS, n), GET(TGL_F32, logits, TOKENS, n, n));
            CALL(mhc_sinkhorn_bwd, b, &params, F32(grads[2], TOKENS, n, n), F32(logits, TOKENS, n, n),
                 GET(TGL_F32, of_logits, TOKENS, n, n));
            CALL(mhc_pre_split_mixes_bwd, b, &params, F32(mixes, TOKENS, columns), F32(scale, 3), F32(base, columns),
                 F32(grads[0], TOKENS, n), F32(grads[1], TOKENS, n), F32(of_logits, TOKENS, n, n),
                 GET(TGL_F32, want[0], TOKENS, columns), GET(TGL_F32, want[1], 3), GET(TGL_F32, want[2], columns));
            CALL(mhc_split_sinkhorn_bwd, b, &params, F32(mixes, TOKENS, columns), F32(scale, 3), F32(base, columns),
                 F32(grads[0], TOKENS, n), F32(grads[1], TOKENS, n), F32(grads[2], TOKENS, n, n),
                 OUT(TGL_F32, want[0], TOKENS, columns), OUT(TGL_F32, want[1], 3), OUT(TGL_F32, want[2], columns));
        }
}

TEST(graph) { check_replayed("mhc_split_sinkhorn_bwd", "num_tokens=200", 1); }

#define SAMPLE "num_tokens=3 num_columns=8 num_streams=2"
#define GOOD_CALL CALL_OF(mhc_split_sinkhorn_bwd, SAMPLE)
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "mixes: dtype is bf16, want f32");
    CHECK_ERROR(x[0].shape[1] = x[2].shape[0] = x[6].shape[1] = x[8].shape[0] = 7;
                x[0].strides = x[6].strides = NULL, "mixes: shape is [3, 7], want [3, n * (n + 2)] for n in 1..8");
    CHECK_ERROR(x[0].shape[1] = x[2].shape[0] = x[6].shape[1] = x[8].shape[0] = 15;
                x[0].strides = x[6].strides = NULL, "grad_pre_mix: shape is [..., 2], want [..., 3]");
}

TEST(errors_of_workspace) { check_workspace_errors(WORKSPACE_OF(mhc_split_sinkhorn_bwd), SAMPLE); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
