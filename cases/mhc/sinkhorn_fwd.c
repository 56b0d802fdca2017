/* SPDX-License-Identifier: MIT */
#include "cases/mhc/common/mhc_cases.h"

enum { X, OUT };

static tgl_status setup(case_problem *c)
{
    const int64_t n = case_int(c, "num_streams"), shape[] = { case_int(c, "num_tokens"), n, n };
    const tgl_mhc_params params = { .has_sinkhorn_eps = true,
                                    .sinkhorn_eps = (float)mhc_number(c, "eps"),
                                    .sinkhorn_repeat = case_int(c, "repeat") };
    memcpy(c->scalars, &params, sizeof params);
    const bool is_in_place = case_int(c, "in_place");
    case_tensor *x = case_add(c, X, is_in_place ? "out" : "x", is_in_place ? CASE_INOUT : CASE_IN, TGL_F32, 3, shape);
    x->fill = mhc_fill_values;
    x->offset = case_int(c, "offset");
    if (!is_in_place) case_add(c, OUT, "out", CASE_OUT, TGL_F32, 3, shape);
    return case_check_word(c, "values", MHC_VALUES);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_sinkhorn_fwd(a->arg[X], a->arg[OUT] ? a->arg[OUT] : a->arg[X], (const void *)a->problem->scalars,
                                a->stream);
}

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    const tgl_mhc_params *params = (const void *)c->scalars;
    case_tensor *x = &c->tensors[X], *out = c->tensors[OUT].name ? &c->tensors[OUT] : x;
    const int64_t n = x->shape[1], repeat = params->sinkhorn_repeat ? params->sinkhorn_repeat : 20;
    for (int64_t t = begin; t < end; t++) {
        float e[64];
        for (int64_t k = 0; k < n * n; k++) e[k] = mhc_at(x, (int64_t[]){ t, k / n, k % n });
        mhc_sinkhorn_of(e, n, repeat, params->sinkhorn_eps);
        for (int64_t k = 0; k < n * n; k++) mhc_put(out, (int64_t[]){ t, k / n, k % n }, (double)e[k]);
    }
}

static void oracle(case_problem *c)
{
    const int64_t *shape = c->tensors[X].shape;
    case_parallel(shape[0], 100 * shape[1] * shape[1] * case_int(c, "repeat"), oracle_tokens, c);
}

static int64_t bytes(const case_problem *c) { return 2 * case_tensor_bytes(&c->tensors[X]); }

// clang-format off: lines of cases
const case_op sinkhorn_fwd_cases = {
    "mhc_sinkhorn_fwd", "num_tokens= num_streams=4 repeat=20 eps=1e-6 values=normal offset=0 in_place=0", setup, run,
    oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,2,31,32,33,70 num_streams=1,2,3,4,5,6,7,8 repeat=1,2,10",
        "num_tokens=40 num_streams=1,3,4,8 values=wide,huge,equal,masked,special eps=1e-6,1e-2 repeat=1,20",
        "num_tokens=33 num_streams=2,4,5,6 offset=1,4 in_place=0,1 repeat=3",
        "num_tokens=5 repeat=50,100 eps=0,1e-20,1e-6", "num_tokens=300 repeat=20"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=100003 num_streams=3,4,8 repeat=10,20", "num_tokens=150000000"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=128,4096,8192 repeat=10,20"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_comb_streams}"),
};
// clang-format on
