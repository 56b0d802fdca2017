/* SPDX-License-Identifier: MIT
 * top2_sum_gate.c - tgl_moe_top2_sum_gate: the experts of every token and their weights. */
#include "moe/top2_sum_gate.h"

#include <inttypes.h>

#include "core/log.h"
#include "core/threads.h"
#include "cuda/launch.h"
#include "moe/best.h"
#include "moe/gate_host.h"
#include "moe/score_fast.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- CPU ---- */

/* Keys of a token's experts, WINDOW of them at a time. Where a score takes libm and one window holds all
 * experts, keys are first only right to `error`; next_candidate() then makes those exact that may decide. */
enum { WINDOW = 2048, MAX_LIST = 64, CHAINS = 4, BLOCK = 16 };
typedef struct {
    const tgl_gate *gate;
    const float *row;
    int64_t begin, end;
    float error;                                /* 0: keys are exact */
    float keys[WINDOW];
} window;

#define INLINE static inline __attribute__((always_inline))     /* so that scoring is a constant */

static float exact_key(const tgl_gate *gate, const float *row, int64_t e, int scoring)
{
    return tgl_rank_score(tgl_score_key(scoring, row[e], gate->bias ? gate->bias[e] : 0.0f));
}

INLINE void fill(window *w, int scoring)
{
    for (int64_t e = w->begin; e < w->end; e++)
        w->keys[e - w->begin] = exact_key(w->gate, w->row, e, scoring);
}

/* One window; no key is NaN. */
INLINE void fill_fast(window *w, int scoring)
{
    const float none = tgl_f32_from_bits(0xFF800000);
    const float *restrict row = w->row, *restrict bias = w->gate->bias;
    float *restrict keys = w->keys;
    const int64_t end = w->end;
    int32_t largest = 0;                        /* bits of the largest logit above 0 */
    for (int64_t e = 0; e < end; e++) {
        const float x = row[e];
        const int32_t bits = (int32_t)tgl_select(x == x, tgl_f32_to_bits(x), 0);
        largest = bits > largest ? bits : largest;
        keys[e] = tgl_fast_select(x == x, tgl_fast_score(scoring, x), none);
    }
    for (int64_t e = 0; bias && e < end; e++) {
        const float key = keys[e] + bias[e];
        keys[e] = tgl_fast_select(key == key, key, none);
    }
    w->error = tgl_fast_score_error(scoring, tgl_f32_from_bits((uint32_t)largest));
}

/* The keys of experts e, e + 1, ..., of which `count` are wanted; there may be fewer at a time. */
static float *keys_at(window *w, int64_t e, int64_t *count)
{
    if (e < w->begin || e >= w->end) {
        const bool is_whole = w->gate->num_experts <= WINDOW;
        w->begin = e / WINDOW * WINDOW;
        w->end = least(w->begin + WINDOW, w->gate->num_experts);
        w->error = 0;
        if (w->gate->scoring == TGL_SIGMOID && is_whole) fill_fast(w, TGL_SIGMOID);
        else if (w->gate->scoring == TGL_SQRTSOFTPLUS && is_whole) fill_fast(w, TGL_SQRTSOFTPLUS);
        else if (w->gate->scoring == TGL_SIGMOID) fill(w, TGL_SIGMOID);
        else if (w->gate->scoring == TGL_SQRTSOFTPLUS) fill(w, TGL_SQRTSOFTPLUS);
        else if (w->gate->scoring == TGL_SOFTMAX) fill(w, TGL_SOFTMAX);
        else fill(w, TGL_IDENTITY);
    }
    *count = least(*count, w->end - e);
    return w->keys + (e - w->begin);
}

/* Whoever has a key of at least the exact key of an expert with key `low` has one of at least this here. */
static float floor_of(const window *w, float low) { return low - (2 * w->error + fabsf(low) * 1e-6f); }

/* Is one of the block at or above the floor? Without a branch inside, so that it becomes vector code. */
static bool has_candidate(const float *keys, float floor)
{
    int found = 0;
    for (int i = 0; i < BLOCK; i++) found |= !(keys[i] < floor);
    return found;
}

/* The first expert in e .. end - 1 whose key is at or above the floor, and is now exact; or end. In a window
 * of all experts. */
static int64_t next_candidate(window *w, int64_t e, int64_t end, float floor)
{
    while (e < end) {
        const int64_t stop = least(e + BLOCK, end);
        if (stop - e == BLOCK && !has_candidate(w->keys + e, floor)) e = stop;
        for (; e < stop; e++)
            if (!(w->keys[e] < floor)) {
                w->keys[e] = exact_key(w->gate, w->row, e, w->gate->scoring);
                return e;
            }
    }
    return end;
}

/* The best two keys, by CHAINS at a time. */
typedef struct { float first[CHAINS], second[CHAINS]; } best_two;

static void take(best_two *restrict best, const float *restrict keys, int num_keys)
{
    for (int i = 0; i < num_keys; i++) {
        const float key = keys[i], first = best->first[i], second = best->second[i];
        const float lower = key > first ? first : key;
        best->first[i] = key > first ? key : first;
        best->second[i] = lower > second ? lower : second;
    }
}

static void clear_two(best_two *best)
{
    for (int i = 0; i < CHAINS; i++) best->first[i] = best->second[i] = tgl_f32_from_bits(0xFF800000);
}

/* Leaves them in the first chain. */
static void best_two_of(best_two *best, window *w, int64_t begin, int64_t end)
{
    clear_two(best);
    for (int64_t e = begin, count; e < end; e += count) {
        count = end - e;
        const float *keys = keys_at(w, e, &count);
        int64_t i = 0;
        for (; i + CHAINS <= count; i += CHAINS) take(best, keys + i, CHAINS);
        if (i < count) take(best, keys + i, (int)(count - i));
    }
    for (int i = 1; i < CHAINS; i++) {
        take(best, &best->first[i], 1);
        take(best, &best->second[i], 1);
    }
}

/* The rank of a group among groups: by the sum of its best two keys, or by its only one. */
static uint64_t rank_of_group(window *w, uint32_t group)
{
    const int64_t size = w->gate->group_size, begin = group * size, end = begin + size;
    best_two best;
    best_two_of(&best, w, begin, end);
    if (w->error > 0) {
        const float floor = floor_of(w, best.second[0]);
        clear_two(&best);
        for (int64_t e = begin; (e = next_candidate(w, e, end, floor)) < end; e++)
            take(&best, &w->keys[e], 1);
    }
    return tgl_rank(size == 1 ? best.first[0] : best.first[0] + best.second[0], group);
}

/* Which groups are left to choose from: those of at least this rank. Ranks are kept for `kept` of them. */
static uint64_t last_group(window *w, uint64_t *ranks, int64_t kept)
{
    uint64_t last = TGL_ALL_RANKS;
    for (uint32_t g = 0; g < kept; g++) ranks[g] = rank_of_group(w, g);
    for (int64_t left = w->gate->num_topk_groups; left > 0;) {
        uint64_t best[MAX_LIST];
        const int size = (int)least(left, MAX_LIST);
        tgl_best_clear(best, size);
        for (uint32_t g = 0; g < w->gate->num_groups; g++) {
            const uint64_t rank = g < kept ? ranks[g] : rank_of_group(w, g);
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

typedef struct { uint64_t last_group, ranks[MAX_LIST]; int64_t kept; } choice_of_groups;

static bool is_left(window *w, const choice_of_groups *groups, uint32_t g)
{
    if (w->gate->num_topk_groups == w->gate->num_groups) return true;
    return (g < groups->kept ? groups->ranks[g] : rank_of_group(w, g)) >= groups->last_group;
}

/* The best ranks below the limit of the groups that are left; as exact as the keys are. */
static void list_best(window *w, const choice_of_groups *groups, uint64_t *best, int size, uint64_t limit)
{
    const int64_t group_size = w->gate->group_size;
    int64_t all = w->gate->num_experts;
    const float *keys = keys_at(w, 0, &all);
    if (w->gate->num_groups == 1 && all == w->gate->num_experts) {
        tgl_best_of(best, size, limit, keys, all);
        return;
    }
    tgl_best_clear(best, size);
    for (uint32_t g = 0; g < w->gate->num_groups; g++) {
        if (!is_left(w, groups, g)) continue;
        const int64_t end = (g + (int64_t)1) * group_size;
        for (int64_t e = g * group_size, count; e < end; e += count) {
            count = end - e;
            keys = keys_at(w, e, &count);
            insert_all(best, size, limit, keys, count, e);
        }
    }
}

/* Replaces the list of a window whose keys have an error. Whoever is above the limit was a candidate before,
 * and is exact. */
static void list_exact(window *w, const choice_of_groups *groups, uint64_t *best, int size, uint64_t limit)
{
    const float floor = floor_of(w, tgl_rank_value(best[size - 1]));
    const int64_t group_size = w->gate->group_size;
    tgl_best_clear(best, size);
    for (uint32_t g = 0; g < w->gate->num_groups; g++) {
        if (!is_left(w, groups, g)) continue;
        const int64_t end = (g + (int64_t)1) * group_size;
        for (int64_t e = g * group_size; (e = next_candidate(w, e, end, floor)) < end; e++)
            insert_all(best, size, limit, &w->keys[e], 1, e);
    }
}

static void choose_experts(window *w, int64_t t)
{
    const tgl_gate *gate = w->gate;
    choice_of_groups groups;                    /* set where there are any to leave out */
    groups.kept = least(gate->num_groups, MAX_LIST);
    if (gate->num_topk_groups < gate->num_groups)
        groups.last_group = last_group(w, groups.ranks, groups.kept);
    uint64_t limit = TGL_ALL_RANKS;
    for (int64_t k = 0; k < gate->num_topk;) {
        uint64_t best[MAX_LIST];
        const int size = (int)least(gate->num_topk - k, MAX_LIST);
        list_best(w, &groups, best, size, limit);
        if (w->error > 0) list_exact(w, &groups, best, size, limit);
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
            window w;                           /* keys are set where they are wanted */
            w.gate = gate;
            w.row = gate->logits + t * gate->logits_stride;
            w.begin = w.end = 0;
            w.error = 0;
            choose_experts(&w, t);
        }
        tgl_gate_finish_token(gate, t);
    }
}

/* ---- checks ---- */

tgl_status tgl_top2_sum_gate_of(const tgl_gate_tensors *x, const tgl_moe_gate_params *params, tgl_gate *out)
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
    TGL_TRY(tgl_gate_check(x, params, (tgl_dim){ 0, candidates }));
    *out = tgl_gate_of(x, params);
    if (num_topk_groups < num_groups) {
        out->num_groups = (uint32_t)num_groups;
        out->num_topk_groups = (uint32_t)num_topk_groups;
        out->group_size = out->num_experts / out->num_groups;
    }
    return TGL_OK;
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

enum { FEW, MANY };                             /* or only the wide one */
int tgl_top2_sum_gate_plan(const tgl_gate *gate, tgl_kernel plan[TGL_GATE_KERNELS])
{
    plan[FEW] = (tgl_kernel){ .name = "moe/top2_sum_gate" };
    if (!tgl_gate_macros(gate, plan[FEW].macros)) {
        plan[0] = (tgl_kernel){ "moe/top2_sum_gate_wide", { { "SCORING", gate->scoring },
                                                            { "INDEX_BYTES", gate->index_bytes } } };
        return 1;
    }
    plan[MANY] = plan[FEW];
    plan[MANY].name = "moe/top2_sum_gate_many";
    return has_many(gate) ? 2 : 1;
}

static tgl_status run_on_cuda(tgl_gate *gate, const DLTensor *on, tgl_stream stream)
{
    tgl_kernel plan[TGL_GATE_KERNELS];
    tgl_macro macros[TGL_MAX_MACROS];
    const int num_kernels = tgl_top2_sum_gate_plan(gate, plan);
    void *args[] = { gate };
    if (!tgl_gate_macros(gate, macros)) {
        const tgl_shape wide = { { gate->num_tokens }, .block = GATE_WIDE_THREADS };
        return tgl_launch(plan, num_kernels, 0, on, &wide, stream, args);
    }
    const int warps = tgl_gate_warps(gate->num_tokens);
    const tgl_shape shape = { { (gate->num_tokens + warps - 1) / warps }, .block = 32 * warps };
    const bool is_many = num_kernels > MANY && gate->num_tokens >= first_many(gate);
    return tgl_launch(plan, num_kernels, is_many ? MANY : FEW, on, &shape, stream, args);
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
    tgl_gate gate;
    TGL_TRY(tgl_top2_sum_gate_of(&x, params, &gate));
    if (topk_idx->shape[1] == 0) return TGL_OK;                     /* no kernel either */
    if (gate.num_tokens == 0 && !tgl_preparing()) return TGL_OK;    /* data may be NULL */
    if (!tgl_on_cpu(logits)) return run_on_cuda(&gate, logits, stream);
    const int64_t token_bytes = tgl_gate_token_bytes(&gate, gate.num_experts);
    return tgl_parallel_rows(gate.num_tokens, token_bytes, run_tokens, &gate);
}
