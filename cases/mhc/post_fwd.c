/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "cases/mhc/common/rows_cases.h"

enum { X, RESIDUAL, POST, COMB, OUT };

static tgl_status setup(case_problem *c)
{
    rows_add(c, X, "x", CASE_IN, false);
    rows_add(c, RESIDUAL, "residual", CASE_IN, true);
    rows_add_mix(c, POST, "post_mix", CASE_IN, 2);
    if (case_int(c, "comb")) rows_add_mix(c, COMB, "comb_mix", CASE_IN, 3);
    rows_add(c, OUT, "out", CASE_OUT, true);
    if (case_int(c, "in_place")) {
        c->tensors[RESIDUAL].role = CASE_INOUT;
        c->tensors[RESIDUAL].name = "out";
        c->num_tensors = OUT;
        c->tensors[OUT].name = NULL;
    }
    return rows_check(c);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_post_fwd(a->arg[X], a->arg[RESIDUAL], a->arg[POST], a->arg[COMB],
                            a->arg[OUT] ? a->arg[OUT] : a->arg[RESIDUAL], a->stream);
}

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    case_tensor *t = c->tensors;
    case_tensor *out = t[OUT].name ? &t[OUT] : &t[RESIDUAL];
    for (int64_t token = begin; token < end; token++)
        for (int64_t k = 0; k < t[X].shape[1]; k++) {
            float made[8];
            const int64_t n = t[RESIDUAL].shape[1];
            for (int64_t o = 0; o < n; o++) {
                made[o] = mhc_at(&t[POST], (int64_t[]){ token, o }) * rows_at(&t[X], token, 0, k);
                if (!t[COMB].name) made[o] += rows_at(&t[RESIDUAL], token, o, k);
                for (int64_t i = 0; t[COMB].name && i < n; i++)
                    made[o] =
                        fmaf(mhc_at(&t[COMB], (int64_t[]){ token, i, o }), rows_at(&t[RESIDUAL], token, i, k), made[o]);
            }
            for (int64_t o = 0; o < n; o++) mhc_put(out, (int64_t[]){ token, o, k }, made[o]);
        }
}

static void oracle(case_problem *c)
{
    case_parallel(c->tensors[0].shape[0], 500 * case_int(c, "hidden"), oracle_tokens, c);
}

static int64_t bytes(const case_problem *c)
{
    return case_all_bytes(c) + (c->tensors[OUT].name ? 0 : case_tensor_bytes(&c->tensors[RESIDUAL]));
}

// clang-format off: lines of cases
const case_op post_fwd_cases = {
    "mhc_post_fwd", ROWS_CASE " in_place=0 comb=1", setup, run, oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=1,3 num_streams=1,2,3,4,5,6,7,8 hidden=8,9", "num_tokens=0,2 num_streams=2,4 hidden=0,1,7,64,130",
        "num_tokens=2 hidden=2048,2056,7168,4097 values=special",
        "num_tokens=3 num_streams=3,4 hidden=64,65 layout=gaps,outside,same gap=1,8 offset=0,1,8 values=special",
        "num_tokens=7 hidden=264",
        "num_tokens=3 num_streams=1,4 hidden=64,65 layout=packed,gaps in_place=1",
        "num_tokens=0,3 num_streams=1,4 hidden=64,65 layout=packed,gaps,same values=special comb=0",
        "num_tokens=2 num_streams=2,3,5,6,7,8 hidden=8,9 comb=0", "num_tokens=3 hidden=64,65 in_place=1 comb=0"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=1001 num_streams=2,4,8 hidden=1280,2560,4096,5120,7168,7680",
                                   "num_tokens=80000 hidden=7168", "num_tokens=70000 hidden=100"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=4096,8192 hidden=7168,5120,2560", "num_tokens=1,128 hidden=7168",
        "num_tokens=128 hidden=4096",
        "num_tokens=4096 hidden=6144,4096,1280", "num_tokens=4096 hidden=6144 comb=0"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8 hidden=7168 comb=0,1"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_streams} hidden={hidden} comb={mhc_comb}"),
};
// clang-format on
