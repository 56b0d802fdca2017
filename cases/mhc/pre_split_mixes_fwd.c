/* SPDX-License-Identifier: MIT */
#include "cases/mhc/common/gates_cases.h"

static tgl_status setup(case_problem *c)
{
    TGL_TRY(gates_add_inputs(c, false));
    tgl_mhc_params *params = (void *)c->scalars;
    params->has_pre_eps = true, params->pre_eps = (float)mhc_number(c, "pre_eps");
    params->post_eps = (float)mhc_number(c, "post_eps");
    return gates_add_outputs(c, NULL);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_mhc_pre_split_mixes_fwd(a->arg[GATES_MIXES], a->arg[GATES_SCALE], a->arg[GATES_BASE],
                                       a->arg[GATES_PRE_MIX], a->arg[GATES_POST_MIX], a->arg[GATES_COMB],
                                       (const void *)a->problem->scalars, a->stream);
}

// clang-format off: lines of cases
const case_op pre_split_mixes_fwd_cases = {
    "mhc_pre_split_mixes_fwd", GATES_SPLIT_CASE " pre_eps=1e-6 post_eps=0", setup, run, gates_oracle_fwd,
    case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,33,100 num_streams=1,2,3,4,5,6,7,8 comb=0,1",
        "num_tokens=40 num_streams=3,4 values=wide,huge,masked,special post_mult=0,1,2 post_eps=0,1e-6 pre_eps=0,0.01",
        "num_tokens=9 num_streams=4,8 gap=0,1,8 offset=0,1,4", "num_tokens=700"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=100003 num_streams=1,2,3,4,8 comb=0,1", "num_tokens=90000000"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=128,4096,8192"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 num_streams=1,2,3,4,5,6,7,8 comb=0,1"),
    .models = CASE_LINES("num_tokens=4096 num_streams={mhc_streams} comb={mhc_comb}"),
};
// clang-format on
