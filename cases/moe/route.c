/* SPDX-License-Identifier: MIT
 * route.c - the oracle is those of top2_sum_gate and get_fused_mapping, one after the other. With apart=1
 * these two are called instead of route, to compare; with counts=1 the mapping has all its optional
 * outputs. */
#include "cases/moe/common/gate.h"
#include "cases/moe/common/route.h"
#include "cases/moe/common/routing.h"
#include "core/status.h"

enum { MAPPING = NUM_OF_GATE }; /* the first tensor of mapping_add() */

static tgl_status setup(case_problem *c)
{
    TGL_TRY(gate_setup(c)); /* writes the params */
    route_scalars *s = route_scalars_of(c);
    s->alignment = case_int(c, "alignment"), s->is_apart = case_int(c, "apart") != 0;
    const int64_t *shape = c->tensors[IDX].shape, num_experts = case_int(c, "num_mapped_experts");
    mapping_sizes sizes = { shape[0], shape[1], num_experts ? num_experts : c->tensors[LOGITS].shape[1],
                            case_int(c, "num_positions"), .has_counts = case_int(c, "counts") != 0 };
    sizes.has_host = sizes.has_counts;
    if (sizes.num_positions < 0) sizes.num_positions = shape[0] * shape[1] + (s->alignment - 1) * sizes.num_experts;
    mapping_add(c, MAPPING, &sizes);
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    const tgl_moe_mapping m = mapping_of(a, MAPPING);
    const route_scalars *s = (const void *)a->problem->scalars;
    if (s->is_apart) {
        TGL_TRY(gate_run(a));
        return tgl_moe_get_fused_mapping(a->arg[IDX], &m, s->alignment, a->workspace, a->workspace_bytes, a->stream);
    }
    return tgl_moe_route(a->arg[LOGITS], a->arg[BIAS], a->arg[MASK], a->arg[FIX], a->arg[MAP], a->arg[COUNT],
                         a->arg[UNMAPPED], a->arg[IDX], a->arg[WEIGHTS], &m, s->alignment, &s->params, a->workspace,
                         a->workspace_bytes, a->stream);
}

static size_t workspace(const case_arguments *a)
{
    const tgl_moe_mapping m = mapping_of(a, MAPPING);
    return tgl_moe_route_workspace_size(a->arg[LOGITS], a->arg[IDX], &m);
}

static void oracle(case_problem *c)
{
    gate_oracle(c);
    mapping_answer(c, MAPPING, &c->tensors[IDX], route_scalars_of(c)->alignment);
}

static int64_t bytes(const case_problem *c)
{
    int64_t bytes = gate_bytes(c);
    for (int i = 0; i < NUM_OF_MAPPING; i++) bytes += gate_bytes_of(c, MAPPING + i);
    return bytes;
}

// clang-format off: lines of cases
const case_op route_cases = {
    "moe_route",
    GATE_SIZES GATE_GROUPS GATE_REST GATE_CHOICE
    " num_mapped_experts=0 alignment=128 num_positions=-1 counts=0 apart=0",
    setup, run, oracle, bytes, workspace,
    .uses_all_sms = true,
    .has_narrow_oracle = true, /* of masked and fixed tokens */
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,2,4,5,9,31,33,48,49,64,128,129 num_experts=256 num_topk=8 num_groups=8 "
        "num_topk_groups=4",
        "num_tokens=255,256,257,300 num_experts=64 num_topk=6 counts=1",
        "num_tokens=5,21 num_experts=1000,1025 num_topk=6 scoring=softmax counts=0,1 alignment=16",
        "num_tokens=21 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 alignment=1,3,64,256",
        "num_tokens=8,33 num_experts=40 num_topk=0,1,32,33 alignment=8 values=descending bias=none",
        "num_tokens=33 num_experts=40 num_topk=31 num_shared_experts=1,2 replicas=3 alignment=8 "
        "num_mapped_experts=42",
        "num_tokens=50 num_experts=64 num_topk=6 num_positions=0,1,7,100,299,300,301,400 alignment=1,4 "
        "counts=1",
        "num_tokens=50 num_experts=64 num_topk=6 num_mapped_experts=1,31,63,65,300,1025,2050 alignment=4 "
        "counts=1",
        "num_tokens=50 num_experts=64 num_topk=6 num_shared_experts=1 replicas=5 num_ep_ranks=4 "
        "num_tp_ranks=2 tp_rank=0,1 num_mapped_experts=34 alignment=16 map=random,wild mask=some "
        "fix=none,some unmapped=gap fixed=beyond counts=1 dtype=i64,i32",
        "num_tokens=50 num_experts=64 num_topk=6 mask=all,no,some,tail fix=none,some unmapped=packed "
        "alignment=16",
        "num_tokens=129 num_experts=36 num_topk=6 values=equal,zero,few_finite,special bias=none "
        "alignment=16",
        "num_tokens=40 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 values=exact bias=near "
        "scoring=sigmoid,sqrtsoftplus",
        "num_tokens=9 num_experts=72 num_topk=6 layout=half,gap,repeated offset=0,1,3 alignment=4",
        "num_tokens=9 num_experts=72 num_topk=6 layout=gap offset=0,1 out_offset=0,1 dtype=i32 alignment=4",
        "num_tokens=5,40 num_experts=384,512 num_topk=6 scoring=identity alignment=16",
        "num_tokens=256 num_experts=72 num_topk=1 values=equal bias=none counts=1",  /* all to one expert */
        /* more words than a cluster's warps mark at once */
        "num_tokens=100 num_experts=64 num_topk=10 alignment=3 counts=1",
        "num_tokens=128 num_experts=64 num_topk=32 alignment=1",
        /* few enough for every block to route all, and too many for a cluster */
        "num_tokens=3,150 num_experts=64 num_topk=6 num_shared_experts=1 replicas=5 num_ep_ranks=4 "
        "num_tp_ranks=2 num_mapped_experts=34 alignment=16 map=random mask=some fix=some unmapped=gap "
        "fixed=beyond counts=1 scoring=softmax,identity,sqrtsoftplus dtype=i32",
        "num_tokens=4,130 num_experts=384,512,1000 num_topk=6 scoring=identity alignment=16",
        "num_tokens=4,130 num_experts=40 num_topk=32 alignment=8 values=descending bias=none",
        /* excluded tokens, in each of the three kernels */
        "num_tokens=4,50,150 num_experts=64 num_topk=6 num_shared_experts=1 replicas=5 num_ep_ranks=4 "
        "num_tp_ranks=2 num_mapped_experts=34 alignment=16 map=wild mask=some fix=some unmapped=gap "
        "dtype=i32 scoring=identity excluded=nan,inf,wild",
        "num_tokens=50,150 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 mask=some fix=some "
        "unmapped=packed excluded=zeros,ties,denormal",
        /* on many SMs a block past those of the experts */
        "num_tokens=256 num_experts=1024 num_topk=6",
        "num_tokens=1,128 num_experts=256 num_topk=6 num_positions=131073"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=4,50,150 num_experts=64 num_topk=6 num_shared_experts=1 replicas=5 num_ep_ranks=4 "
        "num_tp_ranks=2 num_mapped_experts=34 alignment=16 map=wild mask=some fix=some unmapped=gap "
        "dtype=i32 scoring=identity,softmax " GATE_EXCLUDED,
        "num_tokens=9 num_experts=72 num_topk=6 layout=half,gap,repeated offset=0,1,3 "
        "out_offset=0,1 dtype=i64,i32 alignment=4",
        "num_tokens=21 num_experts=72,16,36,144,1000,1024,1025 num_topk=6 "
        "scoring=sigmoid,softmax,identity counts=0,1 alignment=16",
        "num_tokens=33 num_experts=40 num_topk=2,31,40 alignment=8 values=descending bias=none",
        "num_tokens=40 num_experts=264 num_topk=8 num_groups=33 num_topk_groups=4",
        "num_tokens=1,2,3,15,16,17,63,64,65,127,128,129,191,255,256,257,511,1024,4001 "
        "num_experts=72,256,384 num_topk=6,8 scoring=sigmoid,sqrtsoftplus,softmax dtype=i64,i32 counts=0,1",
        "num_tokens=256,257 num_experts=1024,1025 num_topk=32,33 values=descending bias=none counts=1"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,8,16,32,64,128,256 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4",
        "num_tokens=1,8,16,32,64,128,256 num_experts=384 num_topk=6 scoring=sqrtsoftplus",
        "num_tokens=1,128 num_experts=256 num_topk=8 scoring=sqrtsoftplus",
        "num_tokens=128 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 dtype=i32",
        /* the same as two ops */
        "num_tokens=1,8,16,32,64,128,256 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 apart=1",
        "num_tokens=1,8,16,32,64,128,256 num_experts=384 num_topk=6 scoring=sqrtsoftplus apart=1"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 num_experts=36,72,128,256 num_topk=6 scoring=sigmoid,sqrtsoftplus,softmax,"
        "identity dtype=i64,i32",
        "num_tokens=64 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 "
        "scoring=sigmoid,sqrtsoftplus,softmax,identity dtype=i64,i32 counts=0,1",
        "num_tokens=64 num_experts=384,512,1000,1024,1025 num_topk=8 scoring=sqrtsoftplus",
        "num_tokens=64 num_experts=256 num_topk=8,32,33 num_mapped_experts=8,1024,2048"),
    .models = CASE_LINES(
        "num_tokens=4096 num_experts={num_experts} num_topk={num_topk} num_groups={num_groups} "
        "num_topk_groups={num_topk_groups} scoring={scoring}"),
};
// clang-format on
