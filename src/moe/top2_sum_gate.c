/* SPDX-License-Identifier: MIT
 * top2_sum_gate.c - tgl_moe_top2_sum_gate: the experts of every token and their weights. */
#include "moe/top2_sum_gate.h"

#include <inttypes.h>

#include "core/log.h"
#include "core/threads.h"
#include "cuda/launch.h"
#include "moe/best.h"
#include "moe/gate_host.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- CPU ---- */

/* Keys of a token's experts, WINDOW of them at a time: as many experts as models have are scored once. */
enum { WINDOW = 2048, MAX_LIST = 64 };
typedef struct {
    const tgl_gate *gate;
    const float *row;
    int64_t begin, end;
    float keys[WINDOW];
} window;

static inline __attribute__((always_inline)) void fill(window *w, int scoring)
{
    const float *bias = w->gate->bias;
    for (int64_t e = w->begin; e < w->end; e++) {
        const float key = tgl_score_key(scoring, w->row[e], bias ? bias[e] : 0.0f);
        w->keys[e - w->begin] = tgl_rank_score(key);
    }
}

/* The keys of experts e, e + 1, ..., of which `count` are wanted; there may be fewer at a time. */
static const float *keys_at(window *w, int64_t e, int64_t *count)
{
    if (e < w->begin || e >= w->end) {
        w->begin = e / WINDOW * WINDOW;
        w->end = least(w->begin + WINDOW, w->gate->num_experts);
        switch (w->gate->scoring) {             /* a constant in each loop */
        case TGL_SIGMOID: fill(w, TGL_SIGMOID); break;
        case TGL_SQRTSOFTPLUS: fill(w, TGL_SQRTSOFTPLUS); break;
        case TGL_SOFTMAX: fill(w, TGL_SOFTMAX); break;
        default: fill(w, TGL_IDENTITY);
        }
    }
    *count = least(*count, w->end - e);
    return w->keys + (e - w->begin);
}

/* The rank of a group among groups: by the sum of its best two keys, or by its only one. */
static uint64_t rank_of_group(window *w, uint32_t group)
{
    const float none = tgl_f32_from_bits(0xFF800000);
    const int64_t size = w->gate->group_size, begin = group * size;
    float first = none, second = none;
    for (int64_t e = begin, count; e < begin + size; e += count) {
        count = begin + size - e;
        const float *keys = keys_at(w, e, &count);
        for (int64_t i = 0; i < count; i++) {
            const float lower = keys[i] > first ? first : keys[i];
            first = keys[i] > first ? keys[i] : first;
            second = lower > second ? lower : second;
        }
    }
    return tgl_rank(size == 1 ? first : first + second, group);
}

/* The rank of the last group that is left to choose from. */
static uint64_t last_group(window *w)
{
    uint64_t last = TGL_ALL_RANKS;
    for (int64_t left = w->gate->num_topk_groups; left > 0;) {
        uint64_t best[MAX_LIST];
        const int size = (int)least(left, MAX_LIST);
        tgl_best_clear(best, size);
        for (uint32_t g = 0; g < w->gate->num_groups; g++) {
            const uint64_t rank = rank_of_group(w, g);
            if (rank < last && rank > best[size - 1]) tgl_best_insert(best, size, rank);
        }
        last = best[size - 1];
        left -= size;
    }
    return last;
}

/* Adds what is better than the worst of the list, and below the limit. Of equal keys the first one stays. */
static void insert_all(uint64_t *best, int size, uint64_t limit, const float *keys, int64_t count, int64_t e)
{
    for (int64_t i = 0; i < count; i++) {
        const uint64_t worst = best[size - 1];
        if (worst != TGL_RANK_NONE && !(keys[i] > tgl_rank_value(worst))) continue;
        const uint64_t rank = tgl_rank(keys[i], (uint32_t)(e + i));
        if (rank < limit) tgl_best_insert(best, size, rank);
    }
}

static void choose_experts(window *w, int64_t t)
{
    const tgl_gate *gate = w->gate;
    const bool is_grouped = gate->num_topk_groups < gate->num_groups;
    const uint64_t worst_group = is_grouped ? last_group(w) : TGL_RANK_NONE;
    uint64_t limit = TGL_ALL_RANKS;
    for (int64_t k = 0; k < gate->num_topk;) {
        uint64_t best[MAX_LIST];
        const int size = (int)least(gate->num_topk - k, MAX_LIST);
        tgl_best_clear(best, size);
        for (uint32_t g = 0; g < gate->num_groups; g++) {
            if (is_grouped && rank_of_group(w, g) < worst_group) continue;
            const int64_t begin = (int64_t)g * gate->group_size, end = begin + gate->group_size;
            for (int64_t e = begin, count; e < end; e += count) {
                count = end - e;
                const float *keys = keys_at(w, e, &count);
                insert_all(best, size, limit, keys, count, e);
            }
        }
        for (int i = 0; i < size; i++, k++) tgl_gate_choose(gate, t, k, tgl_rank_index(best[i]));
        limit = best[size - 1];
    }
}

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const tgl_gate *gate = context;
    for (int64_t t = begin; t < end; t++) {
        if (gate->mask && !gate->mask[t]) {
            tgl_gate_mask_token(gate, t);
            continue;
        }
        if (gate->fix_routing_mask && gate->fix_routing_mask[t]) {
            const char *fixed = gate->unmapped_topk_idx;
            fixed += t * gate->unmapped_stride * gate->index_bytes;
            for (int64_t k = 0; k < gate->num_topk; k++)
                tgl_gate_choose(gate, t, k, tgl_gate_get(fixed, k, gate->index_bytes));
        } else {
            window w;                           /* keys are not set before keys_at() */
            w.gate = gate;
            w.row = gate->logits + t * gate->logits_stride;
            w.begin = w.end = 0;
            choose_experts(&w, t);
        }
        tgl_gate_finish_token(gate, t);
    }
}

/* ---- checks ---- */

static tgl_status check(const tgl_gate_tensors *x, const tgl_moe_gate_params *params)
{
    TGL_TRY(tgl_gate_check_params(params));
    TGL_TRY(tgl_expect("logits", x->logits, TGL_F32, 2, TGL_ROWS));
    const int64_t num_experts = x->logits->shape[1];
    const int64_t num_groups = params->num_groups, num_topk_groups = params->num_topk_groups;
    if (num_topk_groups > num_groups || (num_groups > 0 && num_topk_groups == 0))
        return tgl_fail(TGL_ERR_ARGUMENT, "num_topk_groups: is %" PRId64 ", want %d..%" PRId64,
                        num_topk_groups, num_groups > 0, num_groups);
    if (num_groups > 0 && num_experts % num_groups != 0)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_groups: is %" PRId64 ", want a divisor of %" PRId64
                        " (num_experts)", num_groups, num_experts);
    const int64_t candidates = num_groups > 0 ? num_experts / num_groups * num_topk_groups : num_experts;
    return tgl_gate_check(x, params, (tgl_dim){ 0, candidates });
}

/* ---- launch ---- */

/* Many tokens go through select_dense(), where it bounds the picks by the maxima of enough lanes: by then it
 * has about 16 candidates at most. 128 experts are too few for it to win. */
static bool has_many(const tgl_gate *gate)
{
    const int64_t group_lanes = least(32 / gate->num_groups, (gate->group_size + 3) / 4);
    const int64_t lanes = group_lanes * gate->num_topk_groups;
    return gate->num_experts > 128 && gate->num_topk <= 12 && 2 * gate->num_topk <= lanes;
}

/* From how many tokens on. H200. */
static int64_t first_many(const tgl_gate *gate)
{
    if (gate->num_groups > 1) return 4096;
    return gate->num_experts <= 256 ? 1024 : 512;
}

static tgl_status run_on_cuda(tgl_gate *gate, const DLTensor *on, tgl_stream stream)
{
    void *args[] = { gate };
    tgl_kernel few = { .name = "moe/top2_sum_gate" };
    if (!tgl_gate_macros(gate, few.macros)) {
        const tgl_kernel wide = { "moe/top2_sum_gate_wide",
                                  { { "SCORING", gate->scoring }, { "INDEX_BYTES", gate->index_bytes } } };
        const tgl_shape shape = { { gate->num_tokens }, .block = GATE_WIDE_THREADS };
        return tgl_launch(&wide, 1, 0, on, &shape, stream, args);
    }
    tgl_kernel plan[2] = { few, few };
    plan[1].name = "moe/top2_sum_gate_many";
    const int warps = tgl_gate_warps(gate->num_tokens);
    const tgl_shape shape = { { (gate->num_tokens + warps - 1) / warps }, .block = 32 * warps };
    const bool is_many = has_many(gate) && gate->num_tokens >= first_many(gate);
    return tgl_launch(plan, has_many(gate) ? 2 : 1, is_many, on, &shape, stream, args);
}

tgl_status tgl_moe_top2_sum_gate(const DLTensor *logits, const DLTensor *bias, const DLTensor *mask,
                                 const DLTensor *fix_routing_mask, const DLTensor *to_physical_map,
                                 const DLTensor *logical_count, DLTensor *unmapped_topk_idx,
                                 DLTensor *topk_idx, DLTensor *topk_weights,
                                 const tgl_moe_gate_params *params, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_moe_top2_sum_gate", "logits", logits, "bias", bias, "mask", mask,
                     "fix_routing_mask", fix_routing_mask, "to_physical_map", to_physical_map,
                     "logical_count", logical_count, "unmapped_topk_idx", unmapped_topk_idx,
                     "topk_idx", topk_idx, "topk_weights", topk_weights, NULL);
    const tgl_gate_tensors x = { logits, bias, mask, fix_routing_mask, to_physical_map, logical_count,
                                 unmapped_topk_idx, topk_idx, topk_weights };
    TGL_TRY(check(&x, params));
    tgl_gate gate = tgl_gate_of(&x, params);
    if (params->num_topk_groups < params->num_groups) {
        gate.num_groups = (uint32_t)params->num_groups;
        gate.num_topk_groups = (uint32_t)params->num_topk_groups;
        gate.group_size = gate.num_experts / gate.num_groups;
    }
    if (topk_idx->shape[1] == 0) return TGL_OK;                     /* no kernel either */
    if (gate.num_tokens == 0 && !tgl_preparing()) return TGL_OK;    /* data may be NULL */
    if (!tgl_on_cpu(logits)) return run_on_cuda(&gate, logits, stream);
    const int64_t token_bytes = tgl_gate_token_bytes(&gate, gate.num_experts);
    return tgl_parallel_rows(gate.num_tokens, token_bytes, run_tokens, &gate);
}
