/* SPDX-License-Identifier: MIT
 * tgl_mhc_pre_split_mixes_bwd, on every device of the tests: bits by the table of cases; here by hand, and against sums
 * in double. */
#include "example.h"

TESTS_OF_TABLE("mhc_pre_split_mixes_bwd")

TEST(worked_example)
{
    const float pre[] = { 3.25f, 0.5f }, post[] = { -1, -1 }, comb[] = { 1.136192f, -1.136192f, -1.133470f, 1.133470f };
    const float want[] = { 0.3830134f, 0.06174586f, -0.4953421f, -0.4973054f,
                           0.8521441f, -0.8521441f, -0.8501027f, 0.8501027f };
    const float of_scale[] = { -0.1654991f, -0.03914661f, 0.9367748f };
    const float of_base[] = { 0.7660269f, 0.1234917f, -0.4953421f, -0.4973054f,
                              1.136192f,  -1.136192f, -1.133470f,  1.133470f };
    FOR_BACKENDS(b)
        CALL(mhc_pre_split_mixes_bwd, b, PARAMS(0), F32(MIXES, 1, 8), F32(SCALE, 3), F32(BASE, 8), F32(pre, 1, 2),
             F32(post, 1, 2), F32(comb, 1, 2, 2), F32_NEAR(want, 3e-7, 1, 8), F32_NEAR(of_scale, 3e-7, 3),
             F32_NEAR(of_base, 3e-7, 8));
}

TEST(long_sums) /* many signed terms, within what TileKernels' test allows of the exact sum */
{
    enum { TOKENS = 4096, N = 4, COLUMNS = 24 };
    static float mixes[TOKENS * COLUMNS];
    static float pre[TOKENS * N], post[TOKENS * N], comb[TOKENS * N * N];
    float scale[3], base[COLUMNS];
    for (int i = 0; i < TOKENS * COLUMNS; i++) mixes[i] = (float)normal(1, i);
    for (int i = 0; i < TOKENS * N; i++) pre[i] = (float)normal(20, i), post[i] = (float)normal(40, i);
    for (int i = 0; i < TOKENS * N * N; i++) comb[i] = (float)normal(60, i);
    for (int i = 0; i < COLUMNS; i++) base[i] = (float)normal(80, i), scale[i % 3] = (float)normal(100, i);
    double of_scale[3] = { 0 }, of_base[COLUMNS] = { 0 };
    for (int t = 0; t < TOKENS; t++)
        for (int j = 0; j < COLUMNS; j++) {
            const int group = j < N ? 0 : j < 2 * N ? 1 : 2;
            const double m = (double)mixes[t * COLUMNS + j];
            const double s = 1 / (1 + exp(-(m * (double)scale[group] + (double)base[j])));
            const double g = group == 0   ? (double)pre[t * N + j] * s * (1 - s)
                             : group == 1 ? 2 * (double)post[t * N + j - N] * s * (1 - s)
                                          : (double)comb[t * N * N + j - 2 * N];
            of_base[j] += g, of_scale[group] += g * m;
        }
    float want_scale[3], want_base[COLUMNS];
    for (int i = 0; i < 3; i++) want_scale[i] = (float)of_scale[i];
    for (int i = 0; i < COLUMNS; i++) want_base[i] = (float)of_base[i];
    FOR_BACKENDS(b)
        CALL(mhc_pre_split_mixes_bwd, b, PARAMS(0), F32(mixes, TOKENS, COLUMNS), F32(scale, 3), F32(base, COLUMNS),
             F32(pre, TOKENS, N), F32(post, TOKENS, N), F32(comb, TOKENS, N, N), OUT(TGL_F32, NULL, TOKENS, COLUMNS),
             NEAR(TGL_F32, want_scale, 2e-5, 1e-5, 3), NEAR(TGL_F32, want_base, 2e-5, 1e-5, COLUMNS));
}

TEST(graph) { check_replayed("mhc_pre_split_mixes_bwd", "num_tokens=200", 1); }

#define SAMPLE "num_tokens=3 num_columns=8 num_groups=3 num_streams=2"
#define GOOD_CALL CALL_OF(mhc_pre_split_mixes_bwd, SAMPLE)
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "mixes: dtype is bf16, want f32");
    CHECK_ERROR(x[0].shape[1] = x[2].shape[0] = x[6].shape[1] = x[8].shape[0] = 7;
                x[0].strides = x[6].strides = NULL, "mixes: shape is [3, 7], want [3, n * (n + 2)] for n in 1..8");
    CHECK_ERROR(x[1].shape[0] = x[7].shape[0] = 2, "grad_comb: is given, want NULL for mixes without comb");
}

TEST(errors_of_workspace) { check_workspace_errors(WORKSPACE_OF(mhc_pre_split_mixes_bwd), SAMPLE); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
