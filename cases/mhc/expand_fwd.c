/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "cases/mhc/common/rows_cases.h"

enum { X, OUT };

static tgl_status setup(case_problem *c)
{
    rows_add_of(c, X, "x", CASE_IN, false, case_dtype(c, "dtype"));
    rows_add_of(c, OUT, "out", CASE_OUT, true, case_dtype(c, "dtype"));
    return rows_check(c);
}

static tgl_status run(const case_arguments *a) { return tgl_mhc_expand_fwd(a->arg[X], a->arg[OUT], a->stream); }

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    case_tensor *t = c->tensors;
    for (int64_t token = begin; token < end; token++)
        for (int64_t i = 0; i < t[OUT].shape[1]; i++)
            for (int64_t k = 0; k < t[X].shape[1]; k++)
                memcpy(case_element(&t[OUT], (int64_t[]){ token, i, k }), case_element(&t[X], (int64_t[]){ token, k }),
                       (size_t)t[X].element_bytes);
}

static void oracle(case_problem *c)
{
    case_parallel(c->tensors[0].shape[0], 500 * case_int(c, "hidden"), oracle_tokens, c);
}

// clang-format off: lines of cases
const case_op expand_fwd_cases = {
    "mhc_expand_fwd", ROWS_CASE " dtype=bf16", setup, run, oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=1,3 num_streams=1,2,3,4,5,6,7,8 hidden=8,9", "num_tokens=0,2 num_streams=2,4 hidden=0,1,7,64,130",
        "num_tokens=2 hidden=2048,2056,7168,4097 values=special",
        "num_tokens=3 num_streams=3,4 hidden=64,65 layout=gaps,outside gap=1,8 offset=0,1,8 values=special",
        "num_tokens=7 hidden=264", "num_tokens=512,513 hidden=8,520 num_streams=2",
        "num_tokens=3 num_streams=1,4,8 hidden=1,4,5,8,64,130 dtype=f16,f32 values=special",
        "num_tokens=3 num_streams=3 hidden=64,65 layout=gaps,outside gap=1,2,8 offset=0,1,4,8 dtype=f16,f32 values=special",
        "num_tokens=2 hidden=1024,1028,4097 dtype=f16,f32 values=special"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=1001 num_streams=2,4,8 hidden=1280,2560,4096,5120,7168,7680",
                                   "num_tokens=80000 hidden=7168", "num_tokens=70000 hidden=100"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=4096,8192 hidden=7168,5120,2560", "num_tokens=128 hidden=7168",
        "num_tokens=4096 hidden=6144,4096,1280"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8 hidden=7168"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_streams} hidden={hidden}"),
};
// clang-format on
