/* SPDX-License-Identifier: MIT */
#include "cases/mhc/common/gates_cases.h"

static tgl_status setup(case_problem *c)
{
    TGL_TRY(gates_add_inputs(c, false));
    TGL_TRY(gates_add_outputs(c, case_text(c, "given")));
    return gates_add_grads(c);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_pre_split_mixes_bwd(a->arg[GATES_MIXES], a->arg[GATES_SCALE], a->arg[GATES_BASE],
                                       a->arg[GATES_GRAD_PRE], a->arg[GATES_GRAD_POST], a->arg[GATES_GRAD_COMB],
                                       a->arg[GATES_GRAD_MIXES], a->arg[GATES_GRAD_SCALE], a->arg[GATES_GRAD_BASE],
                                       (const void *)a->problem->scalars, a->workspace, a->workspace_bytes, a->stream);
}

static size_t workspace(const case_arguments *a)
{
    return tgl_mhc_pre_split_mixes_bwd_workspace_size(a->arg[GATES_MIXES]);
}

// clang-format off: lines of cases
const case_op pre_split_mixes_bwd_cases = {     /* given: gradients of pre (a), post (b), comb (c) */
    "mhc_pre_split_mixes_bwd", GATES_SPLIT_CASE " given=abc", setup, run, gates_oracle_bwd, case_all_bytes, workspace,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,2,63,64,65,200 num_streams=1,2,3,4,5,6,7,8 comb=0,1",
        "num_tokens=70 num_streams=3,4 values=wide,huge,masked,special post_mult=0,1",
        "num_tokens=70 gap=0,1,8 offset=0,1 given=abc,a,b,c,none",
        "num_tokens=3000,11100"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=100003 num_streams=1,2,3,4,8 comb=0,1", "num_tokens=90000000"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=128,4096,8192"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8 comb=0,1"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_streams} comb={mhc_comb}"),
};
// clang-format on
