/* SPDX-License-Identifier: MIT
 * moe_mapping.c - the cases of counts, of the mapping to expert-major order, of moving rows by it. Oracles
 * sort pairs where the ops count and scan, and round exact sums where the ops fuse.
 *
 * Where tokens go, parameter `routing`:
 *   uniform     num_topk experts of all, each as likely, none twice in a row while there are enough
 *   some_empty  any expert, repeats too; every fourth slot is empty, by any negative number
 *   empty       no slot is taken
 *   one         all slots go to one expert
 *   gaps        every other expert of the middle half: none of the first, of the last, of some between
 *   skewed      low experts far more often than high ones
 *   ends        the first expert and the last in turn
 *   garbage     any bits in every other slot, and numbers just outside of what is allowed
 * With num_ranks > 1 all of that happens to num_tokens tokens on each of so many ranks, with num_experts
 * experts on each; what is left are the slots of the first rank, -1 for those of others, in the rows of
 * tokens that have a slot here.
 *
 * How many positions there are, parameter `num_positions`: exact (as many as the mapping fills), more, less,
 * none, bound (what is enough for any routing), or a number. */
#include "tegula/moe.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "moe_common.h"

static void *get_memory(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count + 1, size);
    if (!memory) abort();
    return memory;
}

static bool is_word(const case_problem *c, const char *name, const char *word)
{
    return !strcmp(case_text(c, name), word);
}

/* Parameters that make sense, before memory is taken for them. */
static tgl_status check_word(const case_problem *c, const char *name, const char *words)
{
    const char *value = case_text(c, name);
    for (const char *at = words; *at; at += strcspn(at, " "), at += strspn(at, " "))
        if (strcspn(at, " ") == strlen(value) && !strncmp(at, value, strlen(value))) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: is \"%s\", want one of: %s", name, value, words);
}

static tgl_status check_sizes(case_problem *c, const char *const *names)
{
    for (; *names; names++) {
        const int low = !strcmp(*names, "num_ranks") || !strcmp(*names, "alignment");
        if (!strcmp(*names, "num_positions") && !strchr("-0123456789", case_text(c, *names)[0])) continue;
        const int64_t value = case_int(c, *names);      /* but for words, which num_positions_of() knows */
        if (value < low || value > INT32_MAX)
            return tgl_fail(TGL_ERR_ARGUMENT, "%s: is %s, want %d..%d", *names, case_text(c, *names), low,
                            INT32_MAX);
    }
    return check_word(c, "routing", "uniform some_empty empty one gaps skewed ends garbage");
}

#define SIZES(...) (const char *const[]){ "num_tokens", "num_topk", "num_ranks", __VA_ARGS__ }

/* ---- where tokens go ---- */

typedef struct {
    int64_t num_tokens, num_topk, num_experts;
    int64_t *expert;                            /* [num_tokens, num_topk] */
} routing;

static bool is_expert(const routing *r, int64_t value) { return value >= 0 && value < r->num_experts; }

/* Random numbers in a row. */
typedef struct { uint64_t seed; int64_t count; } dice;
static uint64_t roll(dice *d) { return case_random(d->seed, d->count++); }
static int64_t below(dice *d, int64_t n) { return n > 0 ? (int64_t)(roll(d) % (uint64_t)n) : 0; }

/* num_topk of n experts; the first num_experts of them are here. */
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
        if (!is_expert(r, row[k])) row[k] = -1;
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

static void choose_row(const case_problem *c, dice *d, int64_t num_ranks, const routing *r, int64_t *row)
{
    const int64_t e = r->num_experts;
    if (is_word(c, "routing", "uniform")) {
        choose_uniform(d, e * num_ranks, r, row);
        return;
    }
    for (int64_t k = 0; k < r->num_topk; k++) {
        const double unit = ldexp((double)(roll(d) >> 11), -53);
        if (is_word(c, "routing", "empty")) row[k] = -1;
        else if (is_word(c, "routing", "one")) row[k] = e / 2;
        else if (is_word(c, "routing", "gaps")) row[k] = (e / 4 + below(d, (e + 1) / 2)) / 2 * 2 + (e > 1);
        else if (is_word(c, "routing", "skewed")) row[k] = (int64_t)((double)e * unit * unit * unit * unit);
        else if (is_word(c, "routing", "ends")) row[k] = k % 2 ? e - 1 : 0;
        else if (is_word(c, "routing", "garbage")) row[k] = choose_garbage(d, e);
        else row[k] = unit < 0.25 ? -1 - below(d, 9) : below(d, e);
    }
}

static bool has_slot_here(const routing *r, const int64_t *row)
{
    for (int64_t k = 0; k < r->num_topk; k++)
        if (is_expert(r, row[k])) return true;
    return false;
}

/* Of group_count, experts are groups. */
static const char *name_of_experts(const case_problem *c)
{
    for (int p = 0; p < c->params.count; p++)
        if (!strcmp(c->params.item[p].name, "num_groups")) return "num_groups";
    return "num_experts";
}

/* Seeded by its own parameters alone, so that ops that are timed one after the other see the same tokens. */
static routing make_routing(case_problem *c)
{
    char name[256];
    routing r = { 0, case_int(c, "num_topk"), case_int(c, name_of_experts(c)), NULL };
    const int64_t num_ranks = case_int(c, "num_ranks"), rows = case_int(c, "num_tokens") * num_ranks;
    snprintf(name, sizeof name, "%s %s %s %s %s", case_text(c, "num_tokens"), case_text(c, "num_topk"),
             case_text(c, name_of_experts(c)), case_text(c, "num_ranks"), case_text(c, "routing"));
    dice d = { case_seed(name), 0 };
    r.expert = get_memory(rows * r.num_topk, sizeof *r.expert);
    for (int64_t t = 0; t < rows; t++) {
        int64_t *row = r.expert + r.num_tokens * r.num_topk;
        choose_row(c, &d, num_ranks, &r, row);
        r.num_tokens += num_ranks == 1 || has_slot_here(&r, row);
    }
    return r;
}

/* ---- the mapping, by a sort ---- */

typedef struct {
    int64_t num_tokens, num_topk, num_experts, num_positions, num_pairs;
    int32_t *token_topk_to_pos, *pos_to_expert, *pos_to_token, *pos_to_token_topk;
    int32_t *start, *end, *count;
} mapping;

typedef struct { int64_t expert, flat; } pair;

static int by_expert_and_place(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    if (x->expert != y->expert) return x->expert < y->expert ? -1 : 1;
    return x->flat < y->flat ? -1 : x->flat > y->flat;
}

static int32_t *make_entries(int64_t count)     /* all -1 */
{
    int32_t *entries = get_memory(count, sizeof *entries);
    memset(entries, 0xff, (size_t)count * sizeof *entries);
    return entries;
}

static mapping make_mapping(const routing *r, int64_t alignment, int64_t num_positions)
{
    const int64_t num_slots = r->num_tokens * r->num_topk;
    mapping m = { .num_tokens = r->num_tokens, .num_topk = r->num_topk, .num_experts = r->num_experts,
                  .num_positions = num_positions, .token_topk_to_pos = make_entries(num_slots),
                  .pos_to_expert = make_entries(num_positions), .pos_to_token = make_entries(num_positions),
                  .pos_to_token_topk = make_entries(num_positions), .start = make_entries(r->num_experts),
                  .end = make_entries(r->num_experts), .count = make_entries(r->num_experts) };
    pair *pairs = get_memory(num_slots, sizeof *pairs);
    for (int64_t i = 0; i < num_slots; i++)
        if (is_expert(r, r->expert[i])) pairs[m.num_pairs++] = (pair){ r->expert[i], i };
    qsort(pairs, (size_t)m.num_pairs, sizeof *pairs, by_expert_and_place);
    int64_t next = 0, at = 0;
    for (int64_t e = 0; e < r->num_experts; e++) {
        m.start[e] = (int32_t)at;
        for (; next < m.num_pairs && pairs[next].expert == e; next++, at++) {
            if (at >= num_positions) continue;
            m.pos_to_expert[at] = (int32_t)e;
            m.pos_to_token[at] = (int32_t)(pairs[next].flat / r->num_topk);
            m.pos_to_token_topk[at] = (int32_t)pairs[next].flat;
            m.token_topk_to_pos[pairs[next].flat] = (int32_t)at;
        }
        m.count[e] = (int32_t)(at - m.start[e]);
        while (at % alignment) at++;
        m.end[e] = (int32_t)at;
    }
    free(pairs);
    return m;
}

static void free_mapping(mapping *m)
{
    free(m->token_topk_to_pos);
    free(m->pos_to_expert);
    free(m->pos_to_token);
    free(m->pos_to_token_topk);
    free(m->start);
    free(m->end);
    free(m->count);
}

static int64_t num_positions_of(case_problem *c, const routing *r)
{
    const int64_t alignment = case_int(c, "alignment"), e = r->num_experts;
    int64_t *count = get_memory(e, sizeof *count), total = 0;
    for (int64_t i = 0; i < r->num_tokens * r->num_topk; i++)
        if (is_expert(r, r->expert[i])) count[r->expert[i]]++;
    for (int64_t i = 0; i < e; i++) total += (count[i] + alignment - 1) / alignment * alignment;
    free(count);
    if (is_word(c, "num_positions", "exact")) return total;
    if (is_word(c, "num_positions", "more")) return total + 37;
    if (is_word(c, "num_positions", "less")) return total / 2;
    if (is_word(c, "num_positions", "none")) return 0;
    if (is_word(c, "num_positions", "bound"))
        return (r->num_tokens * r->num_topk + (alignment - 1) * e) / alignment * alignment;
    return case_int(c, "num_positions");
}

/* ---- tensors of indices ---- */

enum { INDICES };

/* What lies between rows are experts too, which are not to be counted. */
static void fill_indices(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_problem *problem = (case_problem *)(uintptr_t)c;       /* case_int() may note an error there */
    const routing r = make_routing(problem);
    for (int64_t i = 0; i < t->slots; i++) {
        const int64_t expert = case_random_below(seed, i, r.num_experts);
        if (t->element_bytes == 4) ((int32_t *)t->storage)[i] = (int32_t)expert;
        else ((int64_t *)t->storage)[i] = expert;
    }
    for (int64_t token = 0; token < t->shape[0]; token++)
        for (int64_t k = 0; k < t->shape[1]; k++)
            moe_put_index(t, token, k, r.expert[token * r.num_topk + k]);
    free(r.expert);
}

/* The tensor as the op sees it: with row stride 0 all tokens are one, and i32 cuts garbage off. */
static routing read_routing(const case_tensor *t, int64_t num_experts)
{
    routing r = { t->shape[0], t->shape[1], num_experts, NULL };
    r.expert = get_memory(r.num_tokens * r.num_topk, sizeof *r.expert);
    for (int64_t token = 0; token < r.num_tokens; token++)
        for (int64_t k = 0; k < r.num_topk; k++)
            r.expert[token * r.num_topk + k] = moe_index_at(t, token, k);
    return r;
}

static tgl_status add_indices(case_problem *c, const char *name, routing *r)
{
    *r = (routing){ 0 };
    TGL_TRY(check_sizes(c, SIZES(name_of_experts(c), NULL)));
    *r = make_routing(c);
    case_tensor *t = case_add(c, INDICES, name, CASE_IN, case_dtype(c, "dtype"), 2,
                              (int64_t[]){ r->num_tokens, r->num_topk });
    t->offset = case_int(c, "offset");
    t->fill = fill_indices;
    TGL_TRY(moe_lay_out(case_text(c, "layout"), r->num_topk, t->strides));
    for (int64_t i = 0; i < r->num_tokens * r->num_topk; i++) {
        if (t->dtype == TGL_I32) r->expert[i] = (int32_t)r->expert[i];
        if (t->strides[0] == 0) r->expert[i] = r->expert[(r->num_tokens - 1) * r->num_topk + i % r->num_topk];
    }
    return TGL_OK;
}

/* ---- group_count, aux_fi ---- */

enum { COUNTS = INDICES + 1 };

static tgl_status setup_group_count(case_problem *c)
{
    routing r;
    const tgl_status status = add_indices(c, "group_idx", &r);
    free(r.expert);
    case_add(c, COUNTS, "counts", CASE_OUT, TGL_I32, 1, &r.num_experts)->offset = case_int(c, "out_offset");
    return status;
}

static tgl_status run_group_count(const case_arguments *a)
{
    return tgl_moe_group_count(a->arg[INDICES], a->arg[COUNTS], a->workspace, a->workspace_bytes, a->stream);
}

static size_t workspace_group_count(const case_arguments *a)
{
    return tgl_moe_group_count_workspace_size(a->arg[INDICES], a->arg[COUNTS]);
}

static int64_t *count_experts(const case_problem *c)
{
    const int64_t e = c->tensors[COUNTS].shape[0];
    int64_t *count = get_memory(e, sizeof *count);
    routing r = read_routing(&c->tensors[INDICES], e);
    for (int64_t i = 0; i < r.num_tokens * r.num_topk; i++)
        if (is_expert(&r, r.expert[i])) count[r.expert[i]]++;
    free(r.expert);
    return count;
}

static void oracle_group_count(case_problem *c)
{
    int64_t *count = count_experts(c);
    for (int64_t e = 0; e < c->tensors[COUNTS].shape[0]; e++)
        ((int32_t *)c->tensors[COUNTS].data)[e] = (int32_t)count[e];
    free(count);
}

static int64_t bytes_of_all(const case_problem *c)
{
    int64_t bytes = 0;
    for (int i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].name) bytes += case_tensor_bytes(&c->tensors[i]);
    return bytes;
}

static tgl_status setup_aux_fi(case_problem *c)
{
    routing r;
    const int64_t num_aux_topk = case_int(c, "num_aux_topk");
    const tgl_status status = add_indices(c, "topk_idx", &r);
    free(r.expert);
    memcpy(c->scalars, &num_aux_topk, sizeof num_aux_topk);
    case_add(c, COUNTS, "fi", CASE_OUT, TGL_F32, 1, &r.num_experts)->offset = case_int(c, "out_offset");
    return status;
}

static int64_t scalar_of(const case_problem *c)
{
    int64_t value;
    memcpy(&value, c->scalars, sizeof value);
    return value;
}

static tgl_status run_aux_fi(const case_arguments *a)
{
    return tgl_moe_aux_fi(a->arg[INDICES], a->arg[COUNTS], scalar_of(a->problem), a->workspace,
                          a->workspace_bytes, a->stream);
}

static size_t workspace_aux_fi(const case_arguments *a)
{
    return tgl_moe_aux_fi_workspace_size(a->arg[INDICES], a->arg[COUNTS]);
}

/* A whole number to the nearest float: its upper 24 bits, and what is below them decides. */
static double nearest_float(__int128 value)
{
    int shift = 0;
    while (value >> shift >= (__int128)1 << 24) shift++;
    const __int128 half = shift ? (__int128)1 << (shift - 1) : 0, rest = value - (value >> shift << shift);
    int64_t upper = (int64_t)(value >> shift);
    if (shift && (rest > half || (rest == half && upper % 2))) upper++;
    return ldexp((double)upper, shift);
}

/* The quotient in double, rounded again, is that of one division in float: 53 bits are more than twice 24. */
static void oracle_aux_fi(case_problem *c)
{
    const int64_t e = c->tensors[COUNTS].shape[0], tokens = c->tensors[INDICES].shape[0];
    int64_t *count = count_experts(c);
    for (int64_t i = 0; i < e; i++) {
        const double over = nearest_float((__int128)tokens * scalar_of(c));
        const double quotient = tokens ? nearest_float((__int128)count[i] * e) / over : 0;
        case_encode(TGL_F32, quotient, c->tensors[COUNTS].data + 4 * i);
    }
    free(count);
}

/* ---- get_fused_mapping ---- */

enum {
    POS_TO_EXPERT = INDICES + 1, POS_TO_TOKEN, POS_TO_TOKEN_TOPK, TOKEN_TOPK_TO_POS, EXPERT_START, EXPERT_END,
    LENGTH, COUNT, PSUM_END, LENGTH_ON_HOST
};

static tgl_status setup_mapping(case_problem *c)
{
    static const struct { int index; const char *name; } of_positions[] = {
        { POS_TO_EXPERT, "pos_to_expert" }, { POS_TO_TOKEN, "pos_to_token" },
        { POS_TO_TOKEN_TOPK, "pos_to_token_topk" },
    }, of_experts[] = {
        { EXPERT_START, "expert_start" }, { EXPERT_END, "expert_end" }, { LENGTH, "num_tokens_per_expert" },
        { COUNT, "count" }, { PSUM_END, "psum_end" }, { LENGTH_ON_HOST, "num_tokens_per_expert_host" },
    };
    const int64_t alignment = case_int(c, "alignment"), offset = case_int(c, "out_offset");
    TGL_TRY(check_sizes(c, SIZES("num_experts", "alignment", "num_positions", NULL)));
    const bool with_counts = case_int(c, "counts") != 0, with_host = case_int(c, "host") != 0;
    routing r;
    const tgl_status status = add_indices(c, "topk_idx", &r);
    const int64_t num_positions = status == TGL_OK ? num_positions_of(c, &r) : 0;
    free(r.expert);
    memcpy(c->scalars, &alignment, sizeof alignment);
    for (size_t i = 0; i < sizeof of_positions / sizeof *of_positions; i++) {
        case_tensor *t =
            case_add(c, of_positions[i].index, of_positions[i].name, CASE_OUT, TGL_I32, 1, &num_positions);
        t->offset = offset;
    }
    const int64_t slots[2] = { r.num_tokens, r.num_topk };
    case_add(c, TOKEN_TOPK_TO_POS, "token_topk_to_pos", CASE_OUT, TGL_I32, 2, slots)->offset = offset;
    for (size_t i = 0; i < sizeof of_experts / sizeof *of_experts; i++) {
        const int index = of_experts[i].index;
        if ((index == COUNT || index == PSUM_END) && !with_counts) continue;
        if (index == LENGTH_ON_HOST && !with_host) continue;
        case_tensor *t = case_add(c, index, of_experts[i].name, CASE_OUT, TGL_I32, 1, &r.num_experts);
        t->offset = offset;
        t->on_host = index == LENGTH_ON_HOST;
    }
    return status;
}

static tgl_moe_mapping mapping_of(const case_arguments *a)
{
    return (tgl_moe_mapping){
        .pos_to_expert = a->arg[POS_TO_EXPERT], .pos_to_token = a->arg[POS_TO_TOKEN],
        .pos_to_token_topk = a->arg[POS_TO_TOKEN_TOPK], .token_topk_to_pos = a->arg[TOKEN_TOPK_TO_POS],
        .expert_start = a->arg[EXPERT_START], .expert_end = a->arg[EXPERT_END],
        .num_tokens_per_expert = a->arg[LENGTH], .count = a->arg[COUNT], .psum_end = a->arg[PSUM_END],
        .num_tokens_per_expert_host = a->arg[LENGTH_ON_HOST],
    };
}

static tgl_status run_mapping(const case_arguments *a)
{
    const tgl_moe_mapping m = mapping_of(a);
    return tgl_moe_get_fused_mapping(a->arg[INDICES], &m, scalar_of(a->problem), a->workspace,
                                     a->workspace_bytes, a->stream);
}

static size_t workspace_mapping(const case_arguments *a)
{
    const tgl_moe_mapping m = mapping_of(a);
    return tgl_moe_get_fused_mapping_workspace_size(a->arg[INDICES], &m);
}

static void put_entries(case_tensor *t, const int32_t *entries)
{
    if (t->name) memcpy(t->data, entries, (size_t)(t->slots * t->element_bytes));
}

static void oracle_mapping(case_problem *c)
{
    const int64_t e = c->tensors[EXPERT_START].shape[0];
    routing r = read_routing(&c->tensors[INDICES], e);
    mapping m = make_mapping(&r, scalar_of(c), c->tensors[POS_TO_EXPERT].shape[0]);
    put_entries(&c->tensors[POS_TO_EXPERT], m.pos_to_expert);
    put_entries(&c->tensors[POS_TO_TOKEN], m.pos_to_token);
    put_entries(&c->tensors[POS_TO_TOKEN_TOPK], m.pos_to_token_topk);
    put_entries(&c->tensors[TOKEN_TOPK_TO_POS], m.token_topk_to_pos);
    put_entries(&c->tensors[EXPERT_START], m.start);
    put_entries(&c->tensors[EXPERT_END], m.end);
    put_entries(&c->tensors[COUNT], m.count);
    for (int64_t i = 0; i < e; i++) m.count[i] += m.start[i];
    put_entries(&c->tensors[PSUM_END], m.count);
    for (int64_t i = 0; i < e; i++) m.end[i] -= m.start[i];
    put_entries(&c->tensors[LENGTH], m.end);
    put_entries(&c->tensors[LENGTH_ON_HOST], m.end);
    free_mapping(&m);
    free(r.expert);
}

/* ---- rows of tokens and of positions ----
 * Parameter `slots`, what token_topk_to_pos and pos_to_expert say:
 *   mapped  what get_fused_mapping writes
 *   lost    some pairs are missing, whose positions still belong to an expert
 *   wild    empty slots lead to any place outside of the positions, experts are any numbers of their sign */

enum { TO_POS, TO_EXPERT };

static mapping make_case_mapping(case_problem *c)
{
    routing r = make_routing(c);
    mapping m = make_mapping(&r, case_int(c, "alignment"), num_positions_of(c, &r));
    free(r.expert);
    dice d = { case_seed("slots"), 0 };
    for (int64_t i = 0; i < m.num_tokens * m.num_topk; i++) {
        int32_t *p = &m.token_topk_to_pos[i];
        if (is_word(c, "slots", "lost") && below(&d, 3) == 0) *p = -1;
        if (is_word(c, "slots", "padded") && *p >= 0 && below(&d, 3) == 0) m.pos_to_expert[*p] = -1;
        if (is_word(c, "slots", "wild") && *p < 0) {
            const int64_t outside[] = { -1, -2, INT32_MIN, m.num_positions, m.num_positions + 1, INT32_MAX };
            *p = (int32_t)outside[below(&d, 6)];
        }
    }
    if (is_word(c, "slots", "wild"))
        for (int64_t p = 0; p < m.num_positions; p++) {
            const int32_t low = (int32_t)(roll(&d) & INT32_MAX);
            m.pos_to_expert[p] = m.pos_to_expert[p] < 0 ? -1 - low : low;
        }
    return m;
}

static void fill_to_pos(const case_problem *c, case_tensor *t, uint64_t seed)
{
    (void)seed;
    mapping m = make_case_mapping((case_problem *)(uintptr_t)c);
    put_entries(t, m.token_topk_to_pos);
    free_mapping(&m);
}

static void fill_to_expert(const case_problem *c, case_tensor *t, uint64_t seed)
{
    (void)seed;
    mapping m = make_case_mapping((case_problem *)(uintptr_t)c);
    put_entries(t, m.pos_to_expert);
    free_mapping(&m);
}

/* ---- expand_to_fused, expand_to_fused_with_sf ---- */

enum { TOKENS = TO_EXPERT + 1, EXPANDED, TOKEN_SF, EXPANDED_SF };

/* Rows that no pair leads to keep what they had: where there are such, the output starts with values. */
static case_role role_of_output(const case_problem *c)
{
    return is_word(c, "slots", "lost") ? CASE_INOUT : CASE_OUT;
}

static tgl_status setup_expand(case_problem *c)
{
    const int64_t hidden = case_int(c, "hidden");
    const tgl_dtype dtype = case_dtype(c, "dtype");
    TGL_TRY(check_sizes(c, SIZES("num_experts", "alignment", "num_positions", "hidden", NULL)));
    TGL_TRY(check_word(c, "slots", "mapped lost wild padded"));
    routing r = make_routing(c);
    const int64_t num_positions = num_positions_of(c, &r);
    free(r.expert);
    const int64_t slots[2] = { r.num_tokens, r.num_topk };
    case_add(c, TO_POS, "token_topk_to_pos", CASE_IN, TGL_I32, 2, slots)->fill = fill_to_pos;
    case_add(c, TO_EXPERT, "pos_to_expert", CASE_IN, TGL_I32, 1, &num_positions)->fill = fill_to_expert;
    case_tensor *x = case_add(c, TOKENS, "x", CASE_IN, dtype, 2, (int64_t[]){ r.num_tokens, hidden });
    x->offset = case_int(c, "offset");
    case_add(c, EXPANDED, "out", role_of_output(c), dtype, 2, (int64_t[]){ num_positions, hidden })->offset =
        case_int(c, "out_offset");
    return moe_lay_out(case_text(c, "layout"), hidden, x->strides);
}

static tgl_status run_expand(const case_arguments *a)
{
    return tgl_moe_expand_to_fused(a->arg[TOKENS], a->arg[TO_POS], a->arg[TO_EXPERT], a->arg[EXPANDED],
                                   a->stream);
}

/* Row p of one tensor from row t of another, or zeros where t < 0: bytes, the whole row at once where it is
 * packed. */
static void put_row(const case_tensor *to, int64_t p, const case_tensor *from, int64_t t)
{
    const int64_t size = to->element_bytes, cols = to->shape[1];
    const int64_t run = cols && to->strides[1] == 1 && from->strides[1] == 1 ? cols : 1;
    for (int64_t i = 0; i < cols; i += run) {
        void *row = case_element(to, (int64_t[]){ p, i });
        if (t < 0) memset(row, 0, (size_t)(run * size));
        else memcpy(row, case_element(from, (int64_t[]){ t, i }), (size_t)(run * size));
    }
}

static void expand_rows(const case_problem *c, const case_tensor *from, const case_tensor *to)
{
    const case_tensor *to_pos = &c->tensors[TO_POS], *to_expert = &c->tensors[TO_EXPERT];
    for (int64_t p = 0; p < to->shape[0]; p++)
        if (((const int32_t *)to_expert->data)[p] < 0) put_row(to, p, from, -1);
    for (int64_t t = 0; t < from->shape[0]; t++)
        for (int64_t k = 0; k < to_pos->shape[1]; k++) {
            const int64_t p = moe_index_at(to_pos, t, k);
            if (p < 0 || p >= to->shape[0] || ((const int32_t *)to_expert->data)[p] < 0) continue;
            put_row(to, p, from, t);
        }
}

static void oracle_expand(case_problem *c)
{
    expand_rows(c, &c->tensors[TOKENS], &c->tensors[EXPANDED]);
}

/* Scale factors are laid out
 *   packed
 *   gap       rows 3 elements apart
 *   columns   column-major, columns as far apart as there are rows, rounded up to 4
 *   apart     column-major, columns 5 elements apart
 *   steps     every third element of rows thrice as long, backwards (inputs only) */
static tgl_status lay_out_sf(const char *layout, const int64_t shape[2], int64_t strides[2])
{
    strides[0] = shape[1], strides[1] = 1;
    if (!strcmp(layout, "gap")) strides[0] += 3;
    else if (!strcmp(layout, "columns")) strides[0] = 1, strides[1] = (shape[0] + 3) / 4 * 4;
    else if (!strcmp(layout, "apart")) strides[0] = 1, strides[1] = shape[0] + 5;
    else if (!strcmp(layout, "steps")) strides[0] = 3 * shape[1], strides[1] = -3;
    else if (strcmp(layout, "packed"))
        return tgl_fail(TGL_ERR_ARGUMENT, "sf_layout: is \"%s\", want packed, gap, columns, apart or steps",
                        layout);
    return TGL_OK;
}

static tgl_status setup_expand_with_sf(case_problem *c)
{
    const int64_t npc = case_int(c, "num_per_channels"), pairs = case_int(c, "pairs");
    const tgl_dtype dtype = case_dtype(c, "sf_dtype");
    TGL_TRY(setup_expand(c));
    const int64_t width = c->tensors[TOKENS].shape[1] * (pairs ? 2 : 1);
    const int64_t num_factors = npc > 0 ? (width + npc - 1) / npc : 0;
    const int64_t num_sf = dtype == TGL_I32 ? (num_factors + 3) / 4 : num_factors;
    memcpy(c->scalars, &npc, sizeof npc);
    const int64_t shape[2] = { c->tensors[TOKENS].shape[0], num_sf };
    const int64_t out_shape[2] = { c->tensors[EXPANDED].shape[0], num_sf };
    case_tensor *sf = case_add(c, TOKEN_SF, "x_sf", CASE_IN, dtype, 2, shape);
    case_tensor *out = case_add(c, EXPANDED_SF, "out_sf", role_of_output(c), dtype, 2, out_shape);
    TGL_TRY(lay_out_sf(case_text(c, "sf_layout"), shape, sf->strides));
    return lay_out_sf(case_text(c, "out_sf_layout"), out_shape, out->strides);
}

static tgl_status run_expand_with_sf(const case_arguments *a)
{
    return tgl_moe_expand_to_fused_with_sf(a->arg[TOKENS], a->arg[TOKEN_SF], a->arg[TO_POS],
                                           a->arg[TO_EXPERT], a->arg[EXPANDED], a->arg[EXPANDED_SF],
                                           scalar_of(a->problem), a->stream);
}

static void oracle_expand_with_sf(case_problem *c)
{
    oracle_expand(c);
    expand_rows(c, &c->tensors[TOKEN_SF], &c->tensors[EXPANDED_SF]);
}

/* ---- reduce_fused ----
 * Whatever is not to be read is NaN: weights of empty slots, rows of x and factors that no slot leads to.
 * Values, of x and of weights and factors alike:
 *   normal, bits  as in moe_common.h
 *   special       NaN, infinities, zeros, subnormals, the largest
 *   order         sums that depend on the order, products that need all their bits
 *   halfway       between two numbers of the output's dtype, or just beside; weights and factors are 1
 *   large         around the largest numbers of e4m3, f16 and bf16; weights and factors are 1 */

enum { ROWS = TO_POS + 1, ROW_SF, WEIGHTS, SCALE, REDUCED };

static double halfway_value(tgl_dtype dtype, uint64_t random)
{
    unsigned char code[2][16] = { { 0 } };
    const bool is_byte = dtype == TGL_E4M3;
    const unsigned magnitude = (unsigned)(random % (is_byte ? 0x7e : dtype == TGL_F16 ? 0x7bff : 0x7f7f));
    for (unsigned i = 0; i < 2; i++) {
        code[i][0] = (unsigned char)((magnitude + i) & 0xff);
        code[i][1] = (unsigned char)((magnitude + i) >> 8);
    }
    const tgl_dtype format = dtype == TGL_F32 ? TGL_BF16 : dtype;
    const float middle = (float)((case_decode(format, code[0]) + case_decode(format, code[1])) / 2);
    const float beside = random >> 40 & 1 ? nextafterf(middle, INFINITY) : nextafterf(middle, 0);
    return (random >> 32 & 1 ? -1.0 : 1.0) * (double)(random >> 41 & 1 ? beside : middle);
}

static double value_of(const case_problem *c, bool is_x, uint64_t random)
{
    static const float special[] = { NAN, -NAN, INFINITY, -INFINITY, 0, -0.0f, 1e-40f, -1e-45f, 1e-38f,
                                     3.4028235e38f, -3.4028235e38f, 1, -1, 0.3f };
    static const float order[] = { 16777216,       -16777216,      1,       1.0000001f, -0.99999994f,
                                   4097,           0.00024420023f, 8388609, 3e-8f,      1.1754944e-38f,
                                   -5.9604645e-8f, 0.1f,           1e-30f,  1e20f,      -1e20f };
    static const float large[] = { 448,           449,           463.99997f,    464,          464.00003f,
                                   465,           479.99997f,    480,           1e6f,         INFINITY,
                                   NAN,           65504,         65519.996f,    65520,        65536,
                                   3.3895314e38f, 3.3961775e38f, 3.3961773e38f, 3.4028235e38f };
    const uint64_t pick = random >> 8;
    const float sign = random & 1 ? -1.0f : 1.0f;
    if (is_word(c, "values", "special")) return (double)special[pick % (sizeof special / sizeof *special)];
    if (is_word(c, "values", "order")) return (double)order[pick % (sizeof order / sizeof *order)];
    if (!is_x) return 1;
    if (is_word(c, "values", "large")) return (double)(sign * large[pick % (sizeof large / sizeof *large)]);
    return halfway_value(c->tensors[REDUCED].dtype, random);
}

typedef struct { const case_problem *c; case_tensor *t; uint64_t seed; } filling;

static void values_chunk(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    for (int64_t i = begin; i < end; i++)
        case_encode(f->t->dtype, value_of(f->c, f->t == &f->c->tensors[ROWS], case_random(f->seed, i)),
                    f->t->storage + i * f->t->element_bytes);
}

static void fill_values(const case_problem *c, case_tensor *t, uint64_t seed)
{
    if (is_word(c, "values", "normal")) case_fill_normal(c, t, seed);
    else if (is_word(c, "values", "bits")) case_fill_bits(c, t, seed);
    else case_parallel(t->slots, 64, values_chunk, &(filling){ c, t, seed });
}

static bool is_position(const case_problem *c, int64_t p) { return p >= 0 && p < c->tensors[ROWS].shape[0]; }

static void fill_weights(const case_problem *c, case_tensor *t, uint64_t seed)
{
    fill_values(c, t, seed);
    for (int64_t i = 0; i < t->shape[0] * t->shape[1]; i++) {
        const int64_t at[2] = { i / t->shape[1], i % t->shape[1] };
        if (t->strides[0] && !is_position(c, moe_index_at(&c->tensors[TO_POS], at[0], at[1])))
            case_encode(TGL_F32, NAN, case_element(t, at));
    }
}

/* Rows of x and their factors. */
static void fill_rows(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const case_tensor *to_pos = &c->tensors[TO_POS];
    bool *is_read = get_memory(t->shape[0], sizeof *is_read);
    fill_values(c, t, seed);
    for (int64_t i = 0; i < to_pos->shape[0] * to_pos->shape[1]; i++) {
        const int64_t p = ((const int32_t *)to_pos->data)[i];
        if (is_position(c, p)) is_read[p] = true;
    }
    const int64_t width = t->ndim > 1 ? t->shape[1] : 1;
    char *nans = get_memory(width, (size_t)t->element_bytes);
    for (int64_t i = 0; i < width; i++) case_encode(t->dtype, NAN, nans + i * t->element_bytes);
    for (int64_t p = 0; p < t->shape[0] && width; p++)
        if (!is_read[p] && (t->ndim == 1 || t->strides[0]))
            memcpy(case_element(t, (int64_t[]){ p, 0 }), nans, (size_t)(width * t->element_bytes));
    free(nans);
    free(is_read);
}

static void fill_scale(const case_problem *c, case_tensor *t, uint64_t seed)
{
    (void)seed;
    *(float *)t->data = strtof(case_text(c, "sf"), NULL);
}

typedef struct { int64_t num_pairs; } reduce_facts;

static tgl_status setup_reduce(case_problem *c)
{
    const int64_t hidden = case_int(c, "hidden");
    const tgl_dtype dtype = case_dtype(c, "dtype"), out_dtype = case_dtype(c, "out_dtype");
    TGL_TRY(check_sizes(c, SIZES("num_experts", "alignment", "num_positions", "hidden", NULL)));
    TGL_TRY(check_word(c, "slots", "mapped lost wild"));
    TGL_TRY(check_word(c, "values", "normal bits special order halfway large"));
    mapping m = make_case_mapping(c);
    const int64_t slots[2] = { m.num_tokens, m.num_topk };
    reduce_facts facts = { 0 };
    for (int64_t i = 0; i < slots[0] * slots[1]; i++)
        facts.num_pairs += m.token_topk_to_pos[i] >= 0 && m.token_topk_to_pos[i] < m.num_positions;
    memcpy(c->scalars, &facts, sizeof facts);
    free_mapping(&m);
    case_add(c, TO_POS, "token_topk_to_pos", CASE_IN, TGL_I32, 2, slots)->fill = fill_to_pos;
    case_tensor *x = case_add(c, ROWS, "x", CASE_IN, dtype, 2, (int64_t[]){ m.num_positions, hidden });
    x->fill = fill_rows;
    x->offset = case_int(c, "offset");
    if (case_int(c, "x_sf"))
        case_add(c, ROW_SF, "x_sf", CASE_IN, TGL_F32, 1, &m.num_positions)->fill = fill_rows;
    if (case_int(c, "weights")) {
        case_tensor *w = case_add(c, WEIGHTS, "topk_weights", CASE_IN, TGL_F32, 2, slots);
        w->fill = fill_weights;
        w->offset = x->offset;
        TGL_TRY(moe_lay_out(case_text(c, "layout"), slots[1], w->strides));
    }
    if (!is_word(c, "sf", "none"))
        case_add(c, SCALE, "sf", CASE_IN, TGL_F32, 1, (int64_t[]){ 1 })->fill = fill_scale;
    case_tensor *out =
        case_add(c, REDUCED, "out", CASE_OUT, out_dtype, 2, (int64_t[]){ m.num_tokens, hidden });
    out->offset = case_int(c, "out_offset");
    TGL_TRY(moe_lay_out(case_text(c, "layout"), hidden, x->strides));
    return moe_lay_out(case_text(c, "out_layout"), hidden, out->strides);
}

static tgl_status run_reduce(const case_arguments *a)
{
    return tgl_moe_reduce_fused(a->arg[ROWS], a->arg[ROW_SF], a->arg[WEIGHTS], a->arg[TO_POS], a->arg[SCALE],
                                a->arg[REDUCED], a->stream);
}

/* a * b + c with one rounding. The product of two floats is exact in double; the sum is made with its error,
 * and where there is one, its last bit is set to 1: then it lies on the same side of every float and of every
 * middle between two as the exact sum, and rounding it again gives what rounding the exact sum does. */
static float fused(float a, float b, float c)
{
    const double product = (double)a * (double)b, addend = (double)c;
    const double sum = product + addend;
    if (!isfinite(sum) || sum == 0) return (float)sum;
    const double part = sum - product;
    const double error = (product - (sum - part)) + (addend - part);
    int64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if (error != 0 && bits % 2 == 0) bits += (error > 0) == (sum > 0) ? 1 : -1;
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}

/* `decoded` has the numbers of all codes of x's dtype, where that is narrower than f32. */
typedef struct { const case_problem *c; float *decoded; } reduction;

static float element_of(const reduction *r, const case_tensor *t, const char *from)
{
    if (t->element_bytes == 4) return *(const float *)from;
    return r->decoded[t->element_bytes == 2 ? *(const uint16_t *)from : *(const uint8_t *)from];
}

static void reduce_rows(void *context, int64_t begin, int64_t end)
{
    const reduction *r = context;
    const case_tensor *const t = r->c->tensors, *const x = &t[ROWS], *const out = &t[REDUCED];
    const int64_t hidden = out->shape[1];
    const uint32_t nan = UINT32_MAX >> (33 - 8 * out->element_bytes);       /* all bits but the sign */
    float *sum = get_memory(hidden, sizeof *sum);
    for (int64_t token = begin; token < end; token++) {
        for (int64_t i = 0; i < hidden; i++) sum[i] = 0;
        for (int64_t k = 0; k < t[TO_POS].shape[1]; k++) {
            const int64_t p = moe_index_at(&t[TO_POS], token, k);
            if (!is_position(r->c, p)) continue;
            double factor = 1;
            if (t[WEIGHTS].name) factor = *(const float *)case_element(&t[WEIGHTS], (int64_t[]){ token, k });
            if (t[ROW_SF].name) factor = (double)(float)(factor * (double)((const float *)t[ROW_SF].data)[p]);
            const char *row = case_element(x, (int64_t[]){ p, 0 });
            for (int64_t i = 0; i < hidden; i++)
                sum[i] = fused(element_of(r, x, row + i * x->element_bytes), (float)factor, sum[i]);
        }
        for (int64_t i = 0; i < hidden; i++) {
            void *to = case_element(out, (int64_t[]){ token, i });
            if (t[SCALE].name) sum[i] = (float)((double)sum[i] * (double)*(const float *)t[SCALE].data);
            if (isnan(sum[i])) memcpy(to, &nan, (size_t)out->element_bytes);
            else case_encode(out->dtype, (double)sum[i], to);
        }
    }
    free(sum);
}

static void oracle_reduce(case_problem *c)
{
    const case_tensor *x = &c->tensors[ROWS];
    reduction r = { c, NULL };
    if (x->element_bytes < 4) {
        r.decoded = get_memory(65536, sizeof *r.decoded);
        for (uint32_t code = 0; code < (x->element_bytes == 2 ? 65536u : 256u); code++)
            r.decoded[code] = (float)case_decode(x->dtype, &code);
    }
    case_parallel(c->tensors[TO_POS].shape[0], 64 * x->shape[1], reduce_rows, &r);
    free(r.decoded);
}

/* Rows of x that slots lead to; the rest whole. */
static int64_t bytes_reduce(const case_problem *c)
{
    const case_tensor *x = &c->tensors[ROWS];
    reduce_facts facts;
    memcpy(&facts, c->scalars, sizeof facts);
    const int64_t row = x->shape[1] * (tgl_dtype_bits(tgl_dtype_to_dlpack(x->dtype)) / 8);
    return bytes_of_all(c) - case_tensor_bytes(x) + facts.num_pairs * row;
}

/* ---- the table ---- */

#define ROUTING "num_tokens= num_topk= num_experts= num_ranks=1 routing=uniform "

const case_op moe_mapping_ops[] = {
    {
        "moe_group_count",
        "num_tokens= num_topk= num_groups= num_ranks=1 routing=uniform dtype=i64 layout=packed offset=0 "
        "out_offset=0",
        setup_group_count, run_group_count, oracle_group_count, bytes_of_all, workspace_group_count,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_tokens=40 num_topk=2,6,8,9 num_groups=9,32,4 num_ranks=8 dtype=i64,i32",
            "num_tokens=0,1,2,31,32,33,127,129 num_topk=1,8 num_groups=72",
            "num_tokens=100 num_topk=8 num_groups=1,2,31,32,33,255,257,1024,4096,5000 routing=uniform,one",
            "num_tokens=100 num_topk=6 num_groups=1,9,256 routing=some_empty,empty,gaps,skewed,garbage "
            "dtype=i64,i32",
            "num_tokens=7 num_topk=0,1,3,32,33,100 num_groups=40 routing=some_empty dtype=i64,i32",
            "num_tokens=33 num_topk=5,6,8 num_groups=72 layout=half,gap,repeated offset=0,1 out_offset=0,1 "
            "dtype=i64,i32",
            "num_tokens=33 num_topk=8 num_groups=72 offset=2,3 dtype=i32",
            "num_tokens=1000,4097 num_topk=8 num_groups=4,256 routing=uniform,one",
            "num_tokens=40000 num_topk=8 num_groups=256 routing=skewed",
            "num_tokens=9 num_topk=8 num_groups=100000",
            "num_tokens=9,1100 num_topk=8 num_groups=8192,8193,100000 routing=ends",
            "num_tokens=5 num_topk=2 num_groups=0 routing=garbage",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_tokens=4001 num_topk=1,2,6,7,8,9 num_groups=9,32,4 num_ranks=8",
            "num_tokens=4001 num_topk=6,8 num_groups=5,36,288,384 num_ranks=1,8 "
            "routing=uniform,some_empty,one,garbage dtype=i64,i32",
            "num_tokens=1000000 num_topk=8 num_groups=1,4,256,4096,100000 routing=uniform,one,garbage",
            "num_tokens=9,1000000 num_topk=8 num_groups=2000000",
            "num_tokens=33000 num_topk=8 num_groups=256 layout=far dtype=i32",   /* past 2^31 elements */
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_tokens=1,128,4096,32768 num_topk=8 num_groups=256",
            "num_tokens=8,64 num_topk=8 num_groups=256",
            "num_tokens=4096 num_topk=8 num_groups=32 num_ranks=8",
            "num_tokens=32768 num_topk=8 num_groups=4 routing=uniform,one",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_tokens=64 num_topk=8 num_groups=4,256,4096,20000,100000 dtype=i64,i32", NULL,
        },
    },
    {
        "moe_aux_fi", ROUTING "num_aux_topk=8 dtype=i64 layout=packed offset=0 out_offset=0",
        setup_aux_fi, run_aux_fi, oracle_aux_fi, bytes_of_all, workspace_aux_fi,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_tokens=40 num_topk=6,9 num_experts=9,32,4 num_ranks=8 num_aux_topk=1,6 dtype=i64,i32",
            "num_tokens=0,1,2,31,32,33,127,129 num_topk=1,8 num_experts=72 num_aux_topk=1,3",
            "num_tokens=100 num_topk=8 num_experts=1,2,31,33,257,1024,4096,5000 routing=uniform,one",
            "num_tokens=100 num_topk=6 num_experts=1,9,256 routing=some_empty,empty,gaps,skewed,garbage "
            "dtype=i64,i32",
            "num_tokens=7 num_topk=0,1,3,33 num_experts=40 routing=some_empty num_aux_topk=1,7,1000003",
            "num_tokens=33 num_topk=5,8 num_experts=72 layout=half,gap,repeated offset=0,1 out_offset=0,1 "
            "dtype=i64,i32",
            /* count * num_experts, num_tokens * num_aux_topk past 2^31 and past 2^32 */
            "num_tokens=3000 num_topk=8 num_experts=100000,200000 routing=one "
            "num_aux_topk=8,1000000,3000000000",
            "num_tokens=3000 num_topk=8 num_experts=100003 routing=skewed num_aux_topk=3000000007",
            "num_tokens=40000 num_topk=8 num_experts=256 routing=skewed",
            "num_tokens=9,1100 num_topk=8 num_experts=8192,8193 routing=ends",
            "num_tokens=5 num_topk=2 num_experts=0 routing=garbage",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_tokens=4001 num_topk=1,2,6,7,8,9 num_experts=9,32,4 num_ranks=8 num_aux_topk=1,8",
            "num_tokens=1048576 num_topk=8 num_experts=512 routing=one,skewed",
            "num_tokens=33000 num_topk=8 num_experts=256 layout=far dtype=i32",   /* past 2^31 elements */
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_tokens=1,128,4096,32768 num_topk=8 num_experts=256",
            "num_tokens=8,64 num_topk=8 num_experts=256",
            "num_tokens=4096 num_topk=8 num_experts=32 num_ranks=8",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_tokens=64 num_topk=8 num_experts=4,256,4096,20000,100000 dtype=i64,i32", NULL,
        },
    },
    {
        "moe_get_fused_mapping",
        ROUTING "alignment= num_positions=exact counts=0 host=0 dtype=i64 layout=packed offset=0 "
        "out_offset=0",
        setup_mapping, run_mapping, oracle_mapping, bytes_of_all, workspace_mapping,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_tokens=40 num_topk=2,6,8,9 num_experts=9,32,4 num_ranks=8 alignment=64,128",
            "num_tokens=37 num_topk=8 num_experts=32 alignment=1,3,16,64,128,256 dtype=i64,i32",
            "num_tokens=33 num_topk=8 num_experts=1,2,9,31,32,33,256,257,385,1023,1024 alignment=3 counts=1",
            "num_tokens=20 num_topk=8 num_experts=1025,2048,2049,8192,10000 alignment=16",
            "num_tokens=7 num_topk=0,1,2,31,32,33 num_experts=64 alignment=16 routing=some_empty counts=1",
            "num_tokens=0,1,31,32,33 num_topk=1 num_experts=9,256 alignment=16 host=1",
            "num_tokens=0,1,3,4,5 num_topk=8 num_experts=9 alignment=16 num_positions=none,more,bound",
            "num_tokens=127,128,129 num_topk=8 num_experts=256 alignment=128 dtype=i64,i32",
            "num_tokens=255,256,257,511,512,513,1025 num_topk=8 num_experts=256 alignment=128",
            "num_tokens=60 num_topk=6 num_experts=1,9,385 alignment=16 "
            "routing=some_empty,empty,one,gaps,skewed,garbage",
            "num_tokens=60 num_topk=6 num_experts=2,40 alignment=1 routing=some_empty,one,garbage dtype=i32",
            "num_tokens=60 num_topk=6 num_experts=2048 alignment=16 routing=one,gaps,garbage counts=1",
            "num_tokens=45 num_topk=7 num_experts=9,300 alignment=16 num_positions=none,less,more,bound,1 "
            "routing=garbage counts=1 host=1",
            "num_tokens=45 num_topk=7 num_experts=9 alignment=1 num_positions=less,bound",
            "num_tokens=45 num_topk=7 num_experts=1500 alignment=16 num_positions=none,less,more counts=1",
            "num_tokens=33 num_topk=5,8 num_experts=72 alignment=16 layout=half,gap,repeated offset=0,1 "
            "dtype=i64,i32",
            "num_tokens=300 num_topk=8 num_experts=72 alignment=16 num_positions=bound offset=0,1,2,3 "
            "out_offset=1,2,3 dtype=i32 counts=1 host=1",
            "num_tokens=300 num_topk=33 num_experts=72 alignment=16 layout=gap routing=some_empty",
            "num_tokens=8800 num_topk=8 num_experts=256 alignment=128 counts=1 host=1",
            "num_tokens=8800 num_topk=8 num_experts=9 alignment=1 routing=one,garbage",
            "num_tokens=40000 num_topk=8 num_experts=32 alignment=128 routing=some_empty",
            "num_tokens=5 num_topk=2 num_experts=0 alignment=8 num_positions=0,9 routing=garbage",
            /* on many SMs a block beyond those of the experts */
            "num_tokens=1 num_topk=6 num_experts=256 alignment=1 num_positions=131073",
            "num_tokens=1 num_topk=1 num_experts=3 alignment=1000000 num_positions=exact,less",
            "num_tokens=1030 num_topk=8 num_experts=3,7,48,400,1000 alignment=16 dtype=i32",
            "num_tokens=60,1030 num_topk=8 num_experts=9,256,1025,2049,10000 alignment=16 routing=ends counts=1",
            "num_tokens=2100 num_topk=2 num_experts=0,1,2,5,16,17,31,33 alignment=3 routing=garbage counts=1 "
            "host=1",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_tokens=100000 num_topk=8 num_experts=1,9,31 alignment=16 routing=some_empty dtype=i32",
            "num_tokens=4001 num_topk=1,2,6,7,8,9 num_experts=9,32,4 num_ranks=8 alignment=64,128",
            "num_tokens=4001 num_topk=2,6,8,9 num_experts=1,4,36,72,256,288,384 alignment=64,128 "
            "num_positions=exact,bound counts=1 host=1",
            "num_tokens=4001 num_topk=8 num_experts=9,256,1024,2048,8192 alignment=1,16 "
            "routing=some_empty,empty,one,gaps,skewed,garbage dtype=i64,i32 num_positions=bound,less "
            "counts=1",
            "num_tokens=1000000 num_topk=8 num_experts=4,256,2048 alignment=128 routing=uniform,one,garbage",
            "num_tokens=40000 num_topk=8 num_experts=256,385 alignment=128 num_positions=bound dtype=i64,i32",
            "num_tokens=33000 num_topk=8 num_experts=256 alignment=128 layout=far dtype=i32",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_tokens=1,128,4096,8192,32768 num_topk=8 num_experts=256 alignment=128",
            "num_tokens=128,4096 num_topk=8 num_experts=256 alignment=128 host=1",
            "num_tokens=128,4096 num_topk=6 num_experts=384 alignment=128",
            "num_tokens=4096 num_topk=8 num_experts=32 num_ranks=8 alignment=128",
            "num_tokens=8,16,64,256 num_topk=8 num_experts=256 alignment=128",
            "num_tokens=64,256 num_topk=6 num_experts=384 alignment=128",
            "num_tokens=128,4096 num_topk=8 num_experts=256 alignment=128 num_positions=bound counts=1",
            /* what the tests of TileKernels have: 72 experts on 8 ranks, 256 on 64 */
            "num_tokens=4001 num_topk=2,9 num_experts=9 num_ranks=8 alignment=128",
            "num_tokens=4001 num_topk=8 num_experts=4 num_ranks=64 alignment=128",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_tokens=64,4096,65536 num_topk=8 num_experts=4,32,256,384,1024,2048,8192,10000 alignment=128 "
            "dtype=i64,i32",
            "num_tokens=64 num_topk=1,6,33 num_experts=256 alignment=128 counts=1 host=1",
            NULL,
        },
    },
    {
        "moe_expand_to_fused",
        ROUTING "hidden= alignment= num_positions=exact slots=mapped dtype=bf16 layout=packed offset=0 "
        "out_offset=0",
        setup_expand, run_expand, oracle_expand, bytes_of_all, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_tokens=9 num_topk=2,6,8,9 num_experts=9,4 num_ranks=8 hidden=576,2048 alignment=16",
            "num_tokens=6 num_topk=3 num_experts=5 hidden=1,2,7,8,64,576 alignment=3 "
            "dtype=e4m3,bf16,f32,i64,c128 routing=some_empty",
            "num_tokens=6 num_topk=3 num_experts=5 hidden=24 alignment=3 "
            "dtype=bool,i8,u8,i16,u16,f16,i32,u32,u64,f64,c64,e5m2,ue8m0,e2m1x2",
            "num_tokens=5 num_topk=8 num_experts=32 hidden=7168 alignment=16 dtype=e4m3,bf16,f32",
            "num_tokens=6 num_topk=3 num_experts=5 hidden=64,65 alignment=4 layout=half,gap,repeated "
            "dtype=e4m3,bf16,f32,c128",
            "num_tokens=6 num_topk=3 num_experts=5 hidden=64 alignment=4 offset=0,1,2,3,4,8 "
            "out_offset=0,1,2,4,8 dtype=e4m3,bf16",
            "num_tokens=6 num_topk=3 num_experts=5 hidden=64 alignment=4 offset=0,1,2 out_offset=0,1,2 "
            "dtype=f32,i64,c128",
            /* a row in many chunks, which a limited grid takes in several trips */
            "num_tokens=6 num_topk=3 num_experts=5 hidden=1001 alignment=3 dtype=e4m3",
            "num_tokens=9 num_topk=1 num_experts=4 hidden=40 alignment=16",
            "num_tokens=9 num_topk=0 num_experts=4 hidden=40 alignment=16 num_positions=5",
            "num_tokens=0 num_topk=2 num_experts=4 hidden=40 alignment=16 num_positions=0,1,37",
            "num_tokens=9 num_topk=3 num_experts=4 hidden=0 alignment=16",
            "num_tokens=9 num_topk=3 num_experts=4 hidden=72 alignment=16 "
            "num_positions=none,less,more,bound,500",
            "num_tokens=9 num_topk=3 num_experts=4 hidden=72 alignment=16 routing=empty,one,gaps,garbage "
            "num_positions=exact,more",
            "num_tokens=20 num_topk=3 num_experts=4 hidden=7,72 alignment=5 slots=lost,wild "
            "dtype=e4m3,bf16,f32 "
            "num_positions=exact,less,more routing=some_empty",
            "num_tokens=20 num_topk=3 num_experts=4 hidden=2048 alignment=5 slots=lost,wild "
            "routing=some_empty",
            "num_tokens=20 num_topk=3 num_experts=4 hidden=7,72 alignment=5 slots=padded "
            "num_positions=exact,less",
            "num_tokens=1200 num_topk=8 num_experts=40 hidden=72 alignment=16 slots=padded",
            "num_tokens=3 num_topk=33,70 num_experts=128 hidden=136 alignment=1",
            "num_tokens=700 num_topk=4 num_experts=16 hidden=9 alignment=16",
            "num_tokens=300,1100 num_topk=8 num_experts=40 hidden=72 alignment=16 slots=mapped,lost "
            "routing=some_empty",
            "num_tokens=3000 num_topk=2 num_experts=40 hidden=72,4104 alignment=16 routing=some_empty",
            /* rows are loaded once it is known that they go somewhere; more blocks than y of a grid */
            "num_tokens=600 num_topk=1 num_experts=4 hidden=9,72,4104 alignment=1 num_positions=less "
            "routing=some_empty slots=mapped,lost",
            "num_tokens=66000 num_topk=1 num_experts=4 hidden=8 alignment=16",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_tokens=4001 num_topk=2,6,8,9 num_experts=9,32,4 num_ranks=8 hidden=576,2560,7168 "
            "alignment=16",
            "num_tokens=8001 num_topk=6 num_experts=9,4 num_ranks=8,64 hidden=2048,3072,4096,6144 "
            "alignment=16",
            "num_tokens=4001 num_topk=8 num_experts=256 hidden=7168 alignment=16 dtype=e4m3,bf16,f32 "
            "routing=uniform,some_empty",
            /* past 2^31 elements: x, out, and where rows of out start */
            "num_tokens=33000 num_topk=2 num_experts=4 hidden=16 alignment=16 dtype=e4m3 layout=far",
            "num_tokens=64 num_topk=8 num_experts=32 hidden=7168 alignment=128 dtype=e4m3 "
            "num_positions=300000",
            "num_tokens=64 num_topk=4 num_experts=8 hidden=7168 alignment=45000 dtype=e4m3",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_tokens=1,128,4096 num_topk=8 num_experts=256 hidden=7168 alignment=16",
            "num_tokens=4096,8192 num_topk=8 num_experts=32 num_ranks=8 hidden=7168 alignment=128",
            "num_tokens=4096 num_topk=6 num_experts=384 hidden=4096 alignment=16",
            "num_tokens=8,64 num_topk=8 num_experts=256 hidden=7168 alignment=16",
            "num_tokens=4096 num_topk=8 num_experts=256 hidden=7168 alignment=16 dtype=e4m3",
            "num_tokens=1024 num_topk=2 num_experts=9 num_ranks=8 hidden=2048 alignment=16",
            "num_tokens=1024 num_topk=9 num_experts=9 num_ranks=8 hidden=576,2048,6144 alignment=16",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_tokens=64 num_topk=1,6,8,33 num_experts=256 hidden=7,576,7168 alignment=16 "
            "dtype=e4m3,bf16,f32,i64,c128",
            NULL,
        },
    },
    {
        "moe_expand_to_fused_with_sf",
        ROUTING "hidden= alignment= num_positions=exact slots=mapped dtype=e4m3 layout=packed offset=0 "
        "out_offset=0 "
        "num_per_channels=128 sf_dtype=f32 pairs=0 sf_layout=packed out_sf_layout=packed",
        setup_expand_with_sf, run_expand_with_sf, oracle_expand_with_sf, bytes_of_all, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_tokens=9 num_topk=2,8 num_experts=9,4 num_ranks=8 hidden=576,2048 alignment=16 "
            "num_per_channels=32,128",
            "num_tokens=9 num_topk=2,8 num_experts=9,4 num_ranks=8 hidden=576,2048 alignment=16 "
            "num_per_channels=32,128 sf_dtype=i32 out_sf_layout=columns",
            "num_tokens=7 num_topk=3 num_experts=5 hidden=256 alignment=1,3 "
            "num_per_channels=1,32,100,128,256,1000 "
            "sf_dtype=f32,i32 out_sf_layout=packed,columns,apart",
            "num_tokens=7 num_topk=3 num_experts=5 hidden=256 alignment=1 num_per_channels=32 "
            "sf_dtype=f32,i32 "
            "sf_layout=gap,columns,apart,steps out_sf_layout=packed,columns",
            "num_tokens=7 num_topk=3 num_experts=5 hidden=1,7,576 alignment=3 num_per_channels=1,32 "
            "dtype=e4m3,bf16,f32,c128 out_sf_layout=packed,columns",
            "num_tokens=7 num_topk=3 num_experts=5 hidden=96 alignment=3 num_per_channels=32 dtype=i8,u8 "
            "pairs=0,1 sf_dtype=f32,i32",
            "num_tokens=7 num_topk=3 num_experts=5 hidden=96 alignment=3 num_per_channels=32 dtype=e2m1x2 "
            "pairs=1 sf_dtype=f32,i32",
            "num_tokens=5 num_topk=8 num_experts=32 hidden=7168 alignment=16 sf_dtype=f32,i32 "
            "out_sf_layout=packed,columns",
            "num_tokens=7 num_topk=3 num_experts=5 hidden=256 alignment=4 num_per_channels=64 "
            "layout=half,gap,repeated "
            "offset=0,1 out_offset=0,1 out_sf_layout=packed,columns",
            "num_tokens=9 num_topk=1 num_experts=4 hidden=256 alignment=16 out_sf_layout=packed,columns",
            "num_tokens=0 num_topk=2 num_experts=4 hidden=256 alignment=16 num_positions=0,1,37 "
            "out_sf_layout=packed,apart",
            "num_tokens=9 num_topk=3 num_experts=4 hidden=0 alignment=16",
            "num_tokens=9 num_topk=3 num_experts=4 hidden=256 alignment=16 "
            "num_positions=none,less,more,bound,501 "
            "out_sf_layout=packed,columns",
            "num_tokens=9 num_topk=3 num_experts=4 hidden=256 alignment=16 routing=empty,one,gaps,garbage "
            "num_positions=exact,more out_sf_layout=packed,apart",
            "num_tokens=20 num_topk=3 num_experts=4 hidden=7,256 alignment=5 slots=lost,wild "
            "num_per_channels=2 "
            "num_positions=exact,less,more routing=some_empty out_sf_layout=packed,apart",
            "num_tokens=700 num_topk=4 num_experts=16 hidden=9 alignment=16 num_per_channels=4 "
            "out_sf_layout=packed,columns",
            "num_tokens=300 num_topk=8 num_experts=40 hidden=144 alignment=16 num_per_channels=1 "
            "slots=mapped,lost routing=some_empty out_sf_layout=packed,columns",
            "num_tokens=3000 num_topk=2 num_experts=40 hidden=144 alignment=16 num_per_channels=1 "
            "routing=some_empty out_sf_layout=packed,columns",
            "num_tokens=1200 num_topk=8 num_experts=40 hidden=144 alignment=16 num_per_channels=8 "
            "slots=mapped,lost,wild sf_layout=packed,columns out_sf_layout=columns,apart",
            "num_tokens=1200 num_topk=8 num_experts=40 hidden=144 alignment=16 num_per_channels=8 "
            "slots=padded out_sf_layout=columns",
            "num_tokens=20 num_topk=3 num_experts=4 hidden=7,256 alignment=5 slots=padded "
            "num_per_channels=2 out_sf_layout=packed,apart",
            "num_tokens=40 num_topk=3 num_experts=30 hidden=16 alignment=1200 num_per_channels=1 "
            "out_sf_layout=columns",
            "num_tokens=1000 num_topk=8 num_experts=4 num_ranks=8 hidden=144 alignment=16 num_per_channels=8 "
            "slots=mapped,lost out_sf_layout=columns",
            "num_tokens=4200 num_topk=1 num_experts=8 hidden=8320 alignment=16 "
            "sf_dtype=f32,i32 out_sf_layout=columns",
            "num_tokens=600 num_topk=1 num_experts=4 hidden=144 alignment=1 num_per_channels=1,16 "
            "num_positions=less routing=some_empty slots=mapped,lost out_sf_layout=packed,columns",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_tokens=4001 num_topk=2,8 num_experts=9,32,4 num_ranks=8 hidden=576,2560,7168 alignment=16 "
            "num_per_channels=32,128",
            "num_tokens=4001 num_topk=2,8 num_experts=9,32,4 num_ranks=8 hidden=576,2560,7168 alignment=16 "
            "num_per_channels=32,128 sf_dtype=i32 out_sf_layout=columns",
            "num_tokens=8001 num_topk=6 num_experts=9,4 num_ranks=8,64 hidden=2048,3072,4096,6144 "
            "alignment=16 out_sf_layout=packed,columns",
            "num_tokens=33000 num_topk=2 num_experts=4 hidden=16 alignment=16 layout=far num_per_channels=4",
            "num_tokens=64 num_topk=4 num_experts=8 hidden=7168 alignment=45000 out_sf_layout=packed,columns",
            /* out_sf past 2^31 elements */
            "num_tokens=64 num_topk=4 num_experts=8 hidden=1792 alignment=155000 num_per_channels=1 "
            "out_sf_layout=packed,columns",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_tokens=1,128,4096 num_topk=8 num_experts=256 hidden=7168 alignment=16",
            "num_tokens=128 num_topk=8 num_experts=256 hidden=7168 alignment=16 sf_dtype=i32 "
            "out_sf_layout=columns",
            "num_tokens=4096,8192 num_topk=8 num_experts=32 num_ranks=8 hidden=7168 alignment=128",
            "num_tokens=4096 num_topk=8 num_experts=32 num_ranks=8 hidden=7168 alignment=128 sf_dtype=i32 "
            "out_sf_layout=columns",
            "num_tokens=4096 num_topk=6 num_experts=384 hidden=4096 alignment=16",
            "num_tokens=4096 num_topk=8 num_experts=256 hidden=7168 alignment=16 out_sf_layout=columns",
            "num_tokens=1024 num_topk=9 num_experts=9 num_ranks=8 hidden=576,2048,6144 alignment=16",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_tokens=64 num_topk=1,6,8,33 num_experts=256 hidden=7,576,7168 alignment=16 "
            "dtype=e4m3,bf16,f32,i64,c128",
            "num_tokens=64 num_topk=8 num_experts=256 hidden=512,4096 alignment=16 sf_dtype=f32,i32 "
            "out_sf_layout=packed,columns",
            NULL,
        },
    },
    {
        "moe_reduce_fused",
        ROUTING "hidden= alignment= num_positions=exact slots=mapped dtype=bf16 out_dtype=bf16 weights=1 "
        "x_sf=0 sf=none "
        "values=normal layout=packed out_layout=packed offset=0 out_offset=0",
        setup_reduce, run_reduce, oracle_reduce, bytes_reduce, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_tokens=9 num_topk=2,6,8,9 num_experts=9,4 num_ranks=8 hidden=256,576 alignment=1 "
            "dtype=bf16,f32 "
            "out_dtype=bf16,f32",
            "num_tokens=9 num_topk=6 num_experts=9 hidden=256 alignment=1 dtype=bf16,f32 out_dtype=bf16,e4m3 "
            "weights=0,1 x_sf=0,1 sf=none,0.37",
            "num_tokens=5 num_topk=3 num_experts=5 hidden=1,7,64,100 alignment=3 dtype=f32,bf16,f16,e4m3 "
            "out_dtype=f32,bf16,f16,e4m3 x_sf=1 sf=1.7 routing=some_empty",
            "num_tokens=5 num_topk=3 num_experts=5 hidden=72 alignment=3 dtype=f32,bf16,f16,e4m3 "
            "out_dtype=f32,bf16,f16,e4m3 values=bits,special routing=some_empty",
            "num_tokens=33 num_topk=1 num_experts=5 hidden=300 alignment=1 dtype=f32 "
            "out_dtype=f32,bf16,f16,e4m3 "
            "values=halfway,large weights=0,1",
            "num_tokens=33 num_topk=1 num_experts=5 hidden=64 alignment=1 dtype=bf16,f16,e4m3 "
            "out_dtype=f32,bf16,f16,e4m3 values=halfway,large",
            "num_tokens=9 num_topk=1,2,8,32 num_experts=40 hidden=136 alignment=1 dtype=f32,bf16 "
            "out_dtype=f32,e4m3 "
            "x_sf=0,1 values=order",
            "num_tokens=7 num_topk=8 num_experts=5 hidden=64 alignment=1 dtype=f32 "
            "out_dtype=f32,bf16,f16,e4m3 "
            "values=order,special sf=0,-0.0,-2,nan,inf,1e-38,3e38 x_sf=1",
            "num_tokens=9 num_topk=0,1,2,3,4,5,7,8,9,16,31,32,33,70 num_experts=80 hidden=24 alignment=1 "
            "routing=some_empty values=order dtype=f32 out_dtype=f32",
            "num_tokens=7 num_topk=4 num_experts=5 hidden=4100,7168 alignment=16 dtype=bf16,f32 "
            "out_dtype=bf16",
            "num_tokens=0 num_topk=2 num_experts=5 hidden=64 alignment=16 num_positions=0,9",
            "num_tokens=7 num_topk=2 num_experts=5 hidden=0 alignment=16",
            "num_tokens=7 num_topk=4 num_experts=5 hidden=40 alignment=16 routing=empty,one,gaps,garbage "
            "num_positions=exact,less,none,bound x_sf=1 sf=none,-3",
            "num_tokens=20 num_topk=3 num_experts=4 hidden=7,72 alignment=5 slots=lost,wild "
            "dtype=e4m3,bf16,f32 "
            "num_positions=exact,less,more routing=some_empty",
            "num_tokens=6 num_topk=3 num_experts=5 hidden=64,65 alignment=4 layout=half,gap,repeated "
            "out_layout=packed,half,gap dtype=e4m3,bf16,f32 out_dtype=bf16",
            "num_tokens=6 num_topk=3 num_experts=5 hidden=64 alignment=4 offset=0,1,2,4,8 "
            "out_offset=0,1,2,4,8 "
            "dtype=bf16,f32 out_dtype=bf16,e4m3",
            "num_tokens=700 num_topk=4 num_experts=16 hidden=9 alignment=16",
            "num_tokens=513 num_topk=1,8,9,32,33 num_experts=40 hidden=80 alignment=4 routing=some_empty",
            "num_tokens=515 num_topk=4 num_experts=16 hidden=4112 alignment=1 slots=mapped,wild x_sf=1 sf=-3 "
            "dtype=f32,e4m3 out_dtype=f32,e4m3",
            "num_tokens=515 num_topk=4 num_experts=16 hidden=80 alignment=1 dtype=f16 out_dtype=f16",
            "num_tokens=4097 num_topk=3 num_experts=40 hidden=8 alignment=1 x_sf=1",    /* two of a block */
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            /* more blocks than a grid has in y: a second trip */
            "num_tokens=131100 num_topk=8,32 num_experts=16 hidden=8 alignment=1",
            "num_tokens=4001 num_topk=2,6,8,9 num_experts=9,32,4 num_ranks=8 hidden=2048,7168 alignment=1 "
            "dtype=bf16,f32 out_dtype=bf16",
            "num_tokens=8001 num_topk=6 num_experts=9,4 num_ranks=8,64 hidden=2560,3072,4096,6144 "
            "alignment=1 out_dtype=bf16,e4m3",
            "num_tokens=4001 num_topk=8 num_experts=32 num_ranks=8 hidden=2560 alignment=1 dtype=bf16,f32 "
            "out_dtype=bf16,f32,e4m3 weights=0,1 x_sf=0,1 sf=none,0.37",
            "num_tokens=4001 num_topk=6,32 num_experts=72 hidden=576 alignment=1 dtype=f32,f16,e4m3 "
            "out_dtype=f32,bf16,f16,e4m3 values=order,special,bits x_sf=1",
            "num_tokens=4001 num_topk=1 num_experts=72 hidden=2048 alignment=1 dtype=f32 "
            "out_dtype=bf16,f16,e4m3 "
            "values=halfway,large weights=0",
            /* past 2^31 elements: x, out */
            "num_tokens=64 num_topk=4 num_experts=8 hidden=7168 alignment=45000 dtype=e4m3 out_dtype=bf16",
            "num_tokens=33000 num_topk=2 num_experts=4 hidden=16 alignment=16 dtype=e4m3 out_dtype=e4m3 "
            "out_layout=far",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_tokens=1,128,4096 num_topk=8 num_experts=256 hidden=7168 alignment=16",
            "num_tokens=4096,8192 num_topk=8 num_experts=32 num_ranks=8 hidden=7168 alignment=128",
            "num_tokens=4096 num_topk=6 num_experts=384 hidden=4096 alignment=16",
            "num_tokens=4096 num_topk=8 num_experts=256 hidden=7168 alignment=16 weights=0",
            "num_tokens=4096 num_topk=8 num_experts=256 hidden=7168 alignment=16 x_sf=1",
            "num_tokens=4096 num_topk=8 num_experts=256 hidden=7168 alignment=16 out_dtype=e4m3 sf=0.37",
            "num_tokens=4096 num_topk=8 num_experts=256 hidden=7168 alignment=16 dtype=f32 out_dtype=f32",
            "num_tokens=8,64 num_topk=8 num_experts=256 hidden=7168 alignment=16",
            "num_tokens=1024 num_topk=2 num_experts=9 num_ranks=8 hidden=2048 alignment=1",
            "num_tokens=1024 num_topk=9 num_experts=9 num_ranks=8 hidden=2048,6144 alignment=1",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_tokens=64 num_topk=8 num_experts=256 hidden=7168 alignment=16 dtype=f32,bf16,f16,e4m3 "
            "out_dtype=f32,bf16,f16,e4m3",
            "num_tokens=64 num_topk=1,6,33 num_experts=256 hidden=7,576,7168 alignment=16",
            "num_tokens=64 num_topk=8 num_experts=256 hidden=4096 alignment=16 weights=0,1 x_sf=0,1 "
            "sf=none,1",
            NULL,
        },
    },
    { 0 },
};
