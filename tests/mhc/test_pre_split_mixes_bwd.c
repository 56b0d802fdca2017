/* SPDX-License-Identifier: MIT
 * tgl_mhc_pre_split_mixes_bwd, on every device of the tests: bits by the table of cases; here by hand, and against sums
 * in double. */
#include "mhc_support.h"

TESTS_OF_TABLE("mhc_pre_split_mixes_bwd")

typedef struct { float *mixes, *scale, *base; } grads;
static void split_bwd(const backend *b, int64_t tokens, int64_t n, const float *mixes, const float *scale,
                      const float *base, const float *const *grad, const tgl_mhc_params *params, const grads *made)
{
    const int64_t columns = n * (n + 2);
    tensor m, s, of, given[3], out[3];
    place(b, &m, TGL_F32, 2, SHAPE(tokens, columns), mixes);
    place(b, &s, TGL_F32, 1, SHAPE(3), scale);
    place(b, &of, TGL_F32, 1, SHAPE(columns), base);
    for (int i = 0; i < 3; i++) place(b, &given[i], TGL_F32, i == 2 ? 3 : 2, SHAPE(tokens, n, n), grad[i]);
    place(b, &out[0], TGL_F32, 2, SHAPE(tokens, columns), NULL);
    place(b, &out[1], TGL_F32, 1, SHAPE(3), NULL);
    place(b, &out[2], TGL_F32, 1, SHAPE(columns), NULL);
    const size_t bytes = tgl_mhc_pre_split_mixes_bwd_workspace_size(&m.t);
    void *workspace = NULL;
    if (!backend_is_cpu(b)) CHECK_OK(tgl_workspace_get(b->device.device_id, bytes, b->stream, &workspace));
    CHECK_OK(tgl_mhc_pre_split_mixes_bwd(&m.t, &s.t, &of.t, &given[0].t, &given[1].t, &given[2].t, &out[0].t, &out[1].t,
                                         &out[2].t, params, workspace, bytes, b->stream));
    fetch(b, &out[0], made->mixes), fetch(b, &out[1], made->scale), fetch(b, &out[2], made->base);
    discard(b, &m), discard(b, &s), discard(b, &of);
    for (int i = 0; i < 3; i++) discard(b, &given[i]);
}

TEST(worked_example)
{
    const float mixes[] = { -0.2255335f, 0.05883483f, -0.06864063f, 0.1470871f,
                            0.5687367f,  -0.5883483f, 0.1078639f,   -0.2255335f };
    const float scale[] = { 0.5f, 1, 0.75f }, pre[] = { 3.25f, 0.5f }, post[] = { -1, -1 };
    const float comb[] = { 1.136192f, -1.136192f, -1.133470f, 1.133470f };
    const float want[] = { 0.3830134f, 0.06174586f, -0.4953421f, -0.4973054f,
                           0.8521441f, -0.8521441f, -0.8501027f, 0.8501027f };
    const float of_scale[] = { -0.1654991f, -0.03914661f, 0.9367748f };
    const float of_base[] = { 0.7660269f, 0.1234917f, -0.4953421f, -0.4973054f,
                              1.136192f,  -1.136192f, -1.133470f,  1.133470f };
    float base[8];
    for (int j = 0; j < 8; j++) base[j] = (float)(j - 3) / 8;
    FOR_BACKENDS(b) {
        float made[8], s[3], of[8];
        split_bwd(b, 1, 2, mixes, scale, base, (const float *[]){ pre, post, comb }, &(tgl_mhc_params){ 0 },
                  &(grads){ made, s, of });
        check_near(b->name, made, want, 8, 3e-7, 0);
        check_near(b->name, s, of_scale, 3, 3e-7, 0);
        check_near(b->name, of, of_base, 8, 3e-7, 0);
    }
}

TEST(long_sums) /* many signed terms, within what TileKernels' test allows of the exact sum */
{
    enum { TOKENS = 4096, N = 4, COLUMNS = 24 };
    static float mixes[TOKENS * COLUMNS], made[TOKENS * COLUMNS];
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
    FOR_BACKENDS(b) {
        float s[3], of[COLUMNS];
        split_bwd(b, TOKENS, N, mixes, scale, base, (const float *[]){ pre, post, comb }, &(tgl_mhc_params){ 0 },
                  &(grads){ made, s, of });
        check_near(b->name, s, want_scale, 3, 2e-5, 1e-5);
        check_near(b->name, of, want_base, COLUMNS, 2e-5, 1e-5);
    }
}

TEST(graph) { check_replayed("mhc_pre_split_mixes_bwd", "num_tokens=200", 1); }

extern tgl_signature tgl_mhc_pre_split_mixes_bwd_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    static _Alignas(256) char workspace[4096];
    return tgl_mhc_pre_split_mixes_bwd(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], params, workspace,
                                       sizeof workspace, NULL);
}
#define SAMPLE "num_tokens=3 num_columns=8 num_groups=3 num_streams=2"
#define GOOD_CALL &tgl_mhc_pre_split_mixes_bwd_signature, SAMPLE, invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "mixes: dtype is bf16, want f32");
    CHECK_ERROR(x[0].shape[1] = x[2].shape[0] = x[6].shape[1] = x[8].shape[0] = 7;
                x[0].strides = x[6].strides = NULL, "mixes: shape is [3, 7], want [3, n * (n + 2)] for n in 1..8");
    CHECK_ERROR(x[1].shape[0] = x[7].shape[0] = 2, "grad_comb: is given, want NULL for mixes without comb");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
