/* SPDX-License-Identifier: MIT
 * tgl_mhc_pre_finish_fwd, on every device of the tests: bits by the table of cases, which has an oracle of its own;
 * here by hand, and against the ops that it stands for. */
#include "example.h"

TESTS_OF_TABLE("mhc_pre_finish_fwd")

TEST(worked_example)
{
    const float products[] = {
        0,          -0.0625f, 0.3125f,    0.25f,      0.1875f,  -0.75f,   0.0625f,   0, /**/
        -0.359375f, 0.15625f, -0.421875f, -0.015625f, 0.71875f, -0.1875f, 0.109375f, -0.359375f
    };
    const float squares[] = { 10, 10.3125f };
    FOR_BACKENDS(b)
        CALL(mhc_pre_finish_fwd, b, PARAMS(.has_pre_eps = true, .pre_eps = 0.01f, .sinkhorn_repeat = 2),
             BF16(X, 1, 2, 4), F32(products, 2, 1, 8), F32(squares, 2, 1), F32(SCALE, 3), F32(BASE, 8),
             F32_NEAR(PRE, 2e-6, 1, 2), F32_NEAR(POST, 2e-6, 1, 2), F32_NEAR(COMB, 2e-6, 1, 2, 2),
             BF16_IS(INPUT, 1, 4));
}

/* Every output, for each number of scales. */
static void check_chain(const backend *b, int n, int groups)
{
    enum { TOKENS = 5, SPLITS = 3, HIDDEN = 40, MOST = TOKENS * 8 * HIDDEN };
    static float x[MOST], products[SPLITS * TOKENS * 80], squares[SPLITS * TOKENS];
    const int64_t rows = groups == 3 ? n * (n + 2) : groups * n;
    float scale[3], base[80];
    for (int i = 0; i < MOST; i++) x[i] = (float)normal(1, i);
    for (int i = 0; i < SPLITS * TOKENS * 80; i++) products[i] = (float)normal(20, i);
    for (int i = 0; i < SPLITS * TOKENS; i++) squares[i] = (float)(1 + i);
    for (int i = 0; i < 80; i++) base[i] = (float)normal(40, i), scale[i % 3] = (float)normal(60, i);
    const tgl_mhc_params params = { .has_rms_eps = true,
                                    .rms_eps = 1e-2f,
                                    .has_pre_eps = true,
                                    .pre_eps = 0.02f,
                                    .has_sinkhorn_eps = true,
                                    .sinkhorn_eps = 1e-3f,
                                    .has_post_mult = true,
                                    .post_mult = 1.5f,
                                    .post_eps = 1e-3f,
                                    .sinkhorn_repeat = 4 };
    static float mixes[TOKENS * 80], logits[TOKENS * 64], pre[TOKENS * 8], post[TOKENS * 8], comb[TOKENS * 64];
    static uint16_t out[TOKENS * HIDDEN];
    const tgl_dtype has_post = groups > 1 ? TGL_F32 : 0, has_comb = groups > 2 ? TGL_F32 : 0;
    num_columns = n * HIDDEN;
    CALL(mhc_norm_fn_finish_fwd, b, &params, F32(products, SPLITS, TOKENS, rows), F32(squares, SPLITS, TOKENS),
         GET(TGL_F32, mixes, TOKENS, rows), ABSENT, ABSENT);
    if (groups == 1)
        CALL(mhc_head_compute_mix_fwd, b, &params, F32(mixes, TOKENS, rows), F32(scale, 1), F32(base, rows),
             GET(TGL_F32, pre, TOKENS, n));
    else
        CALL(mhc_pre_split_mixes_fwd, b, &params, F32(mixes, TOKENS, rows), F32(scale, groups), F32(base, rows),
             GET(TGL_F32, pre, TOKENS, n), GET(TGL_F32, post, TOKENS, n), GET(has_comb, logits, TOKENS, n, n));
    if (groups == 3) CALL(mhc_sinkhorn_fwd, b, &params, F32(logits, TOKENS, n, n), GET(TGL_F32, comb, TOKENS, n, n));
    CALL(mhc_pre_apply_mix_fwd, b, NULL, BF16(x, TOKENS, n, HIDDEN), F32(pre, TOKENS, n),
         GET(TGL_BF16, out, TOKENS, HIDDEN));
    CALL(mhc_pre_finish_fwd, b, &params, BF16(x, TOKENS, n, HIDDEN), F32(products, SPLITS, TOKENS, rows),
         F32(squares, SPLITS, TOKENS), F32(scale, groups), F32(base, rows), OUT(TGL_F32, pre, TOKENS, n),
         OUT(has_post, post, TOKENS, n), OUT(has_comb, comb, TOKENS, n, n), OUT(TGL_BF16, out, TOKENS, HIDDEN));
}

TEST(is_its_parts)
{
    FOR_BACKENDS(b) {
        for (int n = 1; n <= 8; n++) check_chain(b, n, 3);
        check_chain(b, 4, 1), check_chain(b, 4, 2);
    }
}

TEST(graph) { check_replayed("mhc_pre_finish_fwd", "num_tokens=7 hidden=72", 1); }

#define SAMPLE "num_splits=2 num_tokens=3 num_streams=2 hidden=8 num_groups=3"
#define GOOD_CALL CALL_OF(mhc_pre_finish_fwd, SAMPLE)
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].dtype = tgl_dtype_to_dlpack(TGL_BF16), "out_mul_parts: dtype is bf16, want f32");
    CHECK_ERROR(x[3].shape[0] = 1; x[1].shape[2] = x[4].shape[0] = 2;
                x[1].strides = NULL, "scale: shape is [1], want [3] with comb_mix");
}

TEST(empty)
{
    check_empty(CALL_OF(mhc_pre_finish_fwd, "num_splits=2 num_tokens=0 num_streams=2 hidden=8 num_groups=3"));
}
TEST(no_driver) { check_no_driver(GOOD_CALL); }
