/* SPDX-License-Identifier: MIT */
#include "cases/mhc/common/gates_cases.h"

static tgl_status setup(case_problem *c)
{
    TGL_TRY(gates_add_inputs(c, false));
    tgl_mhc_params *params = (void *)c->scalars;
    params->has_pre_eps = true, params->pre_eps = (float)mhc_number(c, "pre_eps");
    params->post_eps = (float)mhc_number(c, "post_eps");
    params->has_sinkhorn_eps = true, params->sinkhorn_eps = (float)mhc_number(c, "eps");
    params->sinkhorn_repeat = case_int(c, "repeat");
    TGL_TRY(gates_add_outputs(c, NULL));
    c->tensors[GATES_COMB].name = "comb_mix";
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_split_sinkhorn_fwd(a->arg[GATES_MIXES], a->arg[GATES_SCALE], a->arg[GATES_BASE],
                                      a->arg[GATES_PRE_MIX], a->arg[GATES_POST_MIX], a->arg[GATES_COMB],
                                      (const void *)a->problem->scalars, a->stream);
}

static void oracle(case_problem *c)
{
    const tgl_mhc_params *p = (const void *)c->scalars;
    case_tensor *comb = &c->tensors[GATES_COMB];
    const int64_t n = comb->shape[1];
    gates_oracle_fwd(c); /* comb: the logits */
    for (int64_t t = 0; t < comb->shape[0]; t++) {
        float e[64];
        for (int64_t k = 0; k < n * n; k++) e[k] = mhc_at(comb, (int64_t[]){ t, k / n, k % n });
        mhc_sinkhorn_of(e, n, p->sinkhorn_repeat ? p->sinkhorn_repeat : 20, p->sinkhorn_eps);
        for (int64_t k = 0; k < n * n; k++) mhc_put(comb, (int64_t[]){ t, k / n, k % n }, (double)e[k]);
    }
}

// clang-format off: lines of cases
const case_op split_sinkhorn_fwd_cases = {
    "mhc_split_sinkhorn_fwd", GATES_SPLIT_CASE " pre_eps=1e-6 post_eps=0 repeat=20 eps=1e-6", setup, run, oracle,
    case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,31,32,33,70 num_streams=1,2,3,4,5,6,7,8 repeat=1,2,10",
        "num_tokens=40 num_streams=3,4 values=wide,huge,masked,special post_mult=0,1 post_eps=0,1e-6 eps=1e-2",
        "num_tokens=40 num_streams=4,8 gap=0,1,8 offset=0,1,4 repeat=3", "num_tokens=300"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=100003 num_streams=3,4,8", "num_tokens=90000000 repeat=2"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=128,4096,8192"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_comb_streams}"),
};
// clang-format on
