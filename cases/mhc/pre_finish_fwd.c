/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "cases/mhc/common/parts_cases.h"

enum { X, OUT_MUL_PARTS, SQRSUM_PARTS, SCALE, BASE, PRE, POST, COMB, OUT };

/* Outputs that are wanted, besides out: a pre_mix, b post_mix, c comb_mix; - none. Outputs without rows are left
 * out. */
static bool is_wanted(const case_problem *c, char which) { return strchr(case_text(c, "wanted"), which) != NULL; }

static tgl_status setup(case_problem *c)
{
    const int64_t t = case_int(c, "num_tokens"), n = case_int(c, "num_streams"), groups = case_int(c, "groups");
    const int64_t rows = groups == 3 ? n * (n + 2) : groups * n;
    const tgl_mhc_params params = { .has_rms_eps = true,
                                    .rms_eps = (float)mhc_number(c, "eps"),
                                    .has_pre_eps = true,
                                    .pre_eps = 0.01f,
                                    .has_sinkhorn_eps = true,
                                    .sinkhorn_eps = 1e-4f,
                                    .has_post_mult = true,
                                    .post_mult = 1.5f,
                                    .post_eps = groups == 2 ? 1e-6f : 0,
                                    .sinkhorn_repeat = case_int(c, "repeat") };
    memcpy(c->scalars, &params, sizeof params);
    rows_add(c, X, "residual", CASE_IN, true);
    parts_add(c, OUT_MUL_PARTS, SQRSUM_PARTS, rows);
    case_add(c, SCALE, "scale", CASE_IN, TGL_F32, 1, &groups)->fill = case_fill_normal;
    case_add(c, BASE, "base", CASE_IN, TGL_F32, 1, &rows)->fill = case_fill_normal;
    if (is_wanted(c, 'a')) case_add(c, PRE, "pre_mix", CASE_OUT, TGL_F32, 2, (int64_t[]){ t, n });
    if (is_wanted(c, 'b') && groups > 1) case_add(c, POST, "post_mix", CASE_OUT, TGL_F32, 2, (int64_t[]){ t, n });
    if (is_wanted(c, 'c') && groups > 2) case_add(c, COMB, "comb_mix", CASE_OUT, TGL_F32, 3, (int64_t[]){ t, n, n });
    rows_add(c, OUT, "out", CASE_OUT, false);
    return rows_check(c);
}

static tgl_status run(const case_arguments *a)
{
    DLTensor *const *t = a->arg;
    return tgl_mhc_pre_finish_fwd(t[X], t[OUT_MUL_PARTS], t[SQRSUM_PARTS], t[SCALE], t[BASE], t[PRE], t[POST], t[COMB],
                                  t[OUT], (const void *)a->problem->scalars, a->stream);
}

static void oracle_token(case_problem *c, int64_t token)
{
    case_tensor *t = c->tensors;
    const tgl_mhc_params *p = (const void *)c->scalars;
    const int64_t n = t[X].shape[1], hidden = t[X].shape[2];
    const float r = projection_factor(parts_sum(&t[SQRSUM_PARTS], token, 0), n * hidden, p->rms_eps);
    float pre[8], comb[64];
    for (int64_t j = 0; j < t[BASE].shape[0]; j++) {
        const int64_t group = j < n ? 0 : j < 2 * n ? 1 : 2, k = j - group * n;
        const float mix = parts_sum(&t[OUT_MUL_PARTS], token, j) * r;
        const float z = fmaf(mix, mhc_at(&t[SCALE], &group), mhc_at(&t[BASE], &j)), gate = mhc_sigmoid_of(z);
        if (group == 0) pre[k] = gate + p->pre_eps;
        if (group == 0 && t[PRE].name) mhc_put(&t[PRE], (int64_t[]){ token, k }, (double)pre[k]);
        const float post = gate * p->post_mult;
        if (group == 1 && t[POST].name)
            mhc_put(&t[POST], (int64_t[]){ token, k }, (double)(p->post_eps != 0 ? post + p->post_eps : post));
        if (group == 2) comb[k] = z;
    }
    if (t[COMB].name) {
        mhc_sinkhorn_of(comb, n, p->sinkhorn_repeat ? p->sinkhorn_repeat : 20, p->sinkhorn_eps);
        for (int64_t k = 0; k < n * n; k++) mhc_put(&t[COMB], (int64_t[]){ token, k / n, k % n }, (double)comb[k]);
    }
    for (int64_t k = 0; k < hidden; k++) {
        float sum = 0;
        for (int64_t i = 0; i < n; i++) sum = fmaf(pre[i], rows_at(&t[X], token, i, k), sum);
        mhc_put(&t[OUT], (int64_t[]){ token, k }, (double)sum);
    }
}

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    for (int64_t token = begin; token < end; token++) oracle_token(context, token);
}

static void oracle(case_problem *c)
{
    case_parallel(c->tensors[X].shape[0], 50 * case_int(c, "num_streams") * case_int(c, "hidden"), oracle_tokens, c);
}

// clang-format off: lines of cases
const case_op pre_finish_fwd_cases = {
    "mhc_pre_finish_fwd", ROWS_CASE " num_splits=16 groups=3 repeat=20 eps=1e-6 wanted=abc", setup, run, oracle,
    case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=3 num_streams=1,2,3,4,5,6,7,8 hidden=64,100 repeat=1,3", "num_tokens=3 hidden=64,100 groups=1,2",
        "num_tokens=0,1,2,40 hidden=1,8,63,64,1016,2048,2056,7168 num_splits=2 repeat=2",
        "num_tokens=5 hidden=136 num_splits=1,3,16,17,100 wanted=-,a,b,c,abc",
        "num_tokens=1023,1024,1027 hidden=24,65 num_splits=1 repeat=2",
        "num_tokens=37,1060 num_streams=1,2,3,8 hidden=8,9 num_splits=1 repeat=1",
        "num_tokens=9 num_streams=3 hidden=72,65 layout=gaps,outside,same gap=8 offset=0,1 values=normal,special"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=300 hidden=1280,2560,4096,5120,6144,7168 num_splits=1,48",
                                   "num_tokens=80000 hidden=7168 num_splits=1"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=1,128,4096,8192 hidden=7168",
                                    "num_tokens=4096 hidden=6144,5120,4096,2560,1280"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8 hidden=64,65",
                                      "num_tokens=64 hidden=128 groups=1,2"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_streams} hidden={hidden} groups={mhc_scales}"),
};
// clang-format on
