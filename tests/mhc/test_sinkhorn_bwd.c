/* SPDX-License-Identifier: MIT
 * tgl_mhc_sinkhorn_bwd, on every device of the tests: bits by the table of cases; here against the chain rule over
 * stored matrices, in double, and finite differences of that. */
#include "mhc_support.h"

TESTS_OF_TABLE("mhc_sinkhorn_bwd")

enum { MAX_STEPS = 100 };
/* One token. Y = Z / (S + eps) has the gradient dZ = (dY - (sum of dY * Z) / (S + eps)) / (S + eps). */
static void define(int n, int repeat, double eps, const float *x, const float *grad, double *made)
{
    static double z[MAX_STEPS][64], s[MAX_STEPS][8];
    double softmax[64], a[64], d[64];
    const int steps = 2 * repeat - 1;
    for (int i = 0; i < n; i++) {
        double top = -INFINITY, sum = 0;
        for (int o = 0; o < n; o++) top = fmax(top, (double)x[i * n + o]);
        for (int o = 0; o < n; o++) sum += softmax[i * n + o] = exp((double)x[i * n + o] - top);
        for (int o = 0; o < n; o++) a[i * n + o] = (softmax[i * n + o] /= sum) + eps;
    }
    for (int step = 0; step < steps; step++)
        for (int k = 0; k < n; k++) {
            s[step][k] = eps;
            for (int l = 0; l < n; l++) {
                const int at = step % 2 ? k * n + l : l * n + k;
                z[step][at] = a[at];
                s[step][k] += a[at];
            }
            for (int l = 0; l < n; l++) a[step % 2 ? k * n + l : l * n + k] /= s[step][k];
        }
    for (int i = 0; i < n * n; i++) d[i] = (double)grad[i];
    for (int step = steps - 1; step >= 0; step--)
        for (int k = 0; k < n; k++) {
            double dot = 0;
            for (int l = 0; l < n; l++) {
                const int at = step % 2 ? k * n + l : l * n + k;
                dot += d[at] * z[step][at];
            }
            for (int l = 0; l < n; l++) {
                const int at = step % 2 ? k * n + l : l * n + k;
                d[at] = (d[at] - dot / s[step][k]) / s[step][k];
            }
        }
    for (int i = 0; i < n; i++) {
        double dot = 0;
        for (int o = 0; o < n; o++) dot += d[i * n + o] * softmax[i * n + o];
        for (int o = 0; o < n; o++) made[i * n + o] = (d[i * n + o] - dot) * softmax[i * n + o];
    }
}

static void backward(const backend *b, int64_t tokens, int64_t n, const float *x, const float *grad, int repeat,
                     float eps, const float *want, double bound)
{
    CALL(mhc_sinkhorn_bwd, b, PARAMS(.has_sinkhorn_eps = true, .sinkhorn_eps = eps, .sinkhorn_repeat = repeat),
         F32(grad, tokens, n, n), F32(x, tokens, n, n), NEAR(TGL_F32, want, bound, 1.3e-6, tokens, n, n));
}

TEST(worked_example)
{
    const float x[] = { 0.5515525f, -0.1912612f, 0.4558979f, 0.3308499f }, grad[] = { 6.5f, -4.5f, 3.5f, 1.75f };
    const float want[] = { 1.136192f, -1.136192f, -1.133470f, 1.133470f };
    FOR_BACKENDS(b) backward(b, 1, 2, x, grad, 2, 1e-6f, want, 2e-6);
}

TEST(definition)
{
    static const float widths[] = { 0, 1, 4 }, epsilons[] = { 1e-6f, 1e-2f };
    enum { TOKENS = 20 };
    FOR_BACKENDS(b)
        for (int n = 1; n <= 8; n++)
            for (int repeat = 1; repeat <= 38; repeat += repeat == 1 ? 1 : 18)
                for (int w = 0; w < 3; w++)
                    for (int e = 0; e < 2; e++) {
                        float x[TOKENS * 64], grad[TOKENS * 64], want[TOKENS * 64];
                        for (int i = 0; i < TOKENS * n * n; i++) {
                            x[i] = widths[w] * (float)normal(7, i);
                            grad[i] = (float)normal(99, i);
                        }
                        for (int t = 0; t < TOKENS; t++) {
                            double made[64];
                            define(n, repeat, (double)epsilons[e], x + t * n * n, grad + t * n * n, made);
                            for (int i = 0; i < n * n; i++) want[t * n * n + i] = (float)made[i];
                        }
                        backward(b, TOKENS, n, x, grad, repeat, epsilons[e], want, w == 2 ? 5e-6 : 2e-6);
                    }
}

/* The definition itself, by central differences of the forward in double. */
static double loss(int n, int repeat, double eps, const double *x, const float *grad)
{
    double a[64], sum = 0;
    for (int i = 0; i < n; i++) {
        double row = 0;
        for (int o = 0; o < n; o++) row += a[i * n + o] = exp(x[i * n + o]);
        for (int o = 0; o < n; o++) a[i * n + o] = a[i * n + o] / row + eps;
    }
    for (int step = 0; step < 2 * repeat - 1; step++)
        for (int k = 0; k < n; k++) {
            double row = eps;
            for (int l = 0; l < n; l++) row += a[step % 2 ? k * n + l : l * n + k];
            for (int l = 0; l < n; l++) a[step % 2 ? k * n + l : l * n + k] /= row;
        }
    for (int i = 0; i < n * n; i++) sum += a[i] * (double)grad[i];
    return sum;
}

TEST(differences)
{
    for (int n = 1; n <= 5; n += 2)
        for (int repeat = 1; repeat <= 3; repeat++) {
            float x[64], grad[64];
            double made[64], at[64];
            for (int i = 0; i < n * n; i++) at[i] = (double)(x[i] = (float)normal(3, i)), grad[i] = (float)normal(4, i);
            define(n, repeat, 0.05, x, grad, made);
            for (int i = 0; i < n * n; i++) {
                const double step = 1e-6, was = at[i];
                at[i] = was + step;
                const double up = loss(n, repeat, 0.05, at, grad);
                at[i] = was - step;
                const double slope = (up - loss(n, repeat, 0.05, at, grad)) / (2 * step);
                at[i] = was;
                CHECK(fabs(slope - made[i]) < 1e-7);
            }
        }
}

TEST(graph) { check_replayed("mhc_sinkhorn_bwd", "num_tokens=70", 1); }

#define GOOD_CALL CALL_OF(mhc_sinkhorn_bwd, "num_tokens=3 num_streams=4")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].dtype = tgl_dtype_to_dlpack(TGL_BF16), "x: dtype is bf16, want f32");
    CHECK_ERROR(x[2].shape[2] = 3; x[2].strides = NULL, "grad_x: shape is [3, 4, 3], want [3, 4, 4]");
}

TEST(empty) { check_empty(CALL_OF(mhc_sinkhorn_bwd, "num_tokens=0 num_streams=4")); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
