/* SPDX-License-Identifier: MIT
 * tgl_mhc_norm_fn_fwd, on every device of the tests. */
#include "example.h"

TESTS_OF_TABLE("mhc_norm_fn_fwd")

typedef struct { float mixes[128], out_mul[128], sqrsum[128]; } results;
static results norm_fn(const backend *b, int64_t tokens, int64_t n, int64_t h, int64_t rows, const float *x,
                       const float *fn, const float *weight, float eps)
{
    const tgl_mhc_params params = { .has_rms_eps = true, .rms_eps = eps };
    const tgl_dtype has_weight = weight ? TGL_F32 : 0;
    results made;
    CALL(mhc_norm_fn_fwd, b, &params, BF16(x, tokens, n, h), F32(fn, rows, n * h), IN(has_weight, weight, n * h),
         GET(TGL_F32, made.mixes, tokens, rows), GET(TGL_F32, made.out_mul, tokens, rows),
         GET(TGL_F32, made.sqrsum, tokens));
    return made;
}

TEST(worked_example)
{
    const float weight[] = { 1, 0.5f, 2, 1, 1.5f, 1, 0.25f, 1 };
    const float weighted[] = { -0.05883483f, 0.05883483f, -0.02941741f, 0.01961161f,
                               0.4804845f,   -0.5687367f, 0.09805805f,  -0.05883483f };
    FOR_BACKENDS(b) {
        results made = norm_fn(b, 1, 2, 4, 8, X, fn_of_example(), NULL, 1e-6f);
        check_near(b->name, made.mixes, MIXES, 8, 1e-7, 0);
        check_near(b->name, made.out_mul, OUT_MUL, 8, 0, 0);
        CHECK(made.sqrsum[0] == 20.3125f);
        made = norm_fn(b, 1, 2, 4, 8, X, fn_of_example(), weight, 1e-6f);
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

#define SIZES_OF_CALL "num_streams=2 hidden=5 num_rows=4"
#define GOOD_CALL CALL_OF(mhc_norm_fn_fwd, "num_tokens=3 " SIZES_OF_CALL)
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_F16), "residual: dtype is f16, want bf16");
    CHECK_ERROR(x[1].shape[1] = 9; x[1].strides = NULL, "fn: shape is [4, 9], want [1..80, 10]");
}

TEST(errors_of_workspace) { check_workspace_errors(WORKSPACE_OF(mhc_norm_fn_fwd), "num_tokens=3 " SIZES_OF_CALL); }
TEST(empty) { check_empty(CALL_OF(mhc_norm_fn_fwd, "num_tokens=0 " SIZES_OF_CALL)); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
