/* SPDX-License-Identifier: MIT
 * top2_sum_gate.c - tgl_moe_top2_sum_gate: the experts of every token and their weights. */
#include "moe/top2_sum_gate.h"

#include <string.h>

#include "core/log_indices.h"
#include "core/math.h"
#include "core/threads.h"
#include "moe/common/best.h"
#include "moe/common/gate_host.h"
#include "moe/common/shape.h"

/* ---- CPU ---- */

/* Keys of a token's experts, computed WINDOW at a time. */
enum { WINDOW = 2048 };
typedef struct {
    const tgl_gate *gate;
    const float *row;
    int64_t begin, end;
    float keys[WINDOW];
} window;

static void fill(window *w)
{
    const tgl_gate *gate = w->gate;
    const int64_t count = w->end - w->begin;
    memcpy(w->keys, w->row + w->begin, (size_t)count * sizeof *w->keys);
    if (gate->scoring != TGL_SOFTMAX) tgl_gate_score(gate->scoring, w->keys, count, (tgl_softmax){ 0 });
    for (int64_t i = 0; gate->bias && i < count; i++) w->keys[i] += gate->bias[w->begin + i];
}

/* The keys of experts e, e + 1, ...; `count` is the number wanted, then the number in the window. */
static const float *keys_at(window *w, int64_t e, int64_t *count)
{
    if (e < w->begin || e >= w->end) {
        w->begin = e / WINDOW * WINDOW;
        w->end = tgl_min(w->begin + WINDOW, w->gate->num_experts);
        fill(w);
    }
    *count = tgl_min(*count, w->end - e);
    return w->keys + (e - w->begin);
}

/* A group is ranked by the sum of its best two keys, or by its only one. */
static float worth_of_group(window *w, uint32_t group)
{
    const int64_t size = w->gate->group_size, begin = group * size, end = begin + size;
    tgl_best_two best = TGL_BEST_TWO_NONE;
    for (int64_t e = begin, count; e < end; e += count) {
        count = end - e;
        const float *keys = keys_at(w, e, &count);
        tgl_best_two_add(&best, keys, count);
    }
    return size == 1 ? best.first : best.first + best.second;
}

/* Groups of rank `last` and above stay. The worth of the first MAX_KEPT groups is kept. */
enum { MAX_KEPT = 256 };
typedef struct {
    uint64_t last;
    float worth[MAX_KEPT];
    int64_t num_kept;
} choice_of_groups;

static void choose_groups(window *w, choice_of_groups *groups)
{
    groups->last = TGL_ALL_RANKS;
    for (uint32_t g = 0; g < groups->num_kept; g++) groups->worth[g] = worth_of_group(w, g);
    for (int64_t left = w->gate->num_topk_groups; left > 0;) {
        tgl_best best;
        const int size = (int)tgl_min(left, TGL_BEST_MAX);
        tgl_best_begin(&best, size, groups->last);
        tgl_best_add(&best, groups->worth, groups->num_kept, 0);
        for (uint32_t g = (uint32_t)groups->num_kept; g < w->gate->num_groups; g++) {
            const float worth = worth_of_group(w, g);
            tgl_best_add(&best, &worth, 1, g);
        }
        tgl_best_end(&best);
        groups->last = best.ranks[size - 1];
        left -= size;
    }
}

static bool stays(window *w, const choice_of_groups *groups, uint32_t g)
{
    if (w->gate->num_topk_groups == w->gate->num_groups) return true;
    const float worth = g < groups->num_kept ? groups->worth[g] : worth_of_group(w, g);
    return tgl_rank(worth, g) >= groups->last;
}

/* The best ranks below `limit` among the groups that stay. */
static void list_best(window *w, const choice_of_groups *groups, tgl_best *best, int size, uint64_t limit)
{
    const int64_t group_size = w->gate->group_size;
    int64_t all = w->gate->num_experts;
    const float *keys = keys_at(w, 0, &all);
    if (w->gate->num_groups == 1 && all == w->gate->num_experts) {
        tgl_best_of(best, size, limit, keys, all);
        return;
    }
    tgl_best_begin(best, size, limit);
    for (uint32_t g = 0; g < w->gate->num_groups; g++) {
        if (!stays(w, groups, g)) continue;
        const int64_t end = (g + (int64_t)1) * group_size;
        for (int64_t e = g * group_size, count; e < end; e += count) {
            count = end - e;
            keys = keys_at(w, e, &count);
            tgl_best_add(best, keys, count, (uint32_t)e);
        }
    }
    tgl_best_end(best);
}

static void choose_best(const tgl_gate *gate, int64_t t)
{
    window w; /* keys are computed on demand */
    w.gate = gate;
    w.row = gate->logits + t * gate->logits_stride;
    w.begin = w.end = 0;
    choice_of_groups groups; /* set only if some are left out */
    groups.num_kept = tgl_min(gate->num_groups, MAX_KEPT);
    if (gate->num_topk_groups < gate->num_groups) choose_groups(&w, &groups);
    uint64_t limit = TGL_ALL_RANKS;
    for (int64_t k = 0; k < gate->num_topk;) {
        tgl_best best;
        const int size = (int)tgl_min(gate->num_topk - k, TGL_BEST_MAX);
        list_best(&w, &groups, &best, size, limit);
        for (int i = 0; i < size; i++, k++) tgl_gate_choose(gate, t, k, tgl_rank_index(best.ranks[i]));
        limit = best.ranks[size - 1];
    }
}

/* False if the token is masked. */
static bool choose_experts(const tgl_gate *gate, int64_t t)
{
    if (gate->mask && !gate->mask[t]) return false;
    if (gate->fix_routing_mask && gate->fix_routing_mask[t]) {
        const int64_t row = t * gate->unmapped_stride;
        for (int64_t k = 0; k < gate->num_topk; k++)
            tgl_gate_choose(gate, t, k, tgl_index_get(gate->unmapped_topk_idx, row + k, gate->index_bytes));
    } else {
        choose_best(gate, t);
    }
    return true;
}

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const tgl_gate *gate = context;
    for (int64_t next; begin < end; begin = next) {
        bool is_routed[TGL_GATE_TOKENS];
        next = tgl_min(end, begin + TGL_GATE_TOKENS);
        for (int64_t t = begin; t < next; t++) is_routed[t - begin] = choose_experts(gate, t);
        tgl_gate_finish(gate, begin, next, is_routed);
    }
}

static tgl_status cpu(const void *context)
{
    const tgl_gate *gate = context;
    return tgl_parallel_rows(gate->num_tokens, tgl_gate_token_bytes(gate, gate->num_experts), run_tokens, gate);
}

tgl_signature tgl_moe_top2_sum_gate_signature =
    TGL_SIGNATURE("moe_top2_sum_gate(" TOP2_INPUTS ") -> " GATE_OUTPUTS " where " TOP2_RULES, &TGL_GATE_PARAMS);

/* ---- launch ---- */

/* Do enough lanes contribute a max to the bound of select_dense()? */
static bool has_many(const tgl_gate *gate)
{
    const int64_t group_lanes = tgl_min(32 / gate->num_groups, tgl_ceil_div(gate->group_size, 4));
    const int64_t lanes = group_lanes * gate->num_topk_groups;
    return gate->num_experts > GATE_MANY_EXPERTS && gate->num_topk <= GATE_MANY_TOPK && 2 * gate->num_topk <= lanes;
}

/* The wide kernel alone, or all others that the model can use. */
static int plan(const void *context, tgl_kernel *kernels)
{
    const tgl_gate *gate = context;
    if (gate->num_topk + gate->num_shared == 0) return 0;
    for (int i = 0; i < TGL_GATE_KERNELS; i++) kernels[i].name = NULL;
    tgl_kernel *few = &kernels[TGL_GATE_FEW];
    *few = (tgl_kernel){ .name = "moe/top2_sum_gate" };
    if (!tgl_gate_macros(gate, few->macros)) {
        few->name = NULL;
        kernels[TGL_GATE_WIDE] = (tgl_kernel){ "moe/top2_sum_gate_wide",
                                               { { "SCORING", gate->scoring }, { "INDEX_BYTES", gate->index_bytes } } };
        return TGL_GATE_KERNELS;
    }
    if (gate->num_replicas > 0) {
        kernels[TGL_GATE_MAPPED] = *few;
        kernels[TGL_GATE_MAPPED].name = "moe/top2_sum_gate_mapped";
    }
    if (has_many(gate)) {
        kernels[TGL_GATE_MANY] = *few;
        kernels[TGL_GATE_MANY].name = "moe/top2_sum_gate_many";
    }
    return TGL_GATE_FEW + 1;
}

static bool mapped_fits(const void *context, const tgl_target *target) /* a block for each token */
{
    return ((const tgl_gate *)context)->num_tokens <= INT32_MAX;
}

static bool mapped_pays(const void *context, const tgl_target *target)
{
    return ((const tgl_gate *)context)->num_tokens <= GATE_MAPPED_TOKENS;
}

static tgl_shape mapped_shape(void *context, const tgl_target *target)
{
    const tgl_gate *gate = context;
    return (tgl_shape){ { gate->num_tokens }, .block = 32 * GATE_MAPPED_WARPS, TGL_ARGS(*gate) };
}

static bool many_pays(const void *context, const tgl_target *target)
{
    const tgl_gate *gate = context;
    const bool has_few_experts = gate->num_experts <= GATE_MANY_FEW_EXPERTS;
    return gate->num_tokens >= (gate->num_groups > 1 ? GATE_MANY_GROUPED_TOKENS
                                : has_few_experts    ? GATE_MANY_FEW_TOKENS
                                                     : GATE_MANY_TOKENS);
}

TGL_TOKEN_SHAPES(tgl_gate, GATE_WIDE_THREADS)

const tgl_op tgl_top2_sum_gate_op = { cpu,
                                      plan,
                                      { [TGL_GATE_MAPPED] = { mapped_fits, mapped_pays, mapped_shape },
                                        [TGL_GATE_MANY] = { NULL, many_pays, warps_shape },
                                        [TGL_GATE_FEW] = { NULL, NULL, warps_shape },
                                        [TGL_GATE_WIDE] = { NULL, NULL, wide_shape } } };

tgl_status tgl_moe_top2_sum_gate(const DLTensor *logits, const DLTensor *bias, const DLTensor *mask,
                                 const DLTensor *fix_routing_mask, const DLTensor *to_physical_map,
                                 const DLTensor *logical_count, DLTensor *unmapped_topk_idx, DLTensor *topk_idx,
                                 DLTensor *topk_weights, const tgl_moe_gate_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = {
        logits, bias, mask, fix_routing_mask, to_physical_map, logical_count, unmapped_topk_idx, topk_idx, topk_weights
    };
    TGL_TRY(tgl_take(&tgl_moe_top2_sum_gate_signature, tensors, params, NULL));
    tgl_gate gate;
    TGL_TRY(tgl_gate_of(tensors, params, &gate));
    if (fix_routing_mask)
        tgl_log_indices_where("unmapped_topk_idx", unmapped_topk_idx, gate.num_experts, fix_routing_mask, mask);
    return tgl_run(&tgl_moe_top2_sum_gate_signature, &tgl_top2_sum_gate_op, tensors, &gate, stream);
}
