/* SPDX-License-Identifier: MIT
 * tgl_mhc_sinkhorn_fwd, on every device of the tests: bits by the table of cases; here against the definition, in
 * double. */
#include "mhc_support.h"

TESTS_OF_TABLE("mhc_sinkhorn_fwd")

static void sinkhorn(const backend *b, int64_t tokens, int64_t n, const float *x, int repeat, float eps,
                     const float *want, double bound)
{
    CALL(mhc_sinkhorn_fwd, b, PARAMS(.has_sinkhorn_eps = true, .sinkhorn_eps = eps, .sinkhorn_repeat = repeat),
         F32(x, tokens, n, n), F32_NEAR(want, bound, tokens, n, n));
}

TEST(worked_example)
{
    /* doc: sinkhorn */
    const float x[] = { 0.5515525f, -0.1912612f, 0.4558979f, 0.3308499f };
    const float twice[] = { 0.5762365f, 0.4230120f, 0.4237625f, 0.5769870f };
    const float ten[] = { 0.5766118f, 0.4233872f, 0.4233872f, 0.5766118f };
    FOR_BACKENDS(b) {
        sinkhorn(b, 1, 2, x, 2, 1e-6f, twice, 2e-7); /* one token, n = 2, two repeats, within 2e-7 */
        sinkhorn(b, 1, 2, x, 10, 1e-6f, ten, 2e-7);
    }
    /* end */
}

/* Softmax plus eps, columns, then rows and columns. */
static void define(int n, int repeat, double eps, const float *x, double *a)
{
    for (int i = 0; i < n; i++) {
        double top = -INFINITY, sum = 0;
        for (int o = 0; o < n; o++) top = fmax(top, (double)x[i * n + o]);
        for (int o = 0; o < n; o++) sum += a[i * n + o] = exp((double)x[i * n + o] - top);
        for (int o = 0; o < n; o++) a[i * n + o] = a[i * n + o] / sum + eps;
    }
    for (int step = 0; step < 2 * repeat - 1; step++)
        for (int k = 0; k < n; k++) {
            double sum = eps;
            for (int l = 0; l < n; l++) sum += a[step % 2 ? k * n + l : l * n + k];
            for (int l = 0; l < n; l++) a[step % 2 ? k * n + l : l * n + k] /= sum;
        }
}

TEST(definition)
{
    static const float widths[] = { 0, 1, 4, 30 }, epsilons[] = { 1e-6f, 1e-2f, 1e-12f };
    enum { TOKENS = 20 };
    FOR_BACKENDS(b)
        for (int n = 1; n <= 8; n++)
            for (int repeat = 1; repeat <= 20; repeat += repeat == 1 ? 1 : 9)
                for (int w = 0; w < 4; w++)
                    for (int e = 0; e < (b->is_emulated ? 2 : 3); e++) {
                        float x[TOKENS * 64], want[TOKENS * 64];
                        for (int i = 0; i < TOKENS * n * n; i++) x[i] = widths[w] * (float)normal(7, i);
                        for (int t = 0; t < TOKENS; t++) {
                            double a[64];
                            define(n, repeat, (double)epsilons[e], x + t * n * n, a);
                            for (int i = 0; i < n * n; i++) want[t * n * n + i] = (float)a[i];
                        }
                        sinkhorn(b, TOKENS, n, x, repeat, epsilons[e], want, 4e-7);
                    }
}

TEST(special_values) /* one NaN or inf, or a row of -inf, spoils its token alone */
{
    const float inf = INFINITY;
    float x[] = { 1, 2, 3, 4, /**/ 1, inf, 0, 0, /**/ 1, NAN, 0, 0, /**/ -inf, -inf, 0, 0, /**/ -inf, 5, 1, -inf };
    float want[20];
    for (int i = 0; i < 20; i++) want[i] = NAN;
    for (int token = 0; token < 5; token += 4) {
        double a[4];
        define(2, 3, 1e-6, x + 4 * token, a);
        for (int i = 0; i < 4; i++) want[4 * token + i] = (float)a[i];
    }
    FOR_BACKENDS(b) sinkhorn(b, 5, 2, x, 3, 1e-6f, want, 4e-7);
}

TEST(defaults) /* 20 repeats, 1e-6; an epsilon of 0 is one */
{
    const float x[] = { 3, 0, -1, 0, 2, 0, 0, 1, -2 };
    FOR_BACKENDS(b) {
        float seen[4][9];
        const tgl_mhc_params params[] = { { 0 },
                                          { .has_sinkhorn_eps = true, .sinkhorn_eps = 1e-6f, .sinkhorn_repeat = 20 },
                                          { .has_sinkhorn_eps = true },
                                          { .sinkhorn_eps = 1, .sinkhorn_repeat = 20 } };
        for (int i = 0; i < 4; i++)
            CALL(mhc_sinkhorn_fwd, b, &params[i], F32(x, 1, 3, 3), GET(TGL_F32, seen[i], 1, 3, 3));
        CHECK(!memcmp(seen[0], seen[1], sizeof seen[0]) && !memcmp(seen[0], seen[3], sizeof seen[0]));
        CHECK(memcmp(seen[0], seen[2], sizeof seen[0]) != 0);
    }
}

TEST(graph) { check_replayed("mhc_sinkhorn_fwd", "num_tokens=70", 1); }

#define GOOD_CALL CALL_OF(mhc_sinkhorn_fwd, "num_tokens=3 num_streams=4")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "x: dtype is bf16, want f32");
    CHECK_ERROR(x[1].shape[2] = 3; x[1].strides = NULL, "out: shape is [3, 4, 3], want [3, 4, 4]");
}

TEST(empty) { check_empty(CALL_OF(mhc_sinkhorn_fwd, "num_tokens=0 num_streams=4")); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
