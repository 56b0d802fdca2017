/* SPDX-License-Identifier: MIT */
#include "cases/mhc/common/parts_cases.h"

enum { OUT_MUL_PARTS, SQRSUM_PARTS, MIXES, OUT_MUL, SQRSUM };

static tgl_status setup(case_problem *c)
{
    const int64_t t = case_int(c, "num_tokens"), rows = case_int(c, "num_rows");
    const tgl_mhc_params params = { .has_rms_eps = true, .rms_eps = (float)mhc_number(c, "eps") };
    memcpy(c->scalars, &params, sizeof params);
    c->scalar = case_int(c, "num_columns");
    parts_add(c, OUT_MUL_PARTS, SQRSUM_PARTS, rows);
    case_add(c, MIXES, "mixes", CASE_OUT, TGL_F32, 2, (int64_t[]){ t, rows });
    if (case_int(c, "saved")) {
        case_add(c, OUT_MUL, "out_mul", CASE_OUT, TGL_F32, 2, (int64_t[]){ t, rows });
        case_add(c, SQRSUM, "sqrsum", CASE_OUT, TGL_F32, 1, &t);
    }
    return case_check_word(c, "values", "normal special");
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_norm_fn_finish_fwd(a->arg[OUT_MUL_PARTS], a->arg[SQRSUM_PARTS], a->arg[MIXES], a->arg[OUT_MUL],
                                      a->arg[SQRSUM], a->problem->scalar, (const void *)a->problem->scalars, a->stream);
}

static void oracle(case_problem *c)
{
    case_tensor *t = c->tensors;
    const tgl_mhc_params *p = (const void *)c->scalars;
    for (int64_t token = 0; token < t[MIXES].shape[0]; token++) {
        const float squares = parts_sum(&t[SQRSUM_PARTS], token, 0);
        const float r = projection_factor(squares, c->scalar, p->rms_eps);
        if (t[SQRSUM].name) mhc_put(&t[SQRSUM], &token, (double)squares);
        for (int64_t j = 0; j < t[MIXES].shape[1]; j++) {
            const float sum = parts_sum(&t[OUT_MUL_PARTS], token, j);
            if (t[OUT_MUL].name) mhc_put(&t[OUT_MUL], (int64_t[]){ token, j }, (double)sum);
            mhc_put(&t[MIXES], (int64_t[]){ token, j }, (double)(sum * r));
        }
    }
}

// clang-format off: lines of cases
const case_op norm_fn_finish_fwd_cases = {
    "mhc_norm_fn_finish_fwd",
    "num_splits=16 num_tokens= num_rows=24 num_columns=28672 eps=1e-6 saved=1 values=normal offset=0", setup, run,
    oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_splits=1,2,3,15,16,17,31,32,33,48,100,300 num_tokens=7 num_rows=1,24",
        "num_tokens=0,1,255,256,257,700 num_rows=1,4,80 num_splits=2 saved=0,1",
        "num_splits=4096 num_tokens=2 num_rows=3",
        "num_tokens=50 num_splits=1,5 values=special offset=0,1 num_columns=1,16777217 eps=0,1e-20,1e-2"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=2000000 num_splits=48"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=1,128,4096,8192 num_splits=16 saved=0"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_rows=1,4,24,80"),
    .models = CASE_LINES("num_tokens=4096 num_rows={mhc_rows}"),
};
// clang-format on
