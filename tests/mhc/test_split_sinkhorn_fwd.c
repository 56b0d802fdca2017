/* SPDX-License-Identifier: MIT
 * tgl_mhc_split_sinkhorn_fwd, on every device of the tests: bits by the table of cases, which has an oracle of its own;
 * here by hand, and against the two ops that it stands for. */
#include "mhc_support.h"

TESTS_OF_TABLE("mhc_split_sinkhorn_fwd")

TEST(worked_example)
{
    const float mixes[] = { -0.2255335f, 0.05883483f, -0.06864063f, 0.1470871f,
                            0.5687367f,  -0.5883483f, 0.1078639f,   -0.2255335f };
    const float scale[] = { 0.5f, 1, 0.75f }, base[] = { -0.375f, -0.25f, -0.125f, 0, 0.125f, 0.25f, 0.375f, 0.5f };
    const float pre[] = { 0.3904198f, 0.4550769f }, post[] = { 0.9034811f, 1.073411f };
    const float comb[] = { 0.5762365f, 0.4230120f, 0.4237625f, 0.5769870f };
    const tgl_mhc_params params = { .has_pre_eps = true, .pre_eps = 0.01f, .sinkhorn_repeat = 2 };
    FOR_BACKENDS(b) {
        tensor m, s, of, out[3];
        place(b, &m, TGL_F32, 2, SHAPE(1, 8), mixes);
        place(b, &s, TGL_F32, 1, SHAPE(3), scale);
        place(b, &of, TGL_F32, 1, SHAPE(8), base);
        for (int i = 0; i < 3; i++) place(b, &out[i], TGL_F32, i == 2 ? 3 : 2, SHAPE(1, 2, 2), NULL);
        CHECK_OK(tgl_mhc_split_sinkhorn_fwd(&m.t, &s.t, &of.t, &out[0].t, &out[1].t, &out[2].t, &params, b->stream));
        check_f32(b, &out[0], "pre_mix", pre, 2);
        check_f32(b, &out[1], "post_mix", post, 2);
        check_f32(b, &out[2], "comb_mix", comb, 4);
        discard(b, &m), discard(b, &s), discard(b, &of);
    }
}

TEST(is_split_then_sinkhorn)
{
    enum { TOKENS = 67, MOST = TOKENS * 80 };
    static float mixes[MOST], seen[3][MOST], want[3][MOST];
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
            const int64_t columns = n * (n + 2), counts[] = { TOKENS * n, TOKENS * n, TOKENS * n * n };
            tensor m, s, of, out[3], parts[4];
            place(b, &m, TGL_F32, 2, SHAPE(TOKENS, columns), mixes);
            place(b, &s, TGL_F32, 1, SHAPE(3), scale);
            place(b, &of, TGL_F32, 1, SHAPE(columns), base);
            for (int i = 0; i < 3; i++) place(b, &out[i], TGL_F32, i == 2 ? 3 : 2, SHAPE(TOKENS, n, n), NULL);
            for (int i = 0; i < 4; i++) place(b, &parts[i], TGL_F32, i >= 2 ? 3 : 2, SHAPE(TOKENS, n, n), NULL);
            CHECK_OK(tgl_mhc_split_sinkhorn_fwd(&m.t, &s.t, &of.t, &out[0].t, &out[1].t, &out[2].t, &params,
                                                b->stream));
            CHECK_OK(tgl_mhc_pre_split_mixes_fwd(&m.t, &s.t, &of.t, &parts[0].t, &parts[1].t, &parts[3].t, &params,
                                                 b->stream));
            CHECK_OK(tgl_mhc_sinkhorn_fwd(&parts[3].t, &parts[2].t, &params, b->stream));
            for (int i = 0; i < 3; i++) {
                fetch(b, &out[i], seen[i]), fetch(b, &parts[i], want[i]);
                CHECK_THAT(memcmp(seen[i], want[i], (size_t)counts[i] * sizeof(float)) == 0, "%s: n %d, output %d",
                           b->name, n, i);
            }
            discard(b, &m), discard(b, &s), discard(b, &of), discard(b, &parts[3]);
        }
}

TEST(graph) { check_replayed("mhc_split_sinkhorn_fwd", "num_tokens=70", 1); }

extern tgl_signature tgl_mhc_split_sinkhorn_fwd_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_mhc_split_sinkhorn_fwd(t[0], t[1], t[2], t[3], t[4], t[5], params, NULL);
}
#define GOOD_CALL &tgl_mhc_split_sinkhorn_fwd_signature, "num_tokens=3 num_streams=2", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "mixes: dtype is bf16, want f32");
    CHECK_ERROR(x[1].shape[0] = 2, "scale: shape is [2], want [3]");
    CHECK_ERROR(x[0].shape[1] = 4; x[0].strides = NULL, "mixes: shape is [3, 4], want [3, 8]");
}

TEST(empty) { check_empty(&tgl_mhc_split_sinkhorn_fwd_signature, invoke, "num_tokens=0 num_streams=4"); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
