/* SPDX-License-Identifier: MIT
 * tgl_mhc_norm_fn_fwd, on every device of the tests. */
#include "mhc_support.h"

TESTS_OF_TABLE("mhc_norm_fn_fwd")

typedef struct { float mixes[128], out_mul[128], sqrsum[128]; } results;
static results norm_fn(const backend *b, int64_t tokens, int64_t n, int64_t h, int64_t rows, const float *x,
                       const float *fn, const float *weight, float eps)
{
    const tgl_mhc_params params = { .has_rms_eps = true, .rms_eps = eps };
    results made;
    tensor residual, f, w, out[3];
    put(b, &residual, 3, SHAPE(tokens, n, h), x);
    place(b, &f, TGL_F32, 2, SHAPE(rows, n * h), fn);
    if (weight) place(b, &w, TGL_F32, 1, SHAPE(n * h), weight);
    place(b, &out[0], TGL_F32, 2, SHAPE(tokens, rows), NULL);
    place(b, &out[1], TGL_F32, 2, SHAPE(tokens, rows), NULL);
    place(b, &out[2], TGL_F32, 1, SHAPE(tokens), NULL);
    const size_t bytes = tgl_mhc_norm_fn_fwd_workspace_size(&residual.t, &f.t);
    void *workspace = NULL;
    if (!backend_is_cpu(b)) CHECK_OK(tgl_workspace_get(b->device.device_id, bytes, b->stream, &workspace));
    CHECK_OK(tgl_mhc_norm_fn_fwd(&residual.t, &f.t, weight ? &w.t : NULL, &out[0].t, &out[1].t, &out[2].t, &params,
                                 workspace, bytes, b->stream));
    fetch(b, &out[0], made.mixes), fetch(b, &out[1], made.out_mul), fetch(b, &out[2], made.sqrsum);
    discard(b, &residual), discard(b, &f);
    if (weight) discard(b, &w);
    return made;
}

static const float X[] = { 1, -2, 0.5f, 3, /**/ 2, 1, -1, 0.25f };

TEST(worked_example)
{
    const float weight[] = { 1, 0.5f, 2, 1, 1.5f, 1, 0.25f, 1 };
    const float mixes[] = { -0.2255335f, 0.05883483f, -0.06864063f, 0.1470871f,
                            0.5687367f,  -0.5883483f, 0.1078639f,   -0.2255335f };
    const float weighted[] = { -0.05883483f, 0.05883483f, -0.02941741f, 0.01961161f,
                               0.4804845f,   -0.5687367f, 0.09805805f,  -0.05883483f };
    const float out_mul[] = { -0.359375f, 0.09375f, -0.109375f, 0.234375f, 0.90625f, -0.9375f, 0.171875f, -0.359375f };
    float fn[64];
    for (int j = 0; j < 8; j++)
        for (int k = 0; k < 8; k++) fn[8 * j + k] = (float)((3 * j + 5 * k) % 7 - 3) / 16;
    FOR_BACKENDS(b) {
        results made = norm_fn(b, 1, 2, 4, 8, X, fn, NULL, 1e-6f);
        check_near(b->name, made.mixes, mixes, 8, 1e-7, 0);
        check_near(b->name, made.out_mul, out_mul, 8, 0, 0);
        CHECK(made.sqrsum[0] == 20.3125f);
        made = norm_fn(b, 1, 2, 4, 8, X, fn, weight, 1e-6f);
        check_near(b->name, made.mixes, weighted, 8, 1e-7, 0);
    }
}

TEST(rounds_fn) /* to TF32, to nearest: 0.1, 1/3, 0.7; a tie goes away from zero */
{
    const float x[] = { 1 }, fn[] = { 0.1f, 1.0f / 3, 0.7f, 1 + 0x1p-11f, -1 - 0x1p-11f, 1 + 0x1.8p-11f };
    const uint32_t want[] = { 0x3dccc000, 0x3eaaa000, 0x3f334000, 0x3f802000, 0xbf802000, 0x3f802000 };
    FOR_BACKENDS(b) {
        const results made = norm_fn(b, 1, 1, 1, 6, x, fn, NULL, 0);
        CHECK(!memcmp(made.out_mul, want, sizeof want) && !memcmp(made.mixes, want, sizeof want));
    }
}

TEST(special_values) /* Inf and NaN of fn are kept; a row of zeros */
{
    const float x[] = { 1, 1, /**/ 0, 0 }, fn[] = { INFINITY, 0, /**/ NAN, 0, /**/ 1, 1, /**/ -INFINITY, 1 };
    const float want[] = { INFINITY, NAN, 2, -INFINITY, /**/ NAN, NAN, 0, NAN };
    uint32_t bits = 0x7fffffff; /* CUDA's NaN: all bits of the payload */
    float odd[8];
    memcpy(odd, fn, sizeof odd);
    memcpy(&odd[2], &bits, sizeof bits);
    FOR_BACKENDS(b) {
        check_near(b->name, norm_fn(b, 2, 2, 1, 4, x, fn, NULL, 1e-6f).out_mul, want, 8, 0, 0);
        check_near(b->name, norm_fn(b, 2, 2, 1, 4, x, odd, NULL, 1e-6f).out_mul, want, 8, 0, 0);
        const float zeros[] = { 0, 0 }, some[] = { 1, 2 };
        results made = norm_fn(b, 1, 2, 1, 1, zeros, some, NULL, 1e-20f);
        CHECK(made.mixes[0] == 0 && made.sqrsum[0] == 0);
        made = norm_fn(b, 1, 2, 1, 1, zeros, some, NULL, 0);
        CHECK(isnan(made.mixes[0]));
    }
}

/* A token's bits do not depend on its batch; a gain of ones changes nothing. */
TEST(batches)
{
    enum { N = 3, H = 136, ROWS = 5, TOKENS = 9 };
    static float x[TOKENS * N * H], fn[ROWS * N * H], ones[N * H];
    for (int i = 0; i < TOKENS * N * H; i++) x[i] = (float)normal(5, i);
    for (int i = 0; i < ROWS * N * H; i++) fn[i] = (float)normal(6, i);
    for (int i = 0; i < N * H; i++) ones[i] = 1;
    FOR_BACKENDS(b) {
        const results all = norm_fn(b, TOKENS, N, H, ROWS, x, fn, NULL, 1e-6f);
        const results with = norm_fn(b, TOKENS, N, H, ROWS, x, fn, ones, 1e-6f);
        CHECK(!memcmp(all.mixes, with.mixes, TOKENS * ROWS * sizeof(float)));
        for (int t = 0; t < TOKENS; t++) {
            const results one = norm_fn(b, 1, N, H, ROWS, x + t * N * H, fn, NULL, 1e-6f);
            CHECK(!memcmp(one.mixes, all.mixes + t * ROWS, ROWS * sizeof(float)) && one.sqrsum[0] == all.sqrsum[t]);
        }
    }
}

/* For runs with weak memory (tests/run): blocks send each other sums. */
TEST(exchange)
{
    FOR_BACKENDS(b)
        check_lines("mhc_norm_fn_fwd",
                    (const char *const[]){ "num_tokens=9,40 hidden=1280 num_rows=24 sums=exact",
                                           "num_tokens=70 hidden=128 num_rows=4 sums=exact", NULL },
                    b);
}

/* One cluster takes all tiles in turn, more than its ring has stages. */
TEST(many_trips)
{
    FOR_BACKENDS(b) {
        if (!backend_is_cpu(b)) CHECK_OK(tgl_set_num_sms(b->device.device_id, 4));
        check_lines("mhc_norm_fn_fwd", (const char *const[]){ "num_tokens=120 hidden=1280 sums=exact", NULL }, b);
        if (!backend_is_cpu(b)) CHECK_OK(tgl_set_num_sms(b->device.device_id, 0));
    }
}

TEST(graph) { check_replayed("mhc_norm_fn_fwd", "num_tokens=70 hidden=128", 1); }

extern tgl_signature tgl_mhc_norm_fn_fwd_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    static _Alignas(256) char workspace[8192];
    return tgl_mhc_norm_fn_fwd(t[0], t[1], t[2], t[3], t[4], t[5], params, workspace, sizeof workspace, NULL);
}
#define GOOD_CALL &tgl_mhc_norm_fn_fwd_signature, "num_tokens=3 num_streams=2 hidden=5 num_rows=4", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_F16), "residual: dtype is f16, want bf16");
    CHECK_ERROR(x[1].shape[1] = 9; x[1].strides = NULL, "fn: shape is [4, 9], want [1..80, 10]");
}

TEST(empty) { check_empty(&tgl_mhc_norm_fn_fwd_signature, invoke, "num_tokens=0 num_streams=2 hidden=5 num_rows=4"); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
