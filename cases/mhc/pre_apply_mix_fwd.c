/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "cases/mhc/common/rows_cases.h"

enum { X, MIX, OUT };

static tgl_status setup(case_problem *c)
{
    rows_add(c, X, "x", CASE_IN, true);
    rows_add_mix(c, MIX, "mix", CASE_IN, 2);
    rows_add(c, OUT, "out", CASE_OUT, false);
    return rows_check(c);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_pre_apply_mix_fwd(a->arg[X], a->arg[MIX], a->arg[OUT], a->stream);
}

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    case_tensor *t = c->tensors;
    for (int64_t token = begin; token < end; token++)
        for (int64_t k = 0; k < t[OUT].shape[1]; k++) {
            float sum = 0;
            for (int64_t i = 0; i < t[X].shape[1]; i++)
                sum = fmaf(mhc_at(&t[MIX], (int64_t[]){ token, i }), rows_at(&t[X], token, i, k), sum);
            mhc_put(&t[OUT], (int64_t[]){ token, k }, sum);
        }
}

static void oracle(case_problem *c)
{
    case_parallel(c->tensors[0].shape[0], 500 * case_int(c, "hidden"), oracle_tokens, c);
}

// clang-format off: lines of cases
const case_op pre_apply_mix_fwd_cases = {
    "mhc_pre_apply_mix_fwd", ROWS_CASE, setup, run, oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=1,3 num_streams=1,2,3,4,5,6,7,8 hidden=8,9", "num_tokens=0,2 num_streams=2,4 hidden=0,1,7,64,130",
        "num_tokens=2 hidden=2048,2056,7168,4097 values=special",
        "num_tokens=3 num_streams=3,4 hidden=64,65 layout=gaps,outside,same gap=1,8 offset=0,1,8 values=special",
        "num_tokens=7 hidden=264"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=1001 num_streams=2,4,8 hidden=1280,2560,4096,5120,7168,7680",
                                   "num_tokens=80000 hidden=7168", "num_tokens=70000 hidden=100"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=4096,8192 hidden=7168,5120,2560", "num_tokens=128 hidden=7168",
        "num_tokens=4096 hidden=6144,4096,1280"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8 hidden=7168"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_streams} hidden={hidden}"),
};
// clang-format on
