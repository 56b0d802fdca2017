/* SPDX-License-Identifier: MIT
 * tgl_mhc_pre_split_mixes_fwd, on every device of the tests: bits by the table of cases; here by hand. */
#include "mhc_support.h"

TESTS_OF_TABLE("mhc_pre_split_mixes_fwd")

static void split(const backend *b, int64_t tokens, int64_t n, const float *mixes, const float *scale,
                  const float *base, const tgl_mhc_params *params, float *pre, float *post, float *comb)
{
    tensor m, s, of, out[3];
    const int64_t columns = n * (comb ? n + 2 : 2);
    place(b, &m, TGL_F32, 2, SHAPE(tokens, columns), mixes);
    place(b, &s, TGL_F32, 1, SHAPE(comb ? 3 : 2), scale);
    place(b, &of, TGL_F32, 1, SHAPE(columns), base);
    for (int i = 0; i < 3; i++) place(b, &out[i], TGL_F32, i == 2 ? 3 : 2, SHAPE(tokens, n, n), NULL);
    CHECK_OK(tgl_mhc_pre_split_mixes_fwd(&m.t, &s.t, &of.t, &out[0].t, &out[1].t, comb ? &out[2].t : NULL, params,
                                         b->stream));
    fetch(b, &out[0], pre), fetch(b, &out[1], post);
    if (comb) fetch(b, &out[2], comb);
    else discard(b, &out[2]);
    discard(b, &m), discard(b, &s), discard(b, &of);
}

TEST(worked_example)
{
    const float mixes[] = { -0.2255335f, 0.05883483f, -0.06864063f, 0.1470871f,
                            0.5687367f,  -0.5883483f, 0.1078639f,   -0.2255335f };
    const float scale[] = { 0.5f, 1, 0.75f };
    const tgl_mhc_params params = { .has_pre_eps = true, .pre_eps = 0.01f }; /* post_mult is 2 */
    float base[8];
    for (int j = 0; j < 8; j++) base[j] = (float)(j - 3) / 8;
    FOR_BACKENDS(b) {
        float pre[2], post[2], comb[4];
        split(b, 1, 2, mixes, scale, base, &params, pre, post, comb);
        check_near(b->name, pre, (float[]){ 0.3904198f, 0.4550769f }, 2, 1e-7, 0);
        check_near(b->name, post, (float[]){ 0.9034811f, 1.073411f }, 2, 3e-7, 0);
        check_near(b->name, comb, (float[]){ 0.5515525f, -0.1912612f, 0.4558979f, 0.3308499f }, 4, 1e-7, 0);
    }
}

TEST(gates) /* saturated ones are 0 and 1; an epsilon of 0 is one; without comb there are two scales */
{
    const float mixes[] = { 1e4f, -1e4f, INFINITY, NAN, 100, -100, 0, 1 }, ones[] = { 1, 1 }, zeros[8] = { 0 };
    FOR_BACKENDS(b) {
        float pre[4], post[4];
        const tgl_mhc_params params = { .has_pre_eps = true, .has_post_mult = true, .post_mult = 3, .post_eps = 0.5f };
        split(b, 1, 4, mixes, ones, zeros, &params, pre, post, NULL);
        check_near(b->name, pre, (float[]){ 1, 0, 1, NAN }, 4, 0, 0);
        check_near(b->name, post, (float[]){ 3.5f, 0.5f, 2, 3 / (1 + expf(-1)) + 0.5f }, 4, 0, 3e-7);
        split(b, 1, 4, mixes, ones, zeros, &(tgl_mhc_params){ .pre_eps = 1 }, pre, post, NULL);
        check_near(b->name, pre, (float[]){ 1 + 1e-6f, 1e-6f, 1 + 1e-6f, NAN }, 4, 0, 0);
        check_near(b->name, post, (float[]){ 2, 0, 1, 2 / (1 + expf(-1)) }, 4, 1e-40, 3e-7);
    }
}

TEST(graph) { check_replayed("mhc_pre_split_mixes_fwd", "num_tokens=70", 1); }

extern tgl_signature tgl_mhc_pre_split_mixes_fwd_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_mhc_pre_split_mixes_fwd(t[0], t[1], t[2], t[3], t[4], t[5], params, NULL);
}
#define GOOD_CALL &tgl_mhc_pre_split_mixes_fwd_signature, "num_tokens=3 num_streams=2", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(&tgl_mhc_pre_split_mixes_fwd_signature, "num_tokens=3 num_streams=2 -comb", invoke);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "mixes: dtype is bf16, want f32");
    CHECK_ERROR(x[1].shape[0] = 2, "scale: shape is [2], want [3]");
}

TEST(empty) { check_empty(&tgl_mhc_pre_split_mixes_fwd_signature, invoke, "num_tokens=0 num_streams=4"); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
