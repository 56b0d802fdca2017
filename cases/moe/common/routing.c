/* SPDX-License-Identifier: MIT */
#include "routing.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

/* ---- where tokens go ---- */

/* A sequence of random numbers. */
typedef struct {
    uint64_t seed;
    int64_t count;
} dice;
static uint64_t roll(dice *d) { return case_random(d->seed, d->count++); }
static int64_t below(dice *d, int64_t n) { return n > 0 ? (int64_t)(roll(d) % (uint64_t)n) : 0; }

/* num_topk of n experts; only the first num_experts are on this rank, others become -1. */
static void choose_uniform(dice *d, int64_t n, const routing *r, int64_t *row)
{
    for (int64_t k = 0; k < r->num_topk; k++) {
        bool is_taken;
        do {
            row[k] = below(d, n);
            is_taken = false;
            for (int64_t j = 0; j < k; j++) is_taken |= row[j] == row[k];
        } while (is_taken && r->num_topk <= n);
    }
    for (int64_t k = 0; k < r->num_topk; k++)
        if (!routing_has(r, row[k])) row[k] = -1;
}

static int64_t choose_garbage(dice *d, int64_t e)
{
    const int64_t expert = below(d, e), high = (int64_t)1 << 32;
    const int64_t edge[] = {
        e,  e + 1, INT32_MAX, INT32_MIN,     INT64_MAX,     INT64_MIN,
        -1, -2,    high,      high + expert, expert - high, (int64_t)((uint64_t)expert | (uint64_t)1 << 63)
    };
    switch (below(d, 4)) {
    case 0: return (int64_t)roll(d);
    case 1: return edge[below(d, sizeof edge / sizeof *edge)];
    default: return expert;
    }
}

enum { UNIFORM, SOME_EMPTY, EMPTY, ONE, GAPS, SKEWED, ENDS, GARBAGE };
#define ROUTINGS "uniform some_empty empty one gaps skewed ends garbage"

static int64_t choose_expert(int kind, dice *d, int64_t e, int64_t k)
{
    const double unit = ldexp((double)(roll(d) >> 11), -53);
    switch (kind) {
    case EMPTY: return -1;
    case ONE: return e / 2;
    case GAPS: return (e / 4 + below(d, (e + 1) / 2)) / 2 * 2 + (e > 1);
    case SKEWED: return (int64_t)((double)e * unit * unit * unit * unit);
    case ENDS: return k % 2 ? e - 1 : 0;
    case GARBAGE: return choose_garbage(d, e);
    default: return unit < 0.25 ? -1 - below(d, 9) : below(d, e);
    }
}

tgl_status routing_check_sizes(case_problem *c, const char *const *names)
{
    for (; *names; names++) {
        const int low = !strcmp(*names, "num_ranks") || !strcmp(*names, "alignment");
        if (!strcmp(*names, "num_positions") && !strchr("-0123456789", case_text(c, *names)[0])) continue;
        const int64_t value = case_int(c, *names); /* words are left to routing_num_positions() */
        if (value < low || value > INT32_MAX)
            return tgl_fail(TGL_ERR_ARGUMENT, "%s: is %s, want %d..%d", *names, case_text(c, *names), low, INT32_MAX);
    }
    return case_check_word(c, "routing", ROUTINGS);
}

static bool has_slot_here(const routing *r, const int64_t *row)
{
    for (int64_t k = 0; k < r->num_topk; k++)
        if (routing_has(r, row[k])) return true;
    return false;
}

/* For group_count, experts are groups. */
static const char *name_of_experts(const case_problem *c)
{
    for (int p = 0; p < c->params.count; p++)
        if (!strcmp(c->params.item[p].name, "num_groups")) return "num_groups";
    return "num_experts";
}

/* Seeded by its own parameters alone, so that all ops see the same tokens. */
routing routing_make(case_problem *c)
{
    char name[256];
    routing r = { 0, case_int(c, "num_topk"), case_int(c, name_of_experts(c)), NULL };
    const int64_t num_ranks = case_int(c, "num_ranks"), rows = case_int(c, "num_tokens") * num_ranks;
    snprintf(name, sizeof name, "%s %s %s %s %s", case_text(c, "num_tokens"), case_text(c, "num_topk"),
             case_text(c, name_of_experts(c)), case_text(c, "num_ranks"), case_text(c, "routing"));
    const int kind = case_word(c, "routing", ROUTINGS);
    dice d = { case_seed(name), 0 };
    r.expert = case_memory(rows * r.num_topk, sizeof *r.expert);
    for (int64_t t = 0; t < rows; t++) {
        int64_t *row = r.expert + r.num_tokens * r.num_topk;
        if (kind == UNIFORM) choose_uniform(&d, r.num_experts * num_ranks, &r, row);
        for (int64_t k = 0; kind != UNIFORM && k < r.num_topk; k++) row[k] = choose_expert(kind, &d, r.num_experts, k);
        r.num_tokens += num_ranks == 1 || has_slot_here(&r, row);
    }
    return r;
}

int64_t routing_num_positions(case_problem *c, const routing *r)
{
    const int64_t alignment = case_int(c, "alignment"), e = r->num_experts;
    int64_t *count = case_memory(e, sizeof *count), total = 0;
    for (int64_t i = 0; i < r->num_tokens * r->num_topk; i++)
        if (routing_has(r, r->expert[i])) count[r->expert[i]]++;
    for (int64_t i = 0; i < e; i++) total += (count[i] + alignment - 1) / alignment * alignment;
    free(count);
    if (case_is(c, "num_positions", "exact")) return total;
    if (case_is(c, "num_positions", "more")) return total + 37;
    if (case_is(c, "num_positions", "less")) return total / 2;
    if (case_is(c, "num_positions", "none")) return 0;
    if (case_is(c, "num_positions", "bound"))
        return (r->num_tokens * r->num_topk + (alignment - 1) * e) / alignment * alignment;
    return case_int(c, "num_positions");
}

/* ---- tensors of indices ---- */

/* Gaps between rows hold valid experts, which must not be counted. */
static void fill_indices(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_problem *problem = (case_problem *)(uintptr_t)c; /* case_int() may note an error there */
    const routing r = routing_make(problem);
    for (int64_t i = 0; i < t->slots; i++) {
        const int64_t expert = case_random_below(seed, i, r.num_experts);
        if (t->element_bytes == 4) ((int32_t *)t->storage)[i] = (int32_t)expert;
        else ((int64_t *)t->storage)[i] = expert;
    }
    for (int64_t token = 0; token < t->shape[0]; token++)
        for (int64_t k = 0; k < t->shape[1]; k++) moe_put_index(t, token, k, r.expert[token * r.num_topk + k]);
    free(r.expert);
}

/* The tensor as the op sees it: row stride 0 repeats a row, and i32 truncates garbage. */
routing routing_read(const case_tensor *t, int64_t num_experts)
{
    routing r = { t->shape[0], t->shape[1], num_experts, NULL };
    r.expert = case_memory(r.num_tokens * r.num_topk, sizeof *r.expert);
    for (int64_t token = 0; token < r.num_tokens; token++)
        for (int64_t k = 0; k < r.num_topk; k++) r.expert[token * r.num_topk + k] = moe_index_at(t, token, k);
    return r;
}

tgl_status routing_add_indices(case_problem *c, const char *name, routing *r)
{
    *r = (routing){ 0 };
    TGL_TRY(routing_check_sizes(c, ROUTING_SIZES(name_of_experts(c), NULL)));
    *r = routing_make(c);
    case_tensor *t =
        case_add(c, 0, name, CASE_IN, case_dtype(c, "dtype"), 2, (int64_t[]){ r->num_tokens, r->num_topk });
    t->offset = case_int(c, "offset");
    t->fill = fill_indices;
    TGL_TRY(moe_lay_out(case_text(c, "layout"), r->num_topk, t->strides));
    for (int64_t i = 0; i < r->num_tokens * r->num_topk; i++) {
        if (t->dtype == TGL_I32) r->expert[i] = (int32_t)r->expert[i];
        if (t->strides[0] == 0) r->expert[i] = r->expert[(r->num_tokens - 1) * r->num_topk + i % r->num_topk];
    }
    return TGL_OK;
}

int64_t *routing_count(const case_problem *c, int64_t num_experts)
{
    int64_t *count = case_memory(num_experts, sizeof *count);
    routing r = routing_read(&c->tensors[0], num_experts);
    for (int64_t i = 0; i < r.num_tokens * r.num_topk; i++)
        if (routing_has(&r, r.expert[i])) count[r.expert[i]]++;
    free(r.expert);
    return count;
}

/* ---- the mapping, by a sort ---- */

typedef struct { int64_t expert, flat; } pair;

static int by_expert_and_place(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    if (x->expert != y->expert) return x->expert < y->expert ? -1 : 1;
    return x->flat < y->flat ? -1 : x->flat > y->flat;
}

mapping mapping_make(const routing *r, int64_t alignment, int64_t num_positions)
{
    const int64_t num_slots = r->num_tokens * r->num_topk;
    mapping m = { r->num_tokens, r->num_topk, r->num_experts, num_positions, { NULL } };
    for (int i = 0; i < NUM_OF_MAPPING; i++) { /* all -1 */
        const int64_t length = i < TOKEN_TOPK_TO_POS    ? num_positions
                               : i == TOKEN_TOPK_TO_POS ? num_slots
                                                        : r->num_experts;
        m.at[i] = case_memory(length, sizeof *m.at[i]);
        memset(m.at[i], 0xff, (size_t)length * sizeof *m.at[i]);
    }
    pair *pairs = case_memory(num_slots, sizeof *pairs);
    int64_t num_pairs = 0, next = 0, at = 0;
    for (int64_t i = 0; i < num_slots; i++)
        if (routing_has(r, r->expert[i])) pairs[num_pairs++] = (pair){ r->expert[i], i };
    qsort(pairs, (size_t)num_pairs, sizeof *pairs, by_expert_and_place);
    for (int64_t e = 0; e < r->num_experts; e++) {
        const int64_t start = at;
        for (; next < num_pairs && pairs[next].expert == e; next++, at++) {
            if (at >= num_positions) continue;
            m.at[POS_TO_EXPERT][at] = (int32_t)e;
            m.at[POS_TO_TOKEN][at] = (int32_t)(pairs[next].flat / r->num_topk);
            m.at[POS_TO_TOKEN_TOPK][at] = (int32_t)pairs[next].flat;
            m.at[TOKEN_TOPK_TO_POS][pairs[next].flat] = (int32_t)at;
        }
        m.at[PAIRS_PER_EXPERT][e] = (int32_t)(at - start);
        m.at[PSUM_END][e] = (int32_t)at;
        while (at % alignment) at++;
        m.at[EXPERT_START][e] = (int32_t)start, m.at[EXPERT_END][e] = (int32_t)at;
        m.at[NUM_TOKENS_PER_EXPERT][e] = m.at[NUM_TOKENS_PER_EXPERT_HOST][e] = (int32_t)(at - start);
    }
    free(pairs);
    return m;
}

void mapping_free(mapping *m)
{
    for (int i = 0; i < NUM_OF_MAPPING; i++) free(m->at[i]);
}

static void put_entries(case_tensor *t, const int32_t *entries)
{
    if (t->name) memcpy(t->data, entries, (size_t)(t->slots * t->element_bytes));
}

mapping mapping_of_case(case_problem *c)
{
    enum { MAPPED, LOST, WILD, PADDED };
    const int slots = case_word(c, "slots", "mapped lost wild padded");
    routing r = routing_make(c);
    mapping m = mapping_make(&r, case_int(c, "alignment"), routing_num_positions(c, &r));
    free(r.expert);
    dice d = { case_seed("slots"), 0 };
    for (int64_t i = 0; slots != MAPPED && i < m.num_tokens * m.num_topk; i++) {
        int32_t *p = &m.at[TOKEN_TOPK_TO_POS][i];
        if (slots == LOST && below(&d, 3) == 0) *p = -1;
        if (slots == PADDED && *p >= 0 && below(&d, 3) == 0) m.at[POS_TO_EXPERT][*p] = -1;
        if (slots == WILD && *p < 0) {
            const int64_t outside[] = { -1, -2, INT32_MIN, m.num_positions, m.num_positions + 1, INT32_MAX };
            *p = (int32_t)outside[below(&d, 6)];
        }
    }
    for (int64_t p = 0; slots == WILD && p < m.num_positions; p++) {
        const int32_t low = (int32_t)(roll(&d) & INT32_MAX);
        m.at[POS_TO_EXPERT][p] = m.at[POS_TO_EXPERT][p] < 0 ? -1 - low : low;
    }
    return m;
}

void mapping_fill_to_pos(const case_problem *c, case_tensor *t, uint64_t seed)
{
    mapping m = mapping_of_case((case_problem *)(uintptr_t)c);
    put_entries(t, m.at[TOKEN_TOPK_TO_POS]);
    mapping_free(&m);
}

void mapping_fill_to_expert(const case_problem *c, case_tensor *t, uint64_t seed)
{
    mapping m = mapping_of_case((case_problem *)(uintptr_t)c);
    put_entries(t, m.at[POS_TO_EXPERT]);
    mapping_free(&m);
}

/* ---- the mapping as outputs ---- */

void mapping_add(case_problem *c, int first, const mapping_sizes *s)
{
    static const char *const names[NUM_OF_MAPPING] = {
        [POS_TO_EXPERT] = "pos_to_expert",
        [POS_TO_TOKEN] = "pos_to_token",
        [POS_TO_TOKEN_TOPK] = "pos_to_token_topk",
        [TOKEN_TOPK_TO_POS] = "token_topk_to_pos",
        [EXPERT_START] = "expert_start",
        [EXPERT_END] = "expert_end",
        [NUM_TOKENS_PER_EXPERT] = "num_tokens_per_expert",
        [PAIRS_PER_EXPERT] = "count",
        [PSUM_END] = "psum_end",
        [NUM_TOKENS_PER_EXPERT_HOST] = "num_tokens_per_expert_host",
    };
    const int64_t slots[2] = { s->num_tokens, s->num_topk };
    for (int i = 0; i < NUM_OF_MAPPING; i++) {
        if ((i == PAIRS_PER_EXPERT || i == PSUM_END) && !s->has_counts) continue;
        if (i == NUM_TOKENS_PER_EXPERT_HOST && !s->has_host) continue;
        const bool is_of_slots = i == TOKEN_TOPK_TO_POS, is_of_positions = i <= POS_TO_TOKEN_TOPK;
        const int64_t *shape = is_of_slots ? slots : is_of_positions ? &s->num_positions : &s->num_experts;
        case_tensor *t = case_add(c, first + i, names[i], CASE_OUT, TGL_I32, is_of_slots ? 2 : 1, shape);
        t->offset = s->offset;
        t->on_host = i == NUM_TOKENS_PER_EXPERT_HOST;
    }
}

tgl_moe_mapping mapping_of(const case_arguments *a, int first)
{
    DLTensor *const *t = a->arg + first;
    return (tgl_moe_mapping){
        .pos_to_expert = t[POS_TO_EXPERT],
        .pos_to_token = t[POS_TO_TOKEN],
        .pos_to_token_topk = t[POS_TO_TOKEN_TOPK],
        .token_topk_to_pos = t[TOKEN_TOPK_TO_POS],
        .expert_start = t[EXPERT_START],
        .expert_end = t[EXPERT_END],
        .num_tokens_per_expert = t[NUM_TOKENS_PER_EXPERT],
        .count = t[PAIRS_PER_EXPERT],
        .psum_end = t[PSUM_END],
        .num_tokens_per_expert_host = t[NUM_TOKENS_PER_EXPERT_HOST],
    };
}

void mapping_answer(case_problem *c, int first, const case_tensor *indices, int64_t alignment)
{
    case_tensor *t = c->tensors + first;
    routing r = routing_read(indices, t[EXPERT_START].shape[0]);
    mapping m = mapping_make(&r, alignment, t[POS_TO_EXPERT].shape[0]);
    for (int i = 0; i < NUM_OF_MAPPING; i++) put_entries(&t[i], m.at[i]);
    mapping_free(&m);
    free(r.expert);
}
