/* SPDX-License-Identifier: MIT */
#include "cases/mhc/common/gates_cases.h"

static tgl_status setup(case_problem *c)
{
    TGL_TRY(gates_add_inputs(c, true));
    TGL_TRY(gates_add_outputs(c, "a"));
    return gates_add_grads(c);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_head_compute_mix_bwd(a->arg[GATES_MIXES], a->arg[GATES_SCALE], a->arg[GATES_BASE],
                                        a->arg[GATES_GRAD_PRE], a->arg[GATES_GRAD_MIXES], a->arg[GATES_GRAD_SCALE],
                                        a->arg[GATES_GRAD_BASE], a->workspace, a->workspace_bytes, a->stream);
}

static size_t workspace(const case_arguments *a)
{
    return tgl_mhc_head_compute_mix_bwd_workspace_size(a->arg[GATES_MIXES]);
}

// clang-format off: lines of cases
const case_op head_compute_mix_bwd_cases = {
    "mhc_head_compute_mix_bwd", GATES_CASE, setup, run, gates_oracle_bwd, case_all_bytes, workspace,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,2,63,64,65,200 num_streams=1,2,3,4,5,6,7,8",
        "num_tokens=70 num_streams=3,4 values=wide,huge,masked,special gap=0,1,20", "num_tokens=3000 offset=1"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=100003 num_streams=1,2,3,4,8", "num_tokens=540000000"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=128,4096,8192"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_head_streams}"),
};
// clang-format on
