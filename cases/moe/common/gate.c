/* SPDX-License-Identifier: MIT */
#include "gate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

/* ---- setup and run ---- */

static tgl_status read_scoring(const case_problem *c, tgl_moe_scoring *scoring)
{
    static const char words[] = "sigmoid sqrtsoftplus softmax identity"; /* in the order of the enum */
    TGL_TRY(case_check_word(c, "scoring", words));
    *scoring = (tgl_moe_scoring)case_word(c, "scoring", words);
    return TGL_OK;
}

static void read_float(const case_problem *c, const char *name, bool *is_given, float *value)
{
    *is_given = !case_is(c, name, "none");
    *value = *is_given ? strtof(case_text(c, name), NULL) : 0;
}

tgl_status gate_setup_common(case_problem *c)
{
    const int64_t t = case_int(c, "num_tokens"), r = case_int(c, "num_experts"), k = case_int(c, "num_topk");
    const int64_t s = case_int(c, "num_shared_experts"), m = case_int(c, "replicas");
    const tgl_dtype dtype = case_dtype(c, "dtype");
    tgl_moe_gate_params p = {
        .num_shared_experts = s,
        .ep_rank = case_int(c, "ep_rank"),
        .num_ep_ranks = case_int(c, "num_ep_ranks"),
        .num_tp_ranks = case_int(c, "num_tp_ranks"),
        .tp_rank = case_int(c, "tp_rank"),
        .no_renormalize = !case_int(c, "renormalize"),
    };
    TGL_TRY(read_scoring(c, &p.scoring));
    read_float(c, "factor", &p.has_routed_scaling_factor, &p.routed_scaling_factor);
    read_float(c, "shared_weight", &p.has_shared_weight, &p.shared_weight);
    memcpy(c->scalars, &p, sizeof p);

    case_tensor *logits = case_add(c, LOGITS, "logits", CASE_IN, TGL_F32, 2, (int64_t[]){ t, r });
    logits->offset = case_int(c, "offset");
    TGL_TRY(moe_lay_out(case_text(c, "layout"), r, logits->strides));
    if (strcmp(case_text(c, "mask"), "none"))
        case_add(c, MASK, "mask", CASE_IN, TGL_BOOL, 1, &t)->fill = gate_fill_flags;
    if (m > 0) {
        case_add(c, MAP, "to_physical_map", CASE_IN, TGL_I32, 2, (int64_t[]){ r + s, m })->fill = gate_fill_map;
        case_add(c, COUNT, "logical_count", CASE_IN, TGL_I32, 1, (int64_t[]){ r + s })->fill = gate_fill_counts;
    }
    const int64_t slots[2] = { t, k + s };
    case_tensor *weights = case_add(c, WEIGHTS, "topk_weights", CASE_OUT, TGL_F32, 2, slots);
    case_tensor *idx = case_add(c, IDX, "topk_idx", CASE_OUT, dtype, 2, slots);
    idx->offset = weights->offset = case_int(c, "out_offset");
    weights->compare.nan_payload = false;
    if (p.scoring != TGL_MOE_IDENTITY) weights->compare = (case_compare){ CASE_CLOSE, .rtol = 1e-5, .atol = 1e-8 };
    return TGL_OK;
}

tgl_status gate_setup(case_problem *c)
{
    TGL_TRY(gate_setup_common(c));
    const int64_t *shape = c->tensors[LOGITS].shape;
    tgl_moe_gate_params *p = (tgl_moe_gate_params *)(void *)c->scalars;
    p->num_groups = case_int(c, "num_groups"), p->num_topk_groups = case_int(c, "num_topk_groups");
    if (strcmp(case_text(c, "bias"), "none"))
        case_add(c, BIAS, "bias", CASE_IN, TGL_F32, 1, &shape[1])->fill = gate_fill_bias;
    if (strcmp(case_text(c, "fix"), "none"))
        case_add(c, FIX, "fix_routing_mask", CASE_IN, TGL_BOOL, 1, shape)->fill = gate_fill_flags;
    if (strcmp(case_text(c, "unmapped"), "none")) {
        const int64_t k = case_int(c, "num_topk");
        case_tensor *u = case_add(c, UNMAPPED, "unmapped_topk_idx", CASE_INOUT, c->tensors[IDX].dtype, 2,
                                  (int64_t[]){ shape[0], k });
        const bool is_valid = case_is(c, "fixed", "valid");
        u->fill = gate_fill_unmapped;
        u->low = is_valid ? 0 : -4, u->high = (double)shape[1] + (is_valid ? 0 : 4);
        u->offset = case_int(c, "out_offset");
        TGL_TRY(moe_lay_out(case_text(c, "unmapped"), k, u->strides));
    }
    return gate_choose_logits(c, &c->tensors[LOGITS]);
}

tgl_status gate_run(const case_arguments *a)
{
    return tgl_moe_top2_sum_gate(a->arg[LOGITS], a->arg[BIAS], a->arg[MASK], a->arg[FIX], a->arg[MAP], a->arg[COUNT],
                                 a->arg[UNMAPPED], a->arg[IDX], a->arg[WEIGHTS], gate_params_of(a->problem), a->stream);
}

/* ---- the oracle ---- */

/* Writes the index of logical expert e, or -1, to a slot of token t. */
static void put_expert(const case_problem *c, int64_t t, int64_t slot, int64_t e)
{
    const tgl_moe_gate_params *p = gate_params_of(c);
    int64_t id = e, extra = 0;
    if (gate_is_given(c, MAP) && e >= 0) {
        const int64_t replicas = c->tensors[MAP].shape[1];
        int64_t count = ((const int32_t *)c->tensors[COUNT].data)[e];
        if (count < 1) count = 1;
        if (count > replicas) count = replicas;
        const int64_t replica = (int64_t)(((__int128)p->ep_rank + (__int128)t * 23333) % count);
        id = moe_index_at(&c->tensors[MAP], e, replica);
    }
    if (gate_is_given(c, MAP)) extra = c->tensors[MAP].shape[1] - 1;
    moe_put_index(&c->tensors[IDX], t, slot,
                  moe_number_on_rank(c->tensors[LOGITS].shape[1] + extra, p->num_ep_ranks, p->num_tp_ranks, p->tp_rank,
                                     id));
}

static void put_weight(const case_problem *c, int64_t t, int64_t slot, double weight)
{
    case_encode(TGL_F32, weight, case_element(&c->tensors[WEIGHTS], (int64_t[]){ t, slot }));
}

/* Scores of the chosen experts; -1 is an empty slot. */
static void score_chosen(const case_problem *c, int64_t t, const int64_t *chosen, int64_t num_topk, float *scores)
{
    const tgl_moe_scoring scoring = gate_params_of(c)->scoring;
    const case_tensor *logits = &c->tensors[LOGITS];
    double largest = -INFINITY, sum = 0;
    if (scoring == TGL_MOE_SOFTMAX) {
        for (int64_t e = 0; e < logits->shape[1]; e++) largest = fmax(largest, (double)gate_logit(c, t, e));
        for (int64_t e = 0; e < logits->shape[1]; e++) {
            const double x = (double)gate_logit(c, t, e);
            if (!isnan(x)) sum += exp(x - largest);
        }
    }
    for (int64_t k = 0; k < num_topk; k++) {
        const float x = chosen[k] < 0 ? NAN : gate_logit(c, t, chosen[k]);
        scores[k] = gate_score(scoring, x);
        if (scoring == TGL_MOE_SOFTMAX && !isnan(x)) scores[k] = (float)(exp((double)x - largest) / sum);
        if (isnan(scores[k])) scores[k] = 0;
    }
}

void gate_put_masked(const case_problem *c, int64_t t)
{
    for (int64_t k = 0; k < c->tensors[IDX].shape[1]; k++) {
        moe_put_index(&c->tensors[IDX], t, k, -1);
        put_weight(c, t, k, 0);
    }
    for (int64_t k = 0; gate_is_given(c, UNMAPPED) && k < c->tensors[UNMAPPED].shape[1]; k++)
        moe_put_index(&c->tensors[UNMAPPED], t, k, -1);
}

void gate_put_token(const case_problem *c, int64_t t, const int64_t *chosen, int64_t num_topk, float *scores)
{
    const tgl_moe_gate_params *p = gate_params_of(c);
    const double factor = p->has_routed_scaling_factor ? (double)p->routed_scaling_factor : 1;
    double divisor = (double)1e-20f;
    score_chosen(c, t, chosen, num_topk, scores);
    for (int64_t k = 0; k < num_topk; k++) divisor = (double)(float)(divisor + (double)scores[k]);
    for (int64_t k = 0; k < num_topk; k++) {
        const double score = (double)scores[k];
        const double share = p->no_renormalize ? score : (double)(float)(score / divisor);
        put_expert(c, t, k, chosen[k]);
        put_weight(c, t, k, chosen[k] < 0 ? 0 : share * factor);
    }
    for (int64_t j = 0; j < p->num_shared_experts; j++) {
        put_expert(c, t, num_topk + j, c->tensors[LOGITS].shape[1] + j);
        put_weight(c, t, num_topk + j, p->has_shared_weight ? (double)p->shared_weight : 1);
    }
}

static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    const case_tensor *logits = &c->tensors[LOGITS], *unmapped = &c->tensors[UNMAPPED];
    const int64_t num_topk = gate_num_topk(c);
    int64_t *chosen = case_memory(num_topk, sizeof *chosen);
    float *scores = case_memory(num_topk, sizeof *scores);
    gate_chooser h = gate_open_chooser(c);
    for (int64_t t = begin; t < end; t++) {
        if (gate_is_masked(c, t)) {
            gate_put_masked(c, t);
            continue;
        }
        const bool is_fixed = gate_is_fixed(c, t);
        if (!is_fixed && !gate_choose(&h, t)) __atomic_store_n(&c->is_undecided, true, __ATOMIC_RELAXED);
        for (int64_t k = 0; k < num_topk; k++) {
            chosen[k] = is_fixed ? moe_index_at(unmapped, t, k) : h.sorted[k].index;
            if (!is_fixed && gate_is_given(c, UNMAPPED)) moe_put_index(unmapped, t, k, chosen[k]);
            if (chosen[k] < 0 || chosen[k] >= logits->shape[1]) chosen[k] = -1;
        }
        gate_put_token(c, t, chosen, num_topk, scores);
    }
    gate_close_chooser(&h);
    free(chosen), free(scores);
}

void gate_oracle(case_problem *c)
{
    case_parallel(c->tensors[LOGITS].shape[0], 256 * c->tensors[LOGITS].shape[1], oracle_rows, c);
}

/* ---- bytes ---- */

int64_t gate_bytes_of(const case_problem *c, int i)
{
    return gate_is_given(c, i) ? case_tensor_bytes(&c->tensors[i]) : 0;
}

int64_t gate_bytes_of_map(const case_problem *c)
{
    const int64_t all = gate_bytes_of(c, MAP) + gate_bytes_of(c, COUNT);
    const int64_t slots = 8 * c->tensors[IDX].shape[0] * c->tensors[IDX].shape[1];
    return all < slots ? all : slots;
}

int64_t gate_bytes(const case_problem *c)
{
    static const int whole[] = { BIAS, MASK, FIX, LOGITS, UNMAPPED, IDX, WEIGHTS };
    int64_t bytes = gate_bytes_of_map(c);
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) bytes += gate_bytes_of(c, whole[i]);
    return bytes;
}
