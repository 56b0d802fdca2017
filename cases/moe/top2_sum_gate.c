/* SPDX-License-Identifier: MIT */
#include "cases/moe/common/gate.h"

// clang-format off: lines of cases
const case_op top2_sum_gate_cases = {
    "moe_top2_sum_gate", GATE_SIZES GATE_GROUPS GATE_REST GATE_CHOICE,
    gate_setup, gate_run, gate_oracle, gate_bytes, NULL,
    .has_narrow_oracle = true, /* of masked and fixed tokens */
    .lists[CASE_CHECK] = CASE_LINES(
        /* models, with every scoring function */
        "num_tokens=13 num_experts=72,32,64,96,16,36,108,128,144 num_topk=6 "
        "scoring=sigmoid,sqrtsoftplus,softmax",
        "num_tokens=13 num_experts=256 num_topk=8 scoring=sigmoid,sqrtsoftplus,softmax,identity",
        "num_tokens=13 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4,8 "
        "scoring=sigmoid,sqrtsoftplus,softmax,identity",
        "num_tokens=7 num_experts=384 num_topk=6 scoring=sqrtsoftplus,softmax",
        /* any number of tokens */
        "num_tokens=0,1,2,3,4,5,8,9,31,33,65,129,601 num_experts=256 num_topk=8 num_groups=8 "
        "num_topk_groups=4",
        "num_tokens=0,1,2,3,5,9,33,65,603 num_experts=256 num_topk=8 scoring=sqrtsoftplus",
        "num_tokens=600 num_experts=64 num_topk=6 scoring=sqrtsoftplus",
        /* any number of experts */
        "num_tokens=5 num_experts=1,2,3,7,31,33,63 num_topk=1 scoring=identity",
        "num_tokens=5 num_experts=63,65,127,129,255,257,383,385,511,512,513,1000,1023,1024,1025 "
        "num_topk=6 scoring=identity",
        "num_tokens=3 num_experts=9,33,127,257,1000,1025,2050 num_topk=8 scoring=sqrtsoftplus "
        "values=near bias=none",
        "num_tokens=2 num_experts=4096 num_topk=8,33 scoring=sigmoid,softmax values=near bias=none",
        "num_tokens=2 num_experts=6144 num_topk=8 scoring=identity values=normal,ties bias=none",
        /* equal keys at every size: the first experts */
        "num_tokens=1 num_experts=6,31,32,33,63,64,65,127,128,129,255,256,257,300,512,900,1024,1025,2000 "
        "num_topk=6 scoring=identity values=zero bias=zero",
        "num_tokens=1 num_experts=33,64,129,257,1024,1025,2000 num_topk=33 scoring=identity values=zero "
        "bias=zero",
        /* any number of picks */
        "num_tokens=5 num_experts=40 num_topk=0,1,2,9,31,32,33,40 scoring=sqrtsoftplus unmapped=packed",
        "num_tokens=5 num_experts=40 num_topk=0 scoring=sqrtsoftplus unmapped=packed fix=some",
        "num_tokens=3 num_experts=256 num_topk=32,33,255,256 values=descending bias=none",
        "num_tokens=3 num_experts=40 num_topk=31,40 num_shared_experts=1,2 replicas=3 "
        "shared_weight=none,0.4 scoring=sqrtsoftplus",
        "num_tokens=2 num_experts=1025 num_topk=1025 scoring=identity values=ties",
        /* groups */
        "num_tokens=9 num_experts=64 num_topk=6 num_groups=1 num_topk_groups=1",
        "num_tokens=9 num_experts=72 num_topk=6 num_groups=4,8,12,24,36 num_topk_groups=3",
        "num_tokens=9 num_experts=72 num_topk=6 num_groups=12 num_topk_groups=3 "
        "scoring=sqrtsoftplus,softmax,identity bias=none",
        "num_tokens=9 num_experts=72 num_topk=6 num_groups=12 num_topk_groups=3 "
        "scoring=softmax,identity values=near bias=none",
        "num_tokens=9 num_experts=32,64 num_topk=6 num_groups=32 num_topk_groups=6,31",
        /* groups of one */
        "num_tokens=5 num_experts=64 num_topk=5 num_groups=64 num_topk_groups=5,40 "
        "scoring=sigmoid,identity values=normal,ties bias=none",
        "num_tokens=5 num_experts=264 num_topk=6 num_groups=33,66,88,132 num_topk_groups=4 "
        "scoring=sqrtsoftplus,identity",
        "num_tokens=5 num_experts=256 num_topk=6 num_groups=2,4,16,32 num_topk_groups=2",
        "num_tokens=5 num_experts=384,896 num_topk=6 num_groups=8 num_topk_groups=3",   /* 3 and 7 lists */
        "num_tokens=3 num_experts=1000 num_topk=8 num_groups=8,125 num_topk_groups=3",
        "num_tokens=3 num_experts=2048 num_topk=8 num_groups=8,64 num_topk_groups=3",
        "num_tokens=2 num_experts=6144 num_topk=8 num_groups=96,6144 num_topk_groups=8 scoring=identity "
        "values=normal,ties bias=none",
        "num_tokens=9 num_experts=256 num_topk=128 num_groups=8 num_topk_groups=4 values=descending "
        "bias=none",
        "num_tokens=9 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 "
        "values=ties,equal,zero,few_finite bias=none,zero scoring=sigmoid,sqrtsoftplus,identity",
        "num_tokens=9 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 "
        "values=special,saturated,coarse,bits scoring=identity",
        /* ties, special values, values where the functions saturate */
        "num_tokens=9 num_experts=36,144,1025 num_topk=6 values=ties,equal,zero,few_finite,special "
        "bias=none,zero scoring=sigmoid,sqrtsoftplus,identity",
        "num_tokens=9 num_experts=36,144,1025 num_topk=6 values=ties,equal,zero,special_but_inf "
        "bias=none,small,large scoring=softmax",
        "num_tokens=9 num_experts=256 num_topk=8 values=saturated,branch,deep bias=none,zero "
        "scoring=sigmoid,sqrtsoftplus",
        "num_tokens=9 num_experts=128,256 num_topk=1,6 values=high_last bias=large scoring=sqrtsoftplus",
        "num_tokens=9 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 values=saturated,high_last "
        "bias=large scoring=sqrtsoftplus",
        "num_tokens=9 num_experts=36,144,1025 num_topk=6 values=normal,ties bias=disabled,few "
        "scoring=sigmoid,softmax,identity",
        "num_tokens=9 num_experts=64 num_topk=40 values=ties,special bias=special,disabled "
        "scoring=identity",
        "num_tokens=9 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 bias=disabled,few "
        "values=exact scoring=sigmoid,sqrtsoftplus,softmax",
        /* keys that only exact scores can tell apart */
        "num_tokens=21 num_experts=36,72,144,1025 num_topk=6 values=exact bias=near "
        "scoring=sigmoid,sqrtsoftplus,softmax,identity",
        "num_tokens=21 num_experts=256 num_topk=8 num_groups=0 values=exact bias=near "
        "scoring=sigmoid,sqrtsoftplus,softmax,identity",
        "num_tokens=21 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 values=exact bias=near "
        "scoring=sigmoid,sqrtsoftplus,softmax,identity",
        "num_tokens=130 num_experts=256 num_topk=6 num_groups=4 num_topk_groups=2 values=exact bias=near "
        "scoring=sqrtsoftplus,identity",        /* more lanes a group than groups */
        "num_tokens=21 num_experts=36,72,144 num_topk=6 values=near bias=none "
        "scoring=sigmoid,sqrtsoftplus,softmax,identity",
        "num_tokens=21 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 values=close,coarse "
        "bias=zero scoring=softmax,identity",
        "num_tokens=9 num_experts=256 num_topk=8 scoring=softmax bias=large,near",
        /* slots, maps and ranks */
        "num_tokens=23 num_experts=72 num_topk=6 num_shared_experts=1 replicas=33 map=identity "
        "num_ep_ranks=4 num_tp_ranks=2 tp_rank=0,1 mask=tail fix=none,all unmapped=packed",
        "num_tokens=23 num_experts=256 num_topk=8 num_shared_experts=2 replicas=33 map=identity "
        "num_groups=8 num_topk_groups=4,8 num_ep_ranks=4 num_tp_ranks=2 tp_rank=0,1",
        "num_tokens=40 num_experts=64 num_topk=6 num_shared_experts=0,1,2,5 replicas=7 ep_rank=0,3 "
        "map=random,wild dtype=i64,i32",
        "num_tokens=40 num_experts=61 num_topk=6 replicas=1,2,5 num_ep_ranks=5,9 num_tp_ranks=1,3 "
        "tp_rank=0 map=random,wild",
        "num_tokens=40 num_experts=60 num_topk=6 num_ep_ranks=1,4,7,60 num_tp_ranks=3 tp_rank=0,1,2 "
        "dtype=i32",
        "num_tokens=40 num_experts=60 num_topk=6 num_shared_experts=3 replicas=4 ep_rank=1000000007 "
        "num_ep_ranks=7 num_tp_ranks=2 tp_rank=1 mask=some fix=some unmapped=gap fixed=beyond",
        "num_tokens=9 num_experts=1000,1030 num_topk=8 num_shared_experts=1 replicas=2 num_ep_ranks=8 "
        "num_tp_ranks=2 tp_rank=1 mask=some fix=some unmapped=packed fixed=beyond",
        /* masks */
        "num_tokens=37 num_experts=64,144 num_topk=6 mask=all,no,some,tail fix=none,all,no,some "
        "unmapped=packed fixed=valid,beyond",
        "num_tokens=11 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 mask=some fix=some "
        "unmapped=packed,half,gap fixed=beyond,bits",
        "num_tokens=11 num_experts=72 num_topk=6 mask=some fix=some unmapped=packed,half,gap "
        "fixed=beyond,bits dtype=i32",
        "num_tokens=600 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 mask=some fix=some "
        "unmapped=gap fixed=beyond num_shared_experts=1 replicas=4 num_ep_ranks=4 num_tp_ranks=2",
        "num_tokens=11 num_experts=40 num_topk=33 mask=some fix=some unmapped=half fixed=beyond "
        "dtype=i64,i32",
        "num_tokens=11 num_experts=40 num_topk=6 mask=some fix=all unmapped=packed "
        "values=special,saturated,deep scoring=sigmoid,sqrtsoftplus,identity",
        "num_tokens=11 num_experts=40 num_topk=6 fix=all unmapped=packed values=special_but_inf "
        "scoring=softmax",
        /* excluded tokens: few, with a map, in groups, many, in the wide kernel */
        "num_tokens=37 num_experts=144 num_topk=6 mask=some fix=none,some unmapped=packed " GATE_EXCLUDED,
        "num_tokens=37 num_experts=144 num_topk=6 mask=some fix=some unmapped=gap num_shared_experts=2 "
        "replicas=33 map=random,wild bias=none scoring=sigmoid " GATE_EXCLUDED,
        "num_tokens=13 num_experts=256 num_topk=8 mask=some fix=some unmapped=half num_shared_experts=1 "
        "replicas=4 map=wild scoring=softmax,identity " GATE_EXCLUDED,
        "num_tokens=11 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 mask=some fix=some "
        "unmapped=packed scoring=sigmoid,softmax " GATE_EXCLUDED,
        "num_tokens=9 num_experts=1025 num_topk=6 mask=some fix=some unmapped=packed "
        "num_shared_experts=1 replicas=2 map=wild scoring=sigmoid " GATE_EXCLUDED,
        "num_tokens=9 num_experts=40 num_topk=33 mask=some fix=some unmapped=packed "
        "scoring=sigmoid " GATE_EXCLUDED,
        "num_tokens=600 num_experts=257 num_topk=6 mask=some fix=some unmapped=gap num_shared_experts=2 "
        "replicas=5 map=wild bias=disabled scoring=identity excluded=nan,wild",
        /* weights */
        "num_tokens=11 num_experts=64 num_topk=6 factor=none,1,2.5,0,-1 renormalize=0,1 "
        "scoring=sigmoid,identity",
        "num_tokens=11 num_experts=64 num_topk=6 num_shared_experts=1 replicas=2 "
        "shared_weight=none,0,0.4 factor=2.5 renormalize=0,1 scoring=sqrtsoftplus,softmax",
        "num_tokens=11 num_experts=64 num_topk=6 values=magnitudes,bits scoring=identity",
        /* layouts */
        "num_tokens=9 num_experts=72,144 num_topk=6 layout=half,gap,repeated offset=0,1,2,3 "
        "out_offset=0,1 dtype=i64,i32",
        "num_tokens=9 num_experts=1026 num_topk=6 layout=gap,repeated offset=0,1",
        "num_tokens=600 num_experts=257 num_topk=6 layout=gap offset=1 scoring=identity",
        "num_tokens=520 num_experts=512,1000 num_topk=1 scoring=softmax",
        /* top2_sum_gate_many.cu at its thresholds; its test forces it on fewer tokens, and more cases are slow */
        "num_tokens=4097 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 mask=some fix=some "
        "unmapped=packed num_shared_experts=1 replicas=3 dtype=i32 excluded=nan values=ties bias=none",
        "num_tokens=600 num_experts=257 num_topk=6 values=special bias=none scoring=identity,sqrtsoftplus",
        "num_tokens=600 num_experts=257 num_topk=6 values=exact bias=near scoring=sigmoid",
        /* ep_rank + t * 23333 passes 2^31 and 2^32; the slow list and hash_gate's do so by tokens */
        "num_tokens=9,260 num_experts=16 num_topk=6 num_shared_experts=1 replicas=7 "
        "ep_rank=2147400000,4294900000,9223372036854000000",
        "num_tokens=9 num_experts=40 num_topk=33 replicas=7 ep_rank=2147400000,4294900000"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=600 num_experts=257 num_topk=6 mask=some fix=some unmapped=gap num_shared_experts=2 "
        "replicas=5 map=random,wild bias=disabled scoring=identity " GATE_EXCLUDED,
        "num_tokens=4100 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 mask=some "
        "fix=some unmapped=packed num_shared_experts=1 replicas=3 dtype=i32 excluded=zeros,nan",
        "num_tokens=2203,4100 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 dtype=i32 "
        "values=normal,ties bias=none",
        "num_tokens=600 num_experts=257 num_topk=6 layout=packed,gap,repeated offset=0,1 "
        "values=normal,ties,equal bias=none scoring=identity",
        "num_tokens=600 num_experts=257 num_topk=6 values=near,special bias=none scoring=sigmoid,sqrtsoftplus",
        "num_tokens=600 num_experts=257 num_topk=6 values=exact bias=near scoring=sigmoid,sqrtsoftplus",
        "num_tokens=4001 num_experts=72,32,64,96,16,36,108,128,144 num_topk=6 mask=none,tail "
        "num_ep_ranks=4 num_tp_ranks=2 tp_rank=0,1 scoring=sigmoid,sqrtsoftplus,softmax",
        "num_tokens=4001,8001 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4,8 "
        "scoring=sigmoid,sqrtsoftplus,softmax,identity",
        "num_tokens=4001 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 fix=some mask=some "
        "unmapped=gap num_shared_experts=2 replicas=33 num_ep_ranks=4 num_tp_ranks=2 tp_rank=1 "
        "scoring=sigmoid,sqrtsoftplus,softmax,identity",
        "num_tokens=8001 num_experts=256,384 num_topk=8 values=near bias=none "
        "scoring=sigmoid,sqrtsoftplus,softmax,identity",
        "num_tokens=8001 num_experts=256,384 num_topk=8 values=exact bias=near "
        "scoring=sigmoid,sqrtsoftplus,softmax,identity",
        "num_tokens=4001 num_experts=384,512,1000,1025,4096 num_topk=6,8 layout=packed,gap "
        "scoring=sigmoid,sqrtsoftplus",
        "num_tokens=200000 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4",
        "num_tokens=8011 num_experts=144 num_topk=6 num_shared_experts=2 replicas=33 mask=tail values=zero "
        "bias=none",
        /* t * 23333 passes 2^31 */
        "num_tokens=92200,200000 num_experts=16 num_topk=4 num_shared_experts=1 replicas=7 ep_rank=5 "
        "dtype=i64,i32",
        "num_tokens=92200 num_experts=16 num_topk=4 replicas=7 fix=all unmapped=packed",
        "num_tokens=32780 num_experts=16 num_topk=6 layout=far",    /* logits past 2^31 elements */
        "num_tokens=3 num_experts=100000 num_topk=8 values=near bias=none num_groups=0 "
        "scoring=softmax,identity"),
    /* sizes published for other libraries, then decoding, other models and functions */
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,4096,8192,32768 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4",
        "num_tokens=128,4096 num_experts=256 num_topk=8 scoring=sqrtsoftplus",
        "num_tokens=128,4096 num_experts=384 num_topk=6 scoring=sqrtsoftplus",
        "num_tokens=16,64,256 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4",
        "num_tokens=1,8192,32768 num_experts=256 num_topk=8 scoring=sqrtsoftplus",
        "num_tokens=1,64,256,8192,32768 num_experts=384 num_topk=6 scoring=sqrtsoftplus",
        "num_tokens=128,4096 num_experts=64,128 num_topk=6 scoring=sigmoid,softmax",
        "num_tokens=128,4096 num_experts=256 num_topk=8 scoring=softmax",
        "num_tokens=128 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 num_shared_experts=1 "
        "replicas=33 num_ep_ranks=4 num_tp_ranks=2 mask=tail unmapped=packed",
        /* the TileKernels benchmark: 32 tokens and 4 of padding */
        "num_tokens=36 num_experts=72 num_topk=6 mask=four",
        "num_tokens=36 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 mask=four"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 num_experts=16,32,36,64,72,96,108,128,144 num_topk=6",
        "num_tokens=64 num_experts=256 num_topk=8 num_groups=0 "
        "scoring=sigmoid,sqrtsoftplus,softmax,identity dtype=i64,i32",
        "num_tokens=64 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 "
        "scoring=sigmoid,sqrtsoftplus,softmax,identity",
        "num_tokens=64 num_experts=72 num_topk=6 num_groups=4 num_topk_groups=2 "
        "scoring=sigmoid,sqrtsoftplus,softmax,identity",
        "num_tokens=64 num_experts=384,512,1000 num_topk=6 scoring=sqrtsoftplus,softmax",
        "num_tokens=64 num_experts=1,8,33,1024 num_topk=1",
        "num_tokens=64 num_experts=1025,4096 num_topk=8 scoring=sigmoid,sqrtsoftplus,softmax,identity "
        "dtype=i64,i32",
        "num_tokens=64 num_experts=256 num_topk=32,33,256",
        "num_tokens=64 num_experts=264 num_topk=6 num_groups=33,132 num_topk_groups=4",
        "num_tokens=64 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 mask=tail fix=all "
        "unmapped=packed num_shared_experts=1 replicas=33 num_ep_ranks=4 num_tp_ranks=2"),
    .models = CASE_LINES(
        "num_tokens=4096 num_experts={num_experts} num_topk={num_topk} num_groups={num_groups} "
        "num_topk_groups={num_topk_groups} scoring={scoring}"),
};
// clang-format on
