/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "cases/mhc/common/rows_cases.h"

enum { GRAD_OUT, X, RESIDUAL, POST, COMB, GRAD_X, GRAD_RESIDUAL, GRAD_POST, GRAD_COMB };

static tgl_status setup(case_problem *c)
{
    rows_add(c, GRAD_OUT, "grad_out", CASE_IN, true);
    rows_add(c, X, "x", CASE_IN, false);
    rows_add_mix(c, POST, "post_mix", CASE_IN, 2);
    rows_add(c, GRAD_X, "grad_x", CASE_OUT, false);
    rows_add_mix(c, GRAD_POST, "grad_post_mix", CASE_OUT, 2);
    if (case_int(c, "comb")) {
        rows_add(c, RESIDUAL, "residual", CASE_IN, true);
        rows_add_mix(c, COMB, "comb_mix", CASE_IN, 3);
        rows_add(c, GRAD_RESIDUAL, "grad_residual", CASE_OUT, true);
        rows_add_mix(c, GRAD_COMB, "grad_comb_mix", CASE_OUT, 3);
    }
    return rows_check(c);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_post_bwd(a->arg[GRAD_OUT], a->arg[X], a->arg[RESIDUAL], a->arg[POST], a->arg[COMB], a->arg[GRAD_X],
                            a->arg[GRAD_RESIDUAL], a->arg[GRAD_POST], a->arg[GRAD_COMB], a->stream);
}

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    case_tensor *t = c->tensors;
    const int64_t n = t[GRAD_OUT].shape[1], mixed = t[COMB].name ? n : 0;
    for (int64_t token = begin; token < end; token++) {
        for (int64_t i = 0; i < n; i++) {
            mhc_put(&t[GRAD_POST], (int64_t[]){ token, i }, rows_dot(&t[X], 0, &t[GRAD_OUT], i, token));
            for (int64_t o = 0; o < mixed; o++)
                mhc_put(&t[GRAD_COMB], (int64_t[]){ token, i, o }, rows_dot(&t[RESIDUAL], i, &t[GRAD_OUT], o, token));
        }
        for (int64_t k = 0; k < t[X].shape[1]; k++)
            for (int64_t i = -1; i < mixed; i++) { /* -1: of x */
                float sum = 0;
                for (int64_t o = 0; o < n; o++)
                    sum = fmaf(i < 0 ? mhc_at(&t[POST], (int64_t[]){ token, o })
                                     : mhc_at(&t[COMB], (int64_t[]){ token, i, o }),
                               rows_at(&t[GRAD_OUT], token, o, k), sum);
                mhc_put(i < 0 ? &t[GRAD_X] : &t[GRAD_RESIDUAL],
                        i < 0 ? (int64_t[]){ token, k, 0 } : (int64_t[]){ token, i, k }, sum);
            }
    }
}

static void oracle(case_problem *c)
{
    case_parallel(c->tensors[0].shape[0], 500 * case_int(c, "hidden"), oracle_tokens, c);
}

// clang-format off: lines of cases
const case_op post_bwd_cases = {
    "mhc_post_bwd", ROWS_CASE " comb=1", setup, run, oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=1,3 num_streams=1,2,3,4,5,6,7,8 hidden=8,9", "num_tokens=0,2 num_streams=2,4 hidden=0,1,7,64,130",
        "num_tokens=2 hidden=2048,2056,7168,4097 values=special",
        "num_tokens=3 num_streams=3,4 hidden=64,65 layout=gaps,outside,same gap=1,8 offset=0,1,8 values=special",
        "num_tokens=7 hidden=264",
        "num_tokens=1 num_streams=2 hidden=8192,8200,16384,24576,33000,40000",
        "num_tokens=0,3 num_streams=1,4 hidden=64,65 layout=packed,gaps,same values=special comb=0",
        "num_tokens=2 num_streams=2,3,5,6,7,8 hidden=8,9 comb=0", "num_tokens=1 hidden=8200 comb=0"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=1001 num_streams=2,4,8 hidden=1280,2560,4096,5120,7168,7680",
                                   "num_tokens=80000 hidden=7168", "num_tokens=70000 hidden=100"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=4096,8192 hidden=7168,5120,2560", "num_tokens=128 hidden=7168",
        "num_tokens=4096 hidden=6144,4096,1280", "num_tokens=4096 hidden=6144 comb=0"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8 hidden=7168 comb=0,1"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_streams} hidden={hidden} comb={mhc_comb}"),
};
// clang-format on
