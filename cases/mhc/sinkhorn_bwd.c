/* SPDX-License-Identifier: MIT */
#include "cases/mhc/common/mhc_cases.h"

enum { GRAD_OUT, X, GRAD_X };

static tgl_status setup(case_problem *c)
{
    const int64_t n = case_int(c, "num_streams"), shape[] = { case_int(c, "num_tokens"), n, n };
    const tgl_mhc_params params = { .has_sinkhorn_eps = true,
                                    .sinkhorn_eps = (float)mhc_number(c, "eps"),
                                    .sinkhorn_repeat = case_int(c, "repeat") };
    memcpy(c->scalars, &params, sizeof params);
    TGL_TRY(case_check_word(c, "in_place", "no grad x"));
    const int in_place = case_word(c, "in_place", "no grad x");
    case_tensor *grad = case_add(c, GRAD_OUT, in_place == 1 ? "grad_x" : "grad_out",
                                 in_place == 1 ? CASE_INOUT : CASE_IN, TGL_F32, 3, shape);
    case_tensor *x =
        case_add(c, X, in_place == 2 ? "grad_x" : "x", in_place == 2 ? CASE_INOUT : CASE_IN, TGL_F32, 3, shape);
    grad->fill = case_fill_normal;
    x->fill = mhc_fill_values;
    x->offset = case_int(c, "offset");
    if (!in_place) case_add(c, GRAD_X, "grad_x", CASE_OUT, TGL_F32, 3, shape);
    return case_check_word(c, "values", MHC_VALUES);
}

static int output_of(const case_problem *c)
{
    return c->tensors[GRAD_X].name ? GRAD_X : c->tensors[X].role == CASE_INOUT ? X : GRAD_OUT;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_sinkhorn_bwd(a->arg[GRAD_OUT], a->arg[X], a->arg[output_of(a->problem)],
                                (const void *)a->problem->scalars, a->stream);
}

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    const tgl_mhc_params *params = (const void *)c->scalars;
    const int64_t n = c->tensors[X].shape[1], repeat = params->sinkhorn_repeat ? params->sinkhorn_repeat : 20;
    float logits[64], d[64];
    for (int64_t t = begin; t < end; t++) {
        for (int64_t k = 0; k < n * n; k++) {
            logits[k] = mhc_at(&c->tensors[X], (int64_t[]){ t, k / n, k % n });
            d[k] = mhc_at(&c->tensors[GRAD_OUT], (int64_t[]){ t, k / n, k % n });
        }
        mhc_sinkhorn_bwd_of(d, logits, n, repeat, params->sinkhorn_eps);
        for (int64_t k = 0; k < n * n; k++)
            mhc_put(&c->tensors[output_of(c)], (int64_t[]){ t, k / n, k % n }, (double)d[k]);
    }
}

static void oracle(case_problem *c)
{
    const int64_t *shape = c->tensors[X].shape;
    case_parallel(shape[0], 300 * shape[1] * shape[1] * case_int(c, "repeat"), oracle_tokens, c);
}

static int64_t bytes(const case_problem *c) { return 3 * case_tensor_bytes(&c->tensors[X]); }

// clang-format off: lines of cases
const case_op sinkhorn_bwd_cases = {
    "mhc_sinkhorn_bwd", "num_tokens= num_streams=4 repeat=20 eps=1e-6 values=normal offset=0 in_place=no", setup, run,
    oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,2,31,32,33,70 num_streams=1,2,3,4,5,6,7,8 repeat=1,2,10",
        "num_tokens=40 num_streams=1,3,4,8 values=wide,huge,equal,masked,special eps=1e-6,1e-2 repeat=1,20",
        "num_tokens=33 num_streams=2,4,5,6 offset=1,4 in_place=no,grad,x repeat=3",
        "num_tokens=5 num_streams=3,4 repeat=31,32,33,62,63,64,100 eps=1e-3", "num_tokens=300 repeat=20 eps=0"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=100003 num_streams=3,4,8 repeat=10,20", "num_tokens=140000000 repeat=2"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=128,4096,8192 repeat=10,20"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_comb_streams}"),
};
// clang-format on
