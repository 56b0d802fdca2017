/* SPDX-License-Identifier: MIT
 * tgl_mhc_split_sinkhorn_bwd, on every device of the tests: bits by the table of cases, which has an oracle of its own;
 * here by hand, and against the two ops that it stands for. */
#include "mhc_support.h"

TESTS_OF_TABLE("mhc_split_sinkhorn_bwd")

enum { MIXES, SCALE, BASE, PRE, POST, COMB, GRAD_MIXES, GRAD_SCALE, GRAD_BASE, COUNT };

/* Tensors of `tokens` tokens and n streams on a device. data: of inputs, NULL for one that is not given. */
static void place_all(const backend *b, int64_t tokens, int64_t n, const float *const data[6], tensor t[COUNT])
{
    const int64_t columns = n * (n + 2);
    place(b, &t[MIXES], TGL_F32, 2, SHAPE(tokens, columns), data[MIXES]);
    place(b, &t[SCALE], TGL_F32, 1, SHAPE(3), data[SCALE]);
    place(b, &t[BASE], TGL_F32, 1, SHAPE(columns), data[BASE]);
    for (int i = PRE; i <= COMB; i++) place(b, &t[i], TGL_F32, i == COMB ? 3 : 2, SHAPE(tokens, n, n), data[i]);
    place(b, &t[GRAD_MIXES], TGL_F32, 2, SHAPE(tokens, columns), NULL);
    place(b, &t[GRAD_SCALE], TGL_F32, 1, SHAPE(3), NULL);
    place(b, &t[GRAD_BASE], TGL_F32, 1, SHAPE(columns), NULL);
}

static void *workspace_of(const backend *b, size_t bytes)
{
    void *workspace = NULL;
    if (!backend_is_cpu(b)) CHECK_OK(tgl_workspace_get(b->device.device_id, bytes, b->stream, &workspace));
    return workspace;
}

TEST(worked_example)
{
    const float mixes[] = { -0.2255335f, 0.05883483f, -0.06864063f, 0.1470871f,
                            0.5687367f,  -0.5883483f, 0.1078639f,   -0.2255335f };
    const float scale[] = { 0.5f, 1, 0.75f }, base[] = { -0.375f, -0.25f, -0.125f, 0, 0.125f, 0.25f, 0.375f, 0.5f };
    const float pre[] = { 3.25f, 0.5f }, post[] = { -1, -1 }, comb[] = { 6.5f, -4.5f, 3.5f, 1.75f };
    const float want[] = { 0.3830134f, 0.06174586f, -0.4953421f, -0.4973054f,
                           0.8521441f, -0.8521441f, -0.8501027f, 0.8501027f };
    const float of_scale[] = { -0.1654991f, -0.03914661f, 0.9367748f };
    const float of_base[] = { 0.7660269f, 0.1234917f, -0.4953421f, -0.4973054f,
                              1.136192f,  -1.136192f, -1.133470f,  1.133470f };
    const tgl_mhc_params params = { .sinkhorn_repeat = 2 };
    FOR_BACKENDS(b) {
        tensor t[COUNT];
        float made[8], s[3], of[8];
        place_all(b, 1, 2, (const float *[]){ mixes, scale, base, pre, post, comb }, t);
        const size_t bytes = tgl_mhc_split_sinkhorn_bwd_workspace_size(&t[MIXES].t);
        CHECK_OK(tgl_mhc_split_sinkhorn_bwd(&t[MIXES].t, &t[SCALE].t, &t[BASE].t, &t[PRE].t, &t[POST].t, &t[COMB].t,
                                            &t[GRAD_MIXES].t, &t[GRAD_SCALE].t, &t[GRAD_BASE].t, &params,
                                            workspace_of(b, bytes), bytes, b->stream));
        fetch(b, &t[GRAD_MIXES], made), fetch(b, &t[GRAD_SCALE], s), fetch(b, &t[GRAD_BASE], of);
        check_near(b->name, made, want, 8, 2e-6, 0);
        check_near(b->name, s, of_scale, 3, 2e-6, 0);
        check_near(b->name, of, of_base, 8, 2e-6, 0);
        for (int i = MIXES; i <= COMB; i++) discard(b, &t[i]);
    }
}

TEST(is_sinkhorn_then_split)
{
    enum { TOKENS = 131, MOST = TOKENS * 80 };
    static float mixes[MOST], grads[3][MOST], seen[3][MOST], want[3][MOST];
    float scale[3], base[80];
    for (int i = 0; i < MOST; i++) {
        mixes[i] = (float)normal(3, i) * (i % 7 ? 1 : 40);
        for (int k = 0; k < 3; k++) grads[k][i] = (float)normal(11 + k, i);
    }
    for (int i = 0; i < 80; i++) base[i] = (float)normal(5, i), scale[i % 3] = (float)normal(7, i);
    mixes[100] = NAN, mixes[200] = INFINITY, mixes[300] = -INFINITY;
    const tgl_mhc_params params = {
        .has_post_mult = true, .post_mult = 1.5f, .has_sinkhorn_eps = true, .sinkhorn_eps = 1e-3f
    };
    for (int n = 1; n <= 8; n++)
        FOR_BACKENDS(b) {
            const int64_t columns = n * (n + 2), counts[] = { TOKENS * columns, 3, columns };
            tensor t[COUNT], other[COUNT], gate[2], logits, of_logits;
            const float *const data[] = { mixes, scale, base, grads[0], grads[1], grads[2] };
            place_all(b, TOKENS, n, data, t);
            place_all(b, TOKENS, n, data, other);
            for (int i = 0; i < 2; i++) place(b, &gate[i], TGL_F32, 2, SHAPE(TOKENS, n), NULL);
            place(b, &logits, TGL_F32, 3, SHAPE(TOKENS, n, n), NULL);
            place(b, &of_logits, TGL_F32, 3, SHAPE(TOKENS, n, n), NULL);
            const size_t bytes = tgl_mhc_split_sinkhorn_bwd_workspace_size(&t[MIXES].t);
            void *const workspace = workspace_of(b, bytes);
            CHECK_OK(tgl_mhc_split_sinkhorn_bwd(&t[MIXES].t, &t[SCALE].t, &t[BASE].t, &t[PRE].t, &t[POST].t, &t[COMB].t,
                                                &t[GRAD_MIXES].t, &t[GRAD_SCALE].t, &t[GRAD_BASE].t, &params, workspace,
                                                bytes, b->stream));
            CHECK_OK(tgl_mhc_pre_split_mixes_fwd(&t[MIXES].t, &t[SCALE].t, &t[BASE].t, &gate[0].t, &gate[1].t,
                                                 &logits.t, &params, b->stream));
            CHECK_OK(tgl_mhc_sinkhorn_bwd(&t[COMB].t, &logits.t, &of_logits.t, &params, b->stream));
            CHECK_OK(tgl_mhc_pre_split_mixes_bwd(&t[MIXES].t, &t[SCALE].t, &t[BASE].t, &t[PRE].t, &t[POST].t,
                                                 &of_logits.t, &other[GRAD_MIXES].t, &other[GRAD_SCALE].t,
                                                 &other[GRAD_BASE].t, &params, workspace, bytes, b->stream));
            for (int i = 0; i < 3; i++) {
                fetch(b, &t[GRAD_MIXES + i], seen[i]), fetch(b, &other[GRAD_MIXES + i], want[i]);
                CHECK_THAT(memcmp(seen[i], want[i], (size_t)counts[i] * sizeof(float)) == 0, "%s: n %d, output %d",
                           b->name, n, i);
            }
            for (int i = MIXES; i <= COMB; i++) discard(b, &t[i]), discard(b, &other[i]);
            discard(b, &gate[0]), discard(b, &gate[1]), discard(b, &logits), discard(b, &of_logits);
        }
}

TEST(graph) { check_replayed("mhc_split_sinkhorn_bwd", "num_tokens=200", 1); }

extern tgl_signature tgl_mhc_split_sinkhorn_bwd_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    static _Alignas(256) char workspace[4096];
    return tgl_mhc_split_sinkhorn_bwd(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], params, workspace,
                                      sizeof workspace, NULL);
}
#define GOOD_CALL &tgl_mhc_split_sinkhorn_bwd_signature, "num_tokens=3 num_columns=8 num_streams=2", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "mixes: dtype is bf16, want f32");
    CHECK_ERROR(x[0].shape[1] = x[2].shape[0] = x[6].shape[1] = x[8].shape[0] = 7;
                x[0].strides = x[6].strides = NULL, "mixes: shape is [3, 7], want [3, n * (n + 2)] for n in 1..8");
    CHECK_ERROR(x[0].shape[1] = x[2].shape[0] = x[6].shape[1] = x[8].shape[0] = 15;
                x[0].strides = x[6].strides = NULL, "grad_pre_mix: shape is [..., 2], want [..., 3]");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
