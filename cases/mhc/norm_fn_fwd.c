/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "cases/mhc/common/projection_cases.h"

enum { X = PROJECTION_X, FN = PROJECTION_FN, WEIGHT = PROJECTION_WEIGHT, MIXES, OUT_MUL, SQRSUM };

static tgl_status setup(case_problem *c)
{
    const int64_t t = case_int(c, "num_tokens"), n = case_int(c, "num_streams"), columns = n * case_int(c, "hidden");
    const int64_t given = case_int(c, "num_rows"), rows = given ? given : n * (n + 2);
    const tgl_mhc_params params = { .has_rms_eps = true, .rms_eps = (float)mhc_number(c, "eps") };
    memcpy(c->scalars, &params, sizeof params);
    const bool is_exact = projection_is_exact(c), is_wanted = case_int(c, "saved");
    projection_add(c, rows);
    case_tensor *mixes = case_add(c, MIXES, "mixes", CASE_OUT, TGL_F32, 2, (int64_t[]){ t, rows });
    if (!is_exact) mixes->compare = (case_compare){ CASE_CLOSE, .rtol = 1e-5, .atol = 2e-6 * sqrt((double)columns) };
    if (is_wanted) {
        case_add(c, OUT_MUL, "out_mul", CASE_OUT, TGL_F32, 2, (int64_t[]){ t, rows })->compare = mixes->compare;
        if (!is_exact) c->tensors[OUT_MUL].compare.atol *= sqrt((double)columns) / 10;
        case_add(c, SQRSUM, "sqrsum", CASE_OUT, TGL_F32, 1, &t);
    }
    TGL_TRY(case_check_word(c, "sums", "normal exact"));
    return rows_check(c);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_norm_fn_fwd(a->arg[X], a->arg[FN], a->arg[WEIGHT], a->arg[MIXES], a->arg[OUT_MUL], a->arg[SQRSUM],
                               (const void *)a->problem->scalars, a->workspace, a->workspace_bytes, a->stream);
}

static size_t workspace(const case_arguments *a) { return tgl_mhc_norm_fn_fwd_workspace_size(a->arg[X], a->arg[FN]); }

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    case_tensor *t = c->tensors;
    const tgl_mhc_params *params = (const void *)c->scalars;
    const int64_t n = t[X].shape[1], hidden = t[X].shape[2];
    for (int64_t token = begin; token < end; token++) {
        const float squares = projection_squares(&t[X], token);
        if (!(squares / (float)(n * hidden) > 1e-3f)) __atomic_store_n(&c->is_undecided, true, __ATOMIC_RELAXED);
        const double r = (double)projection_factor(squares, n * hidden, params->rms_eps);
        if (t[SQRSUM].name) mhc_put(&t[SQRSUM], &token, squares);
        for (int64_t j = 0; j < t[FN].shape[0]; j++) {
            const double sum = projection_product(&t[X], &t[FN], &t[WEIGHT], token, j);
            if (t[OUT_MUL].name) mhc_put(&t[OUT_MUL], (int64_t[]){ token, j }, sum);
            mhc_put(&t[MIXES], (int64_t[]){ token, j }, (double)(float)sum * r);
        }
    }
}

static void oracle(case_problem *c) { projection_oracle(c, WEIGHT + 1, oracle_tokens); }

// clang-format off: lines of cases
const case_op norm_fn_fwd_cases = {     /* num_rows=0: n (n + 2) */
    "mhc_norm_fn_fwd", ROWS_CASE " num_rows=0 weight=0 eps=1e-6 saved=1 sums=normal", setup, run, oracle,
    case_all_bytes, workspace,
    .uses_all_sms = true,
    .has_projection = true,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=3 num_streams=1,2,3,4,5,6,7,8 hidden=64,100 sums=exact eps=0",
        "num_tokens=0,1,63,64,65,130 hidden=128 num_rows=1,4,24 sums=exact,normal",
        "num_tokens=1,9,40 hidden=1280 num_rows=0,1,4,9 weight=0,1 sums=exact",
        "num_tokens=2 hidden=1,8,256,512,1024,2048,4160 sums=exact", "num_tokens=2 hidden=320,2048 weight=0,1",
        "num_tokens=3 hidden=65 num_rows=9 weight=0,1",
        "num_tokens=3 num_streams=3 hidden=128,72,65 layout=gaps,outside,same gap=8 offset=0,1 weight=1 saved=0,1"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=300 hidden=1280,2560,4096,5120,6144,7168 weight=0,1 sums=normal,exact"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=1,128,4096,8192 hidden=7168",
                                    "num_tokens=4096 hidden=6144,5120,4096,2560,1280"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8 hidden=64",
                                      "num_tokens=64 hidden=7168,2560,1280,128,65 weight=0,1",
                                      "num_tokens=64 hidden=128,1280 num_rows=1,4,9 weight=0,1",
                                      "num_tokens=64 hidden=4096,5120,6144 weight=0,1"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_streams} hidden={hidden} num_rows={mhc_rows}"),
};
// clang-format on
