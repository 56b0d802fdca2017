/* SPDX-License-Identifier: MIT
 * tgl_mhc_pre_finish_fwd, on every device of the tests: bits by the table of cases, which has an oracle of its own;
 * here by hand, and against the ops that it stands for. */
#include "mhc_support.h"

TESTS_OF_TABLE("mhc_pre_finish_fwd")

TEST(worked_example)
{
    const float x[] = { 1, -2, 0.5f, 3, /**/ 2, 1, -1, 0.25f };
    const float products[] = {
        0,          -0.0625f, 0.3125f,    0.25f,      0.1875f,  -0.75f,   0.0625f,   0, /**/
        -0.359375f, 0.15625f, -0.421875f, -0.015625f, 0.71875f, -0.1875f, 0.109375f, -0.359375f
    };
    const float squares[] = { 10, 10.3125f };
    const float scale[] = { 0.5f, 1, 0.75f }, base[] = { -0.375f, -0.25f, -0.125f, 0, 0.125f, 0.25f, 0.375f, 0.5f };
    const float pre[] = { 0.3904198f, 0.4550769f }, post[] = { 0.9034811f, 1.073411f };
    const float comb[] = { 0.5762365f, 0.4230120f, 0.4237625f, 0.5769870f };
    const float out[] = { 1.296875f, -0.326171875f, -0.259765625f, 1.28125f };
    const tgl_mhc_params params = { .has_pre_eps = true, .pre_eps = 0.01f, .sinkhorn_repeat = 2 };
    FOR_BACKENDS(b) {
        tensor in, p, q, s, of, made[4];
        put(b, &in, 3, SHAPE(1, 2, 4), x);
        place(b, &p, TGL_F32, 3, SHAPE(2, 1, 8), products);
        place(b, &q, TGL_F32, 2, SHAPE(2, 1), squares);
        place(b, &s, TGL_F32, 1, SHAPE(3), scale);
        place(b, &of, TGL_F32, 1, SHAPE(8), base);
        for (int i = 0; i < 3; i++) place(b, &made[i], TGL_F32, i == 2 ? 3 : 2, SHAPE(1, 2, 2), NULL);
        place(b, &made[3], TGL_BF16, 2, SHAPE(1, 4), NULL);
        CHECK_OK(tgl_mhc_pre_finish_fwd(&in.t, &p.t, &q.t, &s.t, &of.t, &made[0].t, &made[1].t, &made[2].t, &made[3].t,
                                        &params, b->stream));
        check_f32(b, &made[0], "pre_mix", pre, 2);
        check_f32(b, &made[1], "post_mix", post, 2);
        check_f32(b, &made[2], "comb_mix", comb, 4);
        check_bf16(b, &made[3], "out", out, 4);
        discard(b, &in), discard(b, &p), discard(b, &q), discard(b, &s), discard(b, &of);
    }
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
    tensor in, p, q, s, of, mixes, logits, made[4], want[4];
    put(b, &in, 3, SHAPE(TOKENS, n, HIDDEN), x);
    place(b, &p, TGL_F32, 3, SHAPE(SPLITS, TOKENS, rows), products);
    place(b, &q, TGL_F32, 2, SHAPE(SPLITS, TOKENS), squares);
    place(b, &s, TGL_F32, 1, SHAPE(groups), scale);
    place(b, &of, TGL_F32, 1, SHAPE(rows), base);
    place(b, &mixes, TGL_F32, 2, SHAPE(TOKENS, rows), NULL);
    place(b, &logits, TGL_F32, 3, SHAPE(TOKENS, n, n), NULL);
    for (int i = 0; i < 3; i++) {
        place(b, &made[i], TGL_F32, i == 2 ? 3 : 2, SHAPE(TOKENS, n, n), NULL);
        place(b, &want[i], TGL_F32, i == 2 ? 3 : 2, SHAPE(TOKENS, n, n), NULL);
    }
    place(b, &made[3], TGL_BF16, 2, SHAPE(TOKENS, HIDDEN), NULL);
    place(b, &want[3], TGL_BF16, 2, SHAPE(TOKENS, HIDDEN), NULL);
    CHECK_OK(tgl_mhc_pre_finish_fwd(&in.t, &p.t, &q.t, &s.t, &of.t, &made[0].t, groups > 1 ? &made[1].t : NULL,
                                    groups > 2 ? &made[2].t : NULL, &made[3].t, &params, b->stream));
    CHECK_OK(tgl_mhc_norm_fn_finish_fwd(&p.t, &q.t, &mixes.t, NULL, NULL, n * HIDDEN, &params, b->stream));
    if (groups == 1) CHECK_OK(tgl_mhc_head_compute_mix_fwd(&mixes.t, &s.t, &of.t, &want[0].t, &params, b->stream));
    else
        CHECK_OK(tgl_mhc_pre_split_mixes_fwd(&mixes.t, &s.t, &of.t, &want[0].t, &want[1].t,
                                             groups > 2 ? &logits.t : NULL, &params, b->stream));
    if (groups == 3) CHECK_OK(tgl_mhc_sinkhorn_fwd(&logits.t, &want[2].t, &params, b->stream));
    CHECK_OK(tgl_mhc_pre_apply_mix_fwd(&in.t, &want[0].t, &want[3].t, b->stream));
    for (int i = 0; i < 4; i++) {
        static char seen[MOST * 4], chain[MOST * 4];
        const int64_t bytes = i == 3 ? 2 * TOKENS * HIDDEN : 4 * TOKENS * n * (i == 2 ? n : 1);
        fetch(b, &made[i], seen), fetch(b, &want[i], chain);
        if (i == 3 || i < groups)
            CHECK_THAT(memcmp(seen, chain, (size_t)bytes) == 0, "%s: n %d, %d scales, output %d", b->name, n, groups,
                       i);
    }
    discard(b, &in), discard(b, &p), discard(b, &q), discard(b, &s), discard(b, &of), discard(b, &mixes);
    discard(b, &logits);
}

TEST(is_its_parts)
{
    FOR_BACKENDS(b) {
        for (int n = 1; n <= 8; n++) check_chain(b, n, 3);
        check_chain(b, 4, 1), check_chain(b, 4, 2);
    }
}

TEST(graph) { check_replayed("mhc_pre_finish_fwd", "num_tokens=7 hidden=72", 1); }

extern tgl_signature tgl_mhc_pre_finish_fwd_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_mhc_pre_finish_fwd(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], params, NULL);
}
#define SAMPLE "num_splits=2 num_tokens=3 num_streams=2 hidden=8 num_groups=3"
#define GOOD_CALL &tgl_mhc_pre_finish_fwd_signature, SAMPLE, invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].dtype = tgl_dtype_to_dlpack(TGL_BF16), "out_mul_parts: dtype is bf16, want f32");
    CHECK_ERROR(x[3].shape[0] = 1; x[1].shape[2] = x[4].shape[0] = 2;
                x[1].strides = NULL, "scale: shape is [1], want [3] with comb_mix");
}

TEST(empty)
{
    check_empty(&tgl_mhc_pre_finish_fwd_signature, invoke,
                "num_splits=2 num_tokens=0 num_streams=2 hidden=8 num_groups=3");
}
TEST(no_driver) { check_no_driver(GOOD_CALL); }
