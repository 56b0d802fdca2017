/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "cases/mhc/common/gates_cases.h"

static tgl_status setup(case_problem *c)
{
    TGL_TRY(gates_add_inputs(c, false));
    tgl_mhc_params *params = (void *)c->scalars;
    params->has_sinkhorn_eps = true, params->sinkhorn_eps = (float)mhc_number(c, "eps");
    params->sinkhorn_repeat = case_int(c, "repeat");
    TGL_TRY(gates_add_outputs(c, case_text(c, "given")));
    if (c->tensors[GATES_GRAD_COMB].name) c->tensors[GATES_GRAD_COMB].name = "grad_comb_mix";
    return gates_add_grads(c);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_split_sinkhorn_bwd(a->arg[GATES_MIXES], a->arg[GATES_SCALE], a->arg[GATES_BASE],
                                      a->arg[GATES_GRAD_PRE], a->arg[GATES_GRAD_POST], a->arg[GATES_GRAD_COMB],
                                      a->arg[GATES_GRAD_MIXES], a->arg[GATES_GRAD_SCALE], a->arg[GATES_GRAD_BASE],
                                      (const void *)a->problem->scalars, a->workspace, a->workspace_bytes, a->stream);
}

static size_t workspace(const case_arguments *a)
{
    return tgl_mhc_split_sinkhorn_bwd_workspace_size(a->arg[GATES_MIXES]);
}

/* That of the gates, with the gradient of logits where that of comb was. */
static void oracle(case_problem *c)
{
    const tgl_mhc_params *p = (const void *)c->scalars;
    case_tensor *grad = &c->tensors[GATES_GRAD_COMB];
    if (!grad->name) {
        gates_oracle_bwd(c);
        return;
    }
    const int64_t tokens = grad->shape[0], n = grad->shape[1], repeat = p->sinkhorn_repeat ? p->sinkhorn_repeat : 20;
    if (tokens == 0) {
        gates_oracle_bwd(c);
        return;
    }
    const size_t bytes = (size_t)(tokens * n * n) * sizeof(float); /* packed; its NaN have payloads, maybe */
    void *first = case_element(grad, (int64_t[]){ 0, 0, 0 }), *given = case_memory(tokens * n * n, sizeof(float));
    memcpy(given, first, bytes);
    for (int64_t t = 0; t < tokens; t++) {
        float logits[64], d[64];
        for (int64_t k = 0; k < n * n; k++) {
            logits[k] = gates_logit(c, t, 2 * n + k);
            d[k] = mhc_at(grad, (int64_t[]){ t, k / n, k % n });
        }
        mhc_sinkhorn_bwd_of(d, logits, n, repeat, p->sinkhorn_eps);
        for (int64_t k = 0; k < n * n; k++) mhc_put(grad, (int64_t[]){ t, k / n, k % n }, (double)d[k]);
    }
    gates_oracle_bwd(c);
    memcpy(first, given, bytes);
    free(given);
}

// clang-format off: lines of cases
const case_op split_sinkhorn_bwd_cases = {      /* given: gradients of pre (a), post (b), comb (c) */
    "mhc_split_sinkhorn_bwd", GATES_SPLIT_CASE " given=abc repeat=20 eps=1e-6", setup, run, oracle, case_all_bytes,
    workspace,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,31,33,64,65,130 num_streams=1,2,3,4,5,6,7,8 repeat=1,2,10",
        "num_tokens=70 num_streams=3,4,8 values=wide,huge,masked,special post_mult=0,1 eps=1e-2",
        "num_tokens=70 num_streams=4,8 gap=0,1,8 offset=0,1,4 repeat=3", "num_tokens=70 given=a,b,c,none repeat=3",
        "num_tokens=5 num_streams=3,4,8 repeat=31,32,33,64 eps=1e-3", "num_tokens=1100 repeat=3"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=100003 num_streams=3,4,8", "num_tokens=90000000 repeat=2"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=128,4096,8192"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_comb_streams}"),
};
// clang-format on
