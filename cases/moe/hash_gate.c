/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "cases/moe/common/gate.h"
#include "core/status.h"

enum { INPUT_IDS = NUM_OF_GATE, TID2EID };

static void fill_tid2eid(const case_problem *c, case_tensor *t, uint64_t seed)
{
    enum { VALID, REPEATS, BEYOND, BITS };
    const int kind = case_word(c, "fixed", "valid repeats beyond bits");
    const int64_t experts = c->tensors[LOGITS].shape[1], r = experts > 0 ? experts : 1;
    if (kind == BITS) {
        case_fill_bits(c, t, seed);
        return;
    }
    for (int64_t i = 0; i < t->slots; i++) {
        const int64_t k = i % t->shape[1], id = i / t->shape[1];
        const int64_t any = case_random_below(seed, i, experts + 8) - 4;
        const int64_t expert = kind == VALID ? (id + k) % r : kind == REPEATS ? (id + k / 2) % r : any;
        case_encode(t->dtype, (double)expert, t->storage + i * t->element_bytes);
    }
}

static void fill_ids(const case_problem *c, case_tensor *t, uint64_t seed)
{
    if (case_is(c, "ids", "bits")) case_fill_bits(c, t, seed);
    else case_fill_uniform(c, t, seed);
    if (case_is(c, "excluded", "alike")) return;
    for (int64_t i = 0; i < t->shape[0]; i++) {
        const int64_t wild = gate_wild_index(c->tensors[TID2EID].shape[0], case_random(seed + 1, i));
        if (gate_is_masked(c, i)) memcpy(t->data + i * t->element_bytes, &wild, (size_t)t->element_bytes);
    }
}

static tgl_status setup(case_problem *c)
{
    TGL_TRY(gate_setup_common(c));
    const int64_t t = case_int(c, "num_tokens"), k = case_int(c, "num_topk"), v = case_int(c, "vocabulary");
    const bool is_valid = case_is(c, "ids", "valid");
    case_tensor *ids = case_add(c, INPUT_IDS, "input_ids", CASE_IN, case_dtype(c, "id_dtype"), 1, &t);
    case_tensor *table = case_add(c, TID2EID, "tid2eid", CASE_IN, case_dtype(c, "table_dtype"), 2, (int64_t[]){ v, k });
    ids->fill = fill_ids;
    ids->low = is_valid ? 0 : -(double)v / 4 - 1, ids->high = (double)v + (is_valid ? 0 : (double)v / 4 + 2);
    ids->offset = table->offset = case_int(c, "out_offset");
    table->fill = fill_tid2eid;
    if (!case_is(c, "unmapped", "none")) {
        case_tensor *u =
            case_add(c, UNMAPPED, "unmapped_topk_idx", CASE_OUT, c->tensors[IDX].dtype, 2, (int64_t[]){ t, k });
        TGL_TRY(moe_lay_out(case_text(c, "unmapped"), k, u->strides));
    }
    return gate_choose_logits(c, &c->tensors[LOGITS]);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_moe_hash_gate(a->arg[LOGITS], a->arg[INPUT_IDS], a->arg[TID2EID], a->arg[MASK], a->arg[MAP],
                             a->arg[COUNT], a->arg[UNMAPPED], a->arg[IDX], a->arg[WEIGHTS], gate_params_of(a->problem),
                             a->stream);
}

static int64_t id_at(const case_tensor *ids, int64_t t)
{
    const void *from = case_element(ids, &t);
    return ids->element_bytes == 4 ? *(const int32_t *)from : *(const int64_t *)from;
}

static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    const case_tensor *table = &c->tensors[TID2EID];
    const int64_t num_topk = table->shape[1];
    int64_t *chosen = case_memory(num_topk, sizeof *chosen);
    float *scores = case_memory(num_topk, sizeof *scores);
    for (int64_t t = begin; t < end; t++) {
        const int64_t id = id_at(&c->tensors[INPUT_IDS], t);
        if (gate_is_masked(c, t) || id < 0 || id >= table->shape[0]) {
            gate_put_masked(c, t);
            continue;
        }
        for (int64_t k = 0; k < num_topk; k++) {
            chosen[k] = moe_index_at(table, id, k);
            const bool fits = c->tensors[IDX].dtype == TGL_I64 || chosen[k] == (int32_t)chosen[k];
            if (gate_is_given(c, UNMAPPED)) moe_put_index(&c->tensors[UNMAPPED], t, k, fits ? chosen[k] : -1);
            if (chosen[k] < 0 || chosen[k] >= c->tensors[LOGITS].shape[1]) chosen[k] = -1;
        }
        gate_put_token(c, t, chosen, num_topk, scores);
    }
    free(chosen), free(scores);
}

static void oracle(case_problem *c)
{
    case_parallel(c->tensors[INPUT_IDS].shape[0], 256 * c->tensors[TID2EID].shape[1], oracle_rows, c);
}

static int64_t bytes(const case_problem *c)
{
    const case_tensor *table = &c->tensors[TID2EID];
    const int64_t slots = c->tensors[INPUT_IDS].shape[0] * table->shape[1];
    const int64_t entry = tgl_dtype_bits(tgl_dtype_to_dlpack(table->dtype)) / 8;
    const bool is_softmax = gate_params_of(c)->scoring == TGL_MOE_SOFTMAX; /* which reads the whole row */
    return gate_bytes_of(c, INPUT_IDS) + slots * entry + (is_softmax ? gate_bytes_of(c, LOGITS) : 4 * slots) +
           gate_bytes_of(c, MASK) + gate_bytes_of_map(c) + gate_bytes_of(c, UNMAPPED) + gate_bytes_of(c, IDX) +
           gate_bytes_of(c, WEIGHTS);
}

// clang-format off: lines of cases
const case_op hash_gate_cases = {
    "moe_hash_gate",
    GATE_SIZES "vocabulary= " GATE_REST " ids=valid id_dtype=i64 table_dtype=i32",
    setup, run, oracle, bytes, NULL,
    .has_narrow_oracle = true, /* of masked and fixed tokens */
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,7,64,129 num_experts=256,384 num_topk=1,6,8,31 num_shared_experts=0 "
        "scoring=sqrtsoftplus vocabulary=1000",
        "num_tokens=1,7,64 num_experts=256 num_topk=1,6,8,31,32 num_shared_experts=1,2 replicas=3 "
        "scoring=sqrtsoftplus vocabulary=1000",
        "num_tokens=33 num_experts=256 num_topk=6 vocabulary=300 scoring=sigmoid,sqrtsoftplus,softmax,"
        "identity renormalize=0,1 factor=none,2.5",
        "num_tokens=33 num_experts=40 num_topk=6 vocabulary=100 ids=valid,beyond,bits "
        "fixed=beyond,bits id_dtype=i64,i32 table_dtype=i64,i32 dtype=i64,i32 unmapped=packed",
        "num_tokens=33 num_experts=256 num_topk=6 vocabulary=100 fixed=repeats mask=all,no,some,tail "
        "ids=beyond unmapped=none,packed,half,gap",
        "num_tokens=40 num_experts=60 num_topk=6 vocabulary=100 num_shared_experts=0,1,3 replicas=4 "
        "ep_rank=0,3 num_ep_ranks=8 num_tp_ranks=2 tp_rank=0,1 map=random,wild mask=some unmapped=packed",
        "num_tokens=40 num_experts=60 num_topk=6 vocabulary=100 num_ep_ranks=4 num_tp_ranks=3 "
        "tp_rank=0,1,2",
        "num_tokens=9 num_experts=33 num_topk=0,1,2,3,15,16,17,31,32,33,40,100 vocabulary=50 "
        "unmapped=packed scoring=sqrtsoftplus",
        "num_tokens=9 num_experts=256 num_topk=6 vocabulary=50 fixed=beyond "
        "values=special,saturated,branch,deep scoring=sigmoid,sqrtsoftplus,identity",
        "num_tokens=9 num_experts=1,5,100,1030 num_topk=6 vocabulary=50 fixed=beyond "
        "values=normal,special_but_inf scoring=softmax renormalize=0,1",
        "num_tokens=9 num_experts=256 num_topk=6 vocabulary=1,2,50 layout=half,gap,repeated "
        "offset=0,1 out_offset=0,1",
        "num_tokens=5 num_experts=64 num_topk=6 vocabulary=0 ids=beyond",
        "num_tokens=9 num_experts=5000 num_topk=6 vocabulary=50 scoring=sqrtsoftplus,softmax",
        "num_tokens=9 num_experts=64 num_topk=6 num_shared_experts=1 replicas=2 shared_weight=0.4,0 "
        "factor=1,2.5 vocabulary=10 scoring=sqrtsoftplus",
        "num_tokens=9 num_experts=64 num_topk=33 vocabulary=50 scoring=softmax unmapped=packed",
        "num_tokens=33 num_experts=40 num_topk=33 vocabulary=50 ids=beyond,bits fixed=beyond,bits "
        "mask=some num_shared_experts=1 replicas=2 shared_weight=0.4 unmapped=packed table_dtype=i64 "
        "dtype=i64,i32",
        "num_tokens=33 num_experts=256 num_topk=6 vocabulary=100 mask=some num_shared_experts=1 replicas=3 "
        "map=wild unmapped=packed scoring=sigmoid,softmax id_dtype=i64,i32 " GATE_EXCLUDED,
        "num_tokens=33 num_experts=40 num_topk=33 vocabulary=50 mask=some num_shared_experts=1 replicas=2 "
        "unmapped=packed table_dtype=i64 " GATE_EXCLUDED,
        /* t * 23333 passes 2^31 and 2^32; here, as this op takes a tenth of top2_sum_gate's time on the
         * emulated device */
        "num_tokens=184100 num_experts=16 num_topk=1 num_shared_experts=1 replicas=7 ep_rank=5 "
        "vocabulary=100 scoring=identity"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=0,1,7,64,512,4096 num_experts=256,384 num_topk=1,6,8,31 num_shared_experts=0,1 "
        "replicas=2 vocabulary=129280 scoring=sqrtsoftplus mask=none,some id_dtype=i64,i32 "
        "table_dtype=i64,i32",
        "num_tokens=92200,200000 num_experts=16 num_topk=4 num_shared_experts=1 replicas=7 ep_rank=5 "
        "vocabulary=1000",
        "num_tokens=32780 num_experts=16 num_topk=6 layout=far vocabulary=1000"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,8,32,128,512,4096 num_experts=256 num_topk=6 scoring=sqrtsoftplus vocabulary=129280",
        "num_tokens=1,8,32,128,512,4096 num_experts=256 num_topk=6 num_shared_experts=1 replicas=2 "
        "scoring=sqrtsoftplus vocabulary=129280"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 num_experts=256 num_topk=6 scoring=sigmoid,softmax,identity dtype=i64,i32 "
        "vocabulary=1000",
        "num_tokens=64 num_experts=256 num_topk=6 scoring=sqrtsoftplus dtype=i64,i32 id_dtype=i64,i32 "
        "table_dtype=i64,i32 vocabulary=1000",
        "num_tokens=64 num_experts=384,1030 num_topk=1,2,8,16,31,32,33 scoring=sqrtsoftplus,softmax "
        "vocabulary=1000",
        "num_tokens=64 num_experts=256 num_topk=6 num_shared_experts=1 replicas=2 vocabulary=1000"),
    .models = CASE_LINES(
        "num_tokens=4096 num_experts={num_experts} num_topk={num_topk} vocabulary={hash_vocabulary} "
        "scoring={scoring}"),
};
// clang-format on
