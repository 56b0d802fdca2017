/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "cases/mhc/common/rows_cases.h"

enum { GRAD_OUT, X, MIX, GRAD_X, GRAD_MIX };

static tgl_status setup(case_problem *c)
{
    rows_add(c, GRAD_OUT, "grad_out", CASE_IN, false);
    rows_add(c, X, "x", CASE_IN, true);
    rows_add_mix(c, MIX, "mix", CASE_IN, 2);
    rows_add(c, GRAD_X, "grad_x", CASE_INOUT, true);
    rows_add_mix(c, GRAD_MIX, "grad_mix", CASE_OUT, 2);
    c->scalar = case_int(c, "accumulate") != 0;
    return rows_check(c);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_pre_apply_mix_bwd(a->arg[GRAD_OUT], a->arg[X], a->arg[MIX], a->arg[GRAD_X], a->arg[GRAD_MIX],
                                     a->problem->scalar, a->stream);
}

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    case_tensor *t = c->tensors;
    for (int64_t token = begin; token < end; token++)
        for (int64_t i = 0; i < t[X].shape[1]; i++) {
            mhc_put(&t[GRAD_MIX], (int64_t[]){ token, i }, rows_dot(&t[GRAD_OUT], 0, &t[X], i, token));
            for (int64_t k = 0; k < t[X].shape[2]; k++) {
                const int64_t at[] = { token, i, k };
                const float old = c->scalar ? mhc_at(&t[GRAD_X], at) : 0;
                mhc_put(&t[GRAD_X], at,
                        fmaf(mhc_at(&t[MIX], (int64_t[]){ token, i }), rows_at(&t[GRAD_OUT], token, 0, k), old));
            }
        }
}

static void oracle(case_problem *c)
{
    case_parallel(c->tensors[0].shape[0], 500 * case_int(c, "hidden"), oracle_tokens, c);
}

static int64_t bytes(const case_problem *c) /* grad_x is written, and read to be added to */
{
    return case_all_bytes(c) + (c->scalar ? case_tensor_bytes(&c->tensors[GRAD_X]) : 0);
}

// clang-format off: lines of cases
const case_op pre_apply_mix_bwd_cases = {
    "mhc_pre_apply_mix_bwd", ROWS_CASE " accumulate=0", setup, run, oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=1,3 num_streams=1,2,3,4,5,6,7,8 hidden=8,9", "num_tokens=0,2 num_streams=2,4 hidden=0,1,7,64,130",
        "num_tokens=2 hidden=2048,2056,7168,4097 values=special",
        "num_tokens=3 num_streams=3,4 hidden=64,65 layout=gaps,outside,same gap=1,8 offset=0,1,8 values=special",
        "num_tokens=7 hidden=264",
        "num_tokens=3 num_streams=1,4,8 hidden=64,7,2100 accumulate=1 values=special",
        "num_tokens=1 num_streams=2 hidden=8192,8200,16384,24576,33000,40000 accumulate=1"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=1001 num_streams=2,4,8 hidden=1280,2560,4096,5120,7168,7680",
                                   "num_tokens=80000 hidden=7168", "num_tokens=70000 hidden=100"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=4096,8192 hidden=7168,5120,2560 accumulate=1",
        "num_tokens=4096 hidden=4096,7168", "num_tokens=4096 hidden=6144,4096,1280 accumulate=1"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8 hidden=7168 accumulate=0,1"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_streams} hidden={hidden} accumulate=0,1"),
};
// clang-format on
