/* SPDX-License-Identifier: MIT
 * moe_gate.c - the cases of the gates: top2_sum_gate, hash_gate, route. The oracles sort all experts, and
 * compute scores step by step in double.
 *
 * exp and log1p differ in their last bits from library to library, so a choice that hangs on those bits has
 * no oracle. Every row of logits here is one whose choice is decided: keys that compete are apart, or equal
 * because they are made of equal numbers, or exact in any library. Random rows that are not are drawn again.
 * For what is left undecided the oracle says so: of a listed case that is a mistake, random ones are redrawn.
 *
 * Values of logits, beside those of moe_common.h:
 *   normal      drawn again until the choice is decided
 *   near        a permutation of numbers 2^-15 apart: scores that a rough approximation cannot tell apart
 *   exact       of which sigmoid and sqrtsoftplus have exact scores; with bias=near only that decides
 *   saturated   scores of 0 and 1, whatever the logit
 *   branch      around 20, where sqrtsoftplus changes its form
 *   deep        scores around 1e-20, where the divisor's 1e-20 shows
 *   descending  the same for every row, worst expert last
 * Of bias:
 *   none, zero, small (normal / 8), large (normal * 100), near (1 and up to 1e-3 more, in steps of an ulp),
 *   disabled (-inf for two of three experts), few (for all but one of 32), special
 *
 * What tokens have that are masked or fixed, parameter `excluded`: nobody wants their choice, so nothing may
 * come of it.
 *   alike       what the others have
 *   zeros, ties, nan, inf, denormal     such logits
 *   wild        logits of any bits
 * In all but the first, entries of unmapped_topk_idx and input_ids are wild: those of masked tokens, and every
 * other one of fixed tokens.
 *
 * apart=1: not route is called but top2_sum_gate and get_fused_mapping, to compare. */
#include "tegula/moe.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "moe_common.h"

/* Tensors are filled in this order: bias and masks come before logits and indices, whose fills read them. */
enum { BIAS, MASK, FIX, LOGITS, MAP, COUNT, UNMAPPED, IDX, WEIGHTS, NUM_OF_GATE };
enum { INPUT_IDS = NUM_OF_GATE, TID2EID };
enum {
    POS_TO_EXPERT = NUM_OF_GATE, POS_TO_TOKEN, POS_TO_TOKEN_TOPK, TOKEN_TOPK_TO_POS, EXPERT_START, EXPERT_END,
    NUM_TOKENS_PER_EXPERT, PAIRS, PSUM_END
};

typedef struct { tgl_moe_gate_params params; int64_t alignment, apart; } scalars;
_Static_assert(sizeof(scalars) <= CASE_SCALARS, "scalars have room");

static const scalars *scalars_of(const case_problem *c) { return (const scalars *)(const void *)c->scalars; }
static bool is_given(const case_problem *c, int i) { return i < c->num_tensors && c->tensors[i].name; }
static bool is_word(const case_problem *c, const char *name, const char *word)
{
    return !strcmp(case_text(c, name), word);
}
static float float_at(const case_tensor *t, int64_t row, int64_t col)
{
    return *(const float *)case_element(t, (int64_t[]){ row, col });
}
static int64_t num_topk_of(const case_problem *c)
{
    return c->tensors[IDX].shape[1] - scalars_of(c)->params.num_shared_experts;
}
static float bias_at(const case_problem *c, int64_t e)
{
    return is_given(c, BIAS) ? float_at(&c->tensors[BIAS], e, 0) : 0;
}

/* ---- scores and keys ---- */

/* Each step in double and then rounded: that of a sum, quotient or root of floats is what float gives. */
static float score_of(tgl_moe_scoring scoring, float logit)
{
    const double x = (double)logit;
    if (isnan(logit)) return 0;
    switch (scoring) {
    case TGL_MOE_SIGMOID: return (float)(1 / (double)(float)(1 + (double)(float)exp(-x)));
    case TGL_MOE_SQRTSOFTPLUS: return (float)sqrt(x > 20 ? x : (double)(float)log1p((double)(float)exp(x)));
    default: return logit;
    }
}

/* Has no exp or log1p a say in the score? */
static bool is_exact(tgl_moe_scoring scoring, float x)
{
    switch (scoring) {
    case TGL_MOE_SIGMOID: return isnan(x) || x >= 17.5f || x < -89 || fabsf(x) < 1e-30f;
    case TGL_MOE_SQRTSOFTPLUS: return isnan(x) || x > 20 || x < -104;
    default: return true;
    }
}

/* The key of an expert, and bounds of it for any library whose scores are right to 2^-20. */
typedef struct { float key, low, high, logit, bias; } ranked;

static ranked rank_of(tgl_moe_scoring scoring, float logit, float bias)
{
    const double score = (double)score_of(scoring, logit);
    const double slack = is_exact(scoring, logit) ? 0 : ldexp(1, -20);
    ranked r = { (float)(score + (double)bias), (float)(score * (1 - slack) + (double)bias),
                 (float)(score * (1 + slack) + (double)bias), logit, bias };
    if (isnan(logit)) r.key = r.low = r.high = -INFINITY;
    r.key = moe_ranked(r.key), r.low = moe_ranked(r.low), r.high = moe_ranked(r.high);
    return r;
}

/* Are two keys equal in every library, being computed of the same numbers? */
static bool is_same(const ranked *a, const ranked *b)
{
    const bool same_logit = a->logit == b->logit || (isnan(a->logit) && isnan(b->logit)) ||
                            (fabsf(a->logit) < 1e-30f && fabsf(b->logit) < 1e-30f);
    return same_logit && (a->bias == b->bias || (isnan(a->bias) && isnan(b->bias)));
}

/* a comes before b here; also elsewhere? */
static bool is_apart(float a_low, float a_high, float b_low, float b_high)
{
    return a_low > b_high || (a_low == a_high && b_low == b_high);
}
static bool is_before(const ranked *a, const ranked *b)
{
    return is_same(a, b) || is_apart(a->low, a->high, b->low, b->high);
}

/* ---- the choice of experts ---- */

typedef struct {
    const case_problem *c;
    ranked *keys;                       /* of all experts */
    moe_candidate *sorted, *groups;     /* experts by key; groups by worth */
    float *low, *high;                  /* bounds of a group's worth */
    int64_t *best;                      /* a group's two best experts */
    bool *is_kept;
} chooser;

static bool open_chooser(chooser *h, const case_problem *c)
{
    const size_t n = (size_t)c->tensors[LOGITS].shape[1] + 1;
    *h = (chooser){ c, calloc(n, sizeof *h->keys), calloc(n, sizeof *h->sorted), calloc(n, sizeof *h->groups),
                    calloc(n, 4), calloc(n, 4), calloc(2 * n, 8), calloc(n, 1) };
    if (!h->keys || !h->sorted || !h->groups || !h->low || !h->high || !h->best || !h->is_kept) abort();
    return true;
}

static void close_chooser(chooser *h)
{
    free(h->keys), free(h->sorted), free(h->groups), free(h->low), free(h->high), free(h->best);
    free(h->is_kept);
}

static int higher_first(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

static float sum_of_two(float a, float b) { return moe_ranked((float)((double)a + (double)b)); }

/* The worth of group j of p experts, as a sum of its two best keys, and its bounds. */
static void weigh_group(chooser *h, int64_t j, int64_t p)
{
    moe_candidate *experts = h->sorted;
    float *lows = calloc((size_t)p, 4), *highs = calloc((size_t)p, 4);
    if (!lows || !highs) abort();
    for (int64_t i = 0; i < p; i++) {
        const ranked *r = &h->keys[j * p + i];
        experts[i] = (moe_candidate){ r->key, j * p + i };
        lows[i] = r->low, highs[i] = r->high;
    }
    qsort(experts, (size_t)p, sizeof *experts, moe_better_first);
    qsort(lows, (size_t)p, 4, higher_first);
    qsort(highs, (size_t)p, 4, higher_first);
    h->best[2 * j] = experts[0].index, h->best[2 * j + 1] = experts[p > 1].index;
    h->groups[j] = (moe_candidate){ p > 1 ? sum_of_two(experts[0].score, experts[1].score) : experts[0].score,
                                    j };
    h->low[j] = p > 1 ? sum_of_two(lows[0], lows[1]) : lows[0];
    h->high[j] = p > 1 ? sum_of_two(highs[0], highs[1]) : highs[0];
    free(lows), free(highs);
}

/* Marks the experts of the groups that are kept. Is that decided? */
static bool keep_groups(chooser *h, int64_t num_experts)
{
    const int64_t n = scalars_of(h->c)->params.num_groups, kept = scalars_of(h->c)->params.num_topk_groups;
    bool is_decided = true;
    for (int64_t e = 0; e < num_experts; e++) h->is_kept[e] = n == kept;
    if (n == kept || num_experts == 0) return true;
    const int64_t p = num_experts / n;
    for (int64_t j = 0; j < n; j++) weigh_group(h, j, p);
    qsort(h->groups, (size_t)n, sizeof *h->groups, moe_better_first);
    for (int64_t i = 0; i < kept; i++) {
        const int64_t in = h->groups[i].index;
        for (int64_t e = 0; e < p; e++) h->is_kept[in * p + e] = true;
        for (int64_t o = kept; o < n; o++) {
            const int64_t out = h->groups[o].index;
            const bool is_same_worth = is_same(&h->keys[h->best[2 * in]], &h->keys[h->best[2 * out]]) &&
                                       is_same(&h->keys[h->best[2 * in + 1]], &h->keys[h->best[2 * out + 1]]);
            is_decided &= is_same_worth || is_apart(h->low[in], h->high[in], h->low[out], h->high[out]);
        }
    }
    return is_decided;
}

/* Leaves the chosen experts in h->sorted. True if the choice is the same with any exp and log1p. */
static bool choose(chooser *h, int64_t row)
{
    const case_tensor *logits = &h->c->tensors[LOGITS];
    const int64_t num_experts = logits->shape[1], num_topk = num_topk_of(h->c);
    const tgl_moe_scoring scoring = scalars_of(h->c)->params.scoring;
    for (int64_t e = 0; e < num_experts; e++)
        h->keys[e] = rank_of(scoring, float_at(logits, row, e), bias_at(h->c, e));
    bool is_decided = keep_groups(h, num_experts);
    int64_t n = 0;
    for (int64_t e = 0; e < num_experts; e++)
        if (h->is_kept[e]) h->sorted[n++] = (moe_candidate){ h->keys[e].key, e };
    qsort(h->sorted, (size_t)n, sizeof *h->sorted, moe_better_first);
    for (int64_t k = 1; k < num_topk; k++)
        is_decided &= is_before(&h->keys[h->sorted[k - 1].index], &h->keys[h->sorted[k].index]);
    for (int64_t k = num_topk; num_topk > 0 && k < n; k++)
        is_decided &= is_before(&h->keys[h->sorted[num_topk - 1].index], &h->keys[h->sorted[k].index]);
    return is_decided;
}

/* ---- values ---- */

/* Every element is one of a few, at random. What is exact depends on the function. */
static const float exact_sigmoid[] = { 0, -200, 30, -0.0f, 1e-40f, 0, 0 };
static const float exact_sqrtsoftplus[] = { 25, 36, 20.25f, 30.25f, 42.25f, -200, 25 };
static const float saturated[] = { 100, 50, 30, 25, 89, -104.5f, -120, -INFINITY, -1e30f, 1e30f };
static const float branch[] = { 20, 20.5f, 19.5f, 30, 12, 0, -5 };
static const float deep[] = { -46, -44, -40, -50, -47.5f };
static const float special_but_inf[] = { NAN, -NAN, -INFINITY, 0, -0.0f, 1e-40f, -1e-40f, -FLT_MAX, 1, -1 };
#define COUNT_OF(table) (sizeof(table) / sizeof *(table))
static const struct { const char *name; const float *values; size_t count; } tables[] = {
    { "exact", exact_sigmoid, COUNT_OF(exact_sigmoid) },
    { "exact", exact_sqrtsoftplus, COUNT_OF(exact_sqrtsoftplus) },
    { "saturated", saturated, COUNT_OF(saturated) },
    { "branch", branch, COUNT_OF(branch) },
    { "deep", deep, COUNT_OF(deep) },
    { "special_but_inf", special_but_inf, COUNT_OF(special_but_inf) },
};

typedef struct { const case_problem *c; case_tensor *t; uint64_t seed; size_t table; } filling;

static void table_chunk(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    const float *values = tables[f->table].values;
    for (int64_t i = begin; i < end; i++)
        ((float *)f->t->storage)[i] = values[case_random(f->seed, i) % tables[f->table].count];
}

static void fill_table(const case_problem *c, case_tensor *t, uint64_t seed)
{
    size_t i = 0;
    while (strcmp(tables[i].name, case_text(c, "values"))) i++;
    if (i == 0 && scalars_of(c)->params.scoring == TGL_MOE_SQRTSOFTPLUS) i = 1;
    case_parallel(t->slots, 4, table_chunk, &(filling){ c, t, seed, i });
}

/* Rows in memory: one where all tokens share it. */
static int64_t num_rows(const case_tensor *t) { return t->strides[0] || !t->shape[0] ? t->shape[0] : 1; }

static float normal_of(uint64_t bits)   /* nearly: a sum of four uniform numbers */
{
    const double sum = (double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) +
                       (double)(bits >> 32 & 0xffff) + (double)(bits >> 48);
    return (float)((sum / 65536 - 2) * 1.7320508);
}

enum { MAX_ATTEMPTS = 100 };    /* of a row; so many picks of so many experts may never be decided */

static void decide_rows(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    chooser h;
    open_chooser(&h, f->c);
    for (int64_t row = begin; row < end; row++)
        for (uint64_t attempt = 1; attempt < MAX_ATTEMPTS && !choose(&h, row); attempt++)
            for (int64_t e = 0; e < f->t->shape[1]; e++)
                *(float *)case_element(f->t, (int64_t[]){ row, e }) =
                    normal_of(case_random(f->seed + attempt, row * f->t->shape[1] + e));
    close_chooser(&h);
}

/* Are there groups and experts to choose from? If not, the op will say so. */
static bool can_choose(const case_problem *c)
{
    const int64_t num_experts = c->tensors[LOGITS].shape[1], num_topk = num_topk_of(c);
    const int64_t n = scalars_of(c)->params.num_groups, kept = scalars_of(c)->params.num_topk_groups;
    if (n == kept) return num_topk <= num_experts;
    return kept >= 0 && n > kept && num_experts % n == 0 && num_topk <= kept * (num_experts / n);
}

static void fill_decided(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_normal(c, t, seed);
    if (!can_choose(c)) return;
    case_parallel(num_rows(t), 256 * t->shape[1], decide_rows, &(filling){ c, t, seed, 0 });
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

static void near_rows(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    const int64_t n = f->t->shape[1];
    for (int64_t row = begin; row < end && n > 0; row++) {
        const uint64_t bits = case_random(f->seed, row);
        const int64_t first = (int64_t)(bits % (uint64_t)n);
        int64_t step = 1 + (int64_t)((bits >> 32) % (uint64_t)n);
        while (common_divisor(step, n) != 1) step++;
        for (int64_t e = 0; e < n; e++) {
            const int64_t place = bits >> 63 ? e : (first + e * step) % n;      /* half of the rows ascend */
            *(float *)case_element(f->t, (int64_t[]){ row, e }) = 0.3125f + (float)place / 32768;
        }
    }
}

static void fill_near(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_bits(c, t, seed);
    case_parallel(num_rows(t), 4 * t->shape[1], near_rows, &(filling){ c, t, seed, 0 });
}

static void fill_descending(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_bits(c, t, seed);
    for (int64_t row = 0; row < num_rows(t); row++)
        for (int64_t e = 0; e < t->shape[1]; e++)
            *(float *)case_element(t, (int64_t[]){ row, e }) = 3 - 6 * (float)e / (float)t->shape[1];
}

/* In hash_gate scores choose nobody. */
static bool is_hash(const case_problem *c)
{
    return is_given(c, INPUT_IDS) && !strcmp(c->tensors[INPUT_IDS].name, "input_ids");
}

static tgl_status choose_values(const case_problem *c, case_tensor *t)
{
    const char *values = case_text(c, "values");
    t->fill = !strcmp(values, "normal")       ? (is_hash(c) ? case_fill_normal : fill_decided)
              : !strcmp(values, "near")       ? fill_near
              : !strcmp(values, "descending") ? fill_descending
                                              : NULL;
    for (size_t i = 0; i < COUNT_OF(tables); i++)
        if (!strcmp(values, tables[i].name)) t->fill = fill_table;
    return t->fill ? TGL_OK : moe_choose_fill(c, t);
}

/* ---- what masked and fixed tokens have ---- */

static bool is_masked(const case_problem *c, int64_t t) { return is_given(c, MASK) && !c->tensors[MASK].data[t]; }
static bool is_fixed(const case_problem *c, int64_t t) { return is_given(c, FIX) && c->tensors[FIX].data[t]; }

static float excluded_logit(const case_problem *c, int64_t row, uint64_t bits)
{
    static const float ties[] = { -1, 0.5f, 2 };
    float any;
    memcpy(&any, &bits, sizeof any);
    if (is_word(c, "excluded", "zeros")) return bits & 1 ? -0.0f : 0;
    if (is_word(c, "excluded", "ties")) return ties[row % 2 ? 1 : bits % COUNT_OF(ties)];   /* all, or some */
    if (is_word(c, "excluded", "nan")) return bits & 1 ? -NAN : NAN;
    if (is_word(c, "excluded", "inf")) return row % 3 == 0 || (row % 3 == 1 && bits & 1) ? INFINITY : -INFINITY;
    if (is_word(c, "excluded", "denormal")) return (bits & 1 ? -1e-45f : 1e-45f) * (float)(bits >> 44);
    return any;
}

static void fill_logits(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_tensor drawn = *t;
    if (choose_values(c, &drawn) != TGL_OK) abort();
    drawn.fill(c, t, seed);
    if (is_word(c, "excluded", "alike") || t->strides[0] == 0) return;
    for (int64_t row = 0; row < t->shape[0]; row++)
        for (int64_t e = 0; (is_masked(c, row) || is_fixed(c, row)) && e < t->shape[1]; e++)
            *(float *)case_element(t, (int64_t[]){ row, e }) =
                excluded_logit(c, row, case_random(seed + 1, row * t->shape[1] + e));
}

/* Numbers that are no expert, or may be none. */
static int64_t wild_index(int64_t num_experts, uint64_t bits)
{
    const int64_t wild[] = { INT32_MIN, INT32_MAX, -2, -1, num_experts, num_experts + 1, INT64_MIN, INT64_MAX,
                             (int64_t)1 << 32 };
    return bits >> 60 ? wild[bits % COUNT_OF(wild)] : (int64_t)bits;
}

static void fill_unmapped(const case_problem *c, case_tensor *t, uint64_t seed)
{
    if (is_word(c, "fixed", "bits")) case_fill_bits(c, t, seed);
    else case_fill_uniform(c, t, seed);
    if (is_word(c, "excluded", "alike")) return;
    for (int64_t i = 0; i < t->shape[0] * t->shape[1]; i++) {
        const int64_t row = i / t->shape[1], k = i % t->shape[1];
        if (is_masked(c, row) || (is_fixed(c, row) && k % 2))
            moe_put_index(t, row, k, wild_index(c->tensors[LOGITS].shape[1], case_random(seed + 1, i)));
    }
}

static tgl_status choose_logits(const case_problem *c, case_tensor *t)
{
    static const char *const kinds[] = { "alike", "zeros", "ties", "nan", "inf", "denormal", "wild" };
    TGL_TRY(choose_values(c, t));
    t->fill = fill_logits;
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (is_word(c, "excluded", kinds[i])) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "excluded: is \"%s\", want alike, zeros, ties, nan, inf, denormal or wild",
                    case_text(c, "excluded"));
}

static void fill_bias(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const char *kind = case_text(c, "bias");
    float *to = (float *)t->storage;
    static const float special[] = { NAN, INFINITY, -INFINITY, 0, -0.0f, FLT_MAX, -FLT_MAX, 1e-40f };
    for (int64_t e = 0; e < t->slots; e++) {
        const uint64_t bits = case_random(seed, e);
        const float normal = normal_of(bits);
        to[e] = !strcmp(kind, "zero")       ? 0
                : !strcmp(kind, "small")    ? normal / 8
                : !strcmp(kind, "large")    ? normal * 100
                : !strcmp(kind, "near")     ? 1 + (float)(bits >> 20 & ((2u << bits % 13) - 1)) * FLT_EPSILON
                : !strcmp(kind, "disabled") ? (bits % 3 ? -INFINITY : 0)
                : !strcmp(kind, "few")      ? (bits % 32 ? -INFINITY : 0)
                                            : special[bits % COUNT_OF(special)];
    }
}

static void fill_flags(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const char *kind = case_text(c, t == &c->tensors[MASK] ? "mask" : "fix");
    for (int64_t i = 0; i < t->slots; i++)
        t->storage[i] = !strcmp(kind, "all")    ? 1
                        : !strcmp(kind, "no")   ? 0
                        : !strcmp(kind, "tail") ? i < t->slots - 10     /* the last ten are padding */
                        : !strcmp(kind, "four") ? i < t->slots - 4      /* the last four */
                                                : case_random(seed, i) % 3 != 0;
}

/* Replicas of expert e: any number of physical experts; or with "wild" also empty ones and ones that no rank
 * has, and counts that make no sense. */
static void fill_map(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int64_t n = t->shape[0] + t->shape[1] - 1;
    const bool is_wild = !strcmp(case_text(c, "map"), "wild");
    const bool is_identity = !strcmp(case_text(c, "map"), "identity");
    for (int64_t i = 0; i < t->slots; i++) {
        const int64_t any = case_random_below(seed, i, is_wild ? 3 * n + 5 : n);
        ((int32_t *)t->storage)[i] = (int32_t)(is_identity ? i / t->shape[1] : is_wild ? any - 5 : any);
    }
}

static void fill_counts(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int64_t m = c->tensors[MAP].shape[1];
    const bool is_wild = !strcmp(case_text(c, "map"), "wild");
    const bool is_identity = !strcmp(case_text(c, "map"), "identity");
    for (int64_t i = 0; i < t->slots; i++) {
        const int64_t any = case_random_below(seed, i, is_wild ? m + 6 : m);
        ((int32_t *)t->storage)[i] = (int32_t)(is_identity ? 1 : is_wild ? any - 2 : any + 1);
    }
}

/* ---- what all gates have ---- */

static tgl_status read_scoring(const case_problem *c, tgl_moe_scoring *scoring)
{
    static const char *const names[] = { "sigmoid", "sqrtsoftplus", "softmax", "identity" };
    for (int i = 0; i < 4; i++)
        if (!strcmp(case_text(c, "scoring"), names[i])) {
            *scoring = (tgl_moe_scoring)i;
            return TGL_OK;
        }
    return tgl_fail(TGL_ERR_ARGUMENT, "scoring: is \"%s\", want sigmoid, sqrtsoftplus, softmax or identity",
                    case_text(c, "scoring"));
}

static void read_float(const case_problem *c, const char *name, bool *is_had, float *value)
{
    *is_had = strcmp(case_text(c, name), "none") != 0;
    *value = *is_had ? strtof(case_text(c, name), NULL) : 0;
}

static tgl_status setup_common(case_problem *c)
{
    const int64_t t = case_int(c, "num_tokens"), r = case_int(c, "num_experts"), k = case_int(c, "num_topk");
    const int64_t s = case_int(c, "num_shared_experts"), m = case_int(c, "replicas");
    const tgl_dtype dtype = case_dtype(c, "dtype");
    tgl_moe_gate_params p = {
        .num_shared_experts = s, .ep_rank = case_int(c, "ep_rank"),
        .num_ep_ranks = case_int(c, "num_ep_ranks"), .num_tp_ranks = case_int(c, "num_tp_ranks"),
        .tp_rank = case_int(c, "tp_rank"), .no_renormalize = !case_int(c, "renormalize"),
    };
    TGL_TRY(read_scoring(c, &p.scoring));
    read_float(c, "factor", &p.has_routed_scaling_factor, &p.routed_scaling_factor);
    read_float(c, "shared_weight", &p.has_shared_weight, &p.shared_weight);
    memcpy(c->scalars, &p, sizeof p);       /* which is where scalars begin */

    case_tensor *logits = case_add(c, LOGITS, "logits", CASE_IN, TGL_F32, 2, (int64_t[]){ t, r });
    logits->offset = case_int(c, "offset");
    TGL_TRY(moe_lay_out(case_text(c, "layout"), r, logits->strides));
    if (strcmp(case_text(c, "mask"), "none"))
        case_add(c, MASK, "mask", CASE_IN, TGL_BOOL, 1, &t)->fill = fill_flags;
    if (m > 0) {
        case_add(c, MAP, "to_physical_map", CASE_IN, TGL_I32, 2, (int64_t[]){ r + s, m })->fill = fill_map;
        case_add(c, COUNT, "logical_count", CASE_IN, TGL_I32, 1, (int64_t[]){ r + s })->fill = fill_counts;
    }
    const int64_t slots[2] = { t, k + s };
    case_tensor *weights = case_add(c, WEIGHTS, "topk_weights", CASE_OUT, TGL_F32, 2, slots);
    case_tensor *idx = case_add(c, IDX, "topk_idx", CASE_OUT, dtype, 2, slots);
    idx->offset = weights->offset = case_int(c, "out_offset");
    weights->compare.nan_payload = false;
    if (p.scoring != TGL_MOE_IDENTITY)
        weights->compare = (case_compare){ CASE_CLOSE, .rtol = 1e-5, .atol = 1e-8 };
    return TGL_OK;
}

static tgl_status setup_gate(case_problem *c)
{
    TGL_TRY(setup_common(c));
    const int64_t *shape = c->tensors[LOGITS].shape;
    tgl_moe_gate_params p;
    memcpy(&p, c->scalars, sizeof p);
    p.num_groups = case_int(c, "num_groups"), p.num_topk_groups = case_int(c, "num_topk_groups");
    memcpy(c->scalars, &p, sizeof p);
    if (strcmp(case_text(c, "bias"), "none"))
        case_add(c, BIAS, "bias", CASE_IN, TGL_F32, 1, &shape[1])->fill = fill_bias;
    if (strcmp(case_text(c, "fix"), "none"))
        case_add(c, FIX, "fix_routing_mask", CASE_IN, TGL_BOOL, 1, shape)->fill = fill_flags;
    if (strcmp(case_text(c, "unmapped"), "none")) {
        const int64_t k = case_int(c, "num_topk");
        case_tensor *u = case_add(c, UNMAPPED, "unmapped_topk_idx", CASE_INOUT, c->tensors[IDX].dtype, 2,
                                  (int64_t[]){ shape[0], k });
        const bool is_valid = is_word(c, "fixed", "valid");
        u->fill = fill_unmapped;
        u->low = is_valid ? 0 : -4, u->high = (double)shape[1] + (is_valid ? 0 : 4);
        u->offset = case_int(c, "out_offset");
        TGL_TRY(moe_lay_out(case_text(c, "unmapped"), k, u->strides));
    }
    return choose_logits(c, &c->tensors[LOGITS]);
}

static tgl_status run_gate(const case_arguments *a)
{
    return tgl_moe_top2_sum_gate(a->arg[LOGITS], a->arg[BIAS], a->arg[MASK], a->arg[FIX], a->arg[MAP],
                                 a->arg[COUNT], a->arg[UNMAPPED], a->arg[IDX], a->arg[WEIGHTS],
                                 &scalars_of(a->problem)->params, a->stream);
}

/* ---- the oracles ---- */

/* Experts of this rank are numbered by taking those of other ranks out. */
static int64_t number_on_rank(const tgl_moe_gate_params *p, int64_t num_experts, int64_t id)
{
    const __int128 ep = p->num_ep_ranks ? p->num_ep_ranks : 1, tp = p->num_tp_ranks ? p->num_tp_ranks : 1;
    const __int128 mine = num_experts / ep, round = mine * tp, shifted = id - p->tp_rank * mine;
    if (id < 0 || shifted < 0 || shifted % round >= mine) return -1;
    return (int64_t)(shifted - shifted / round * (round - mine));
}

/* What becomes of logical expert e in a slot of token t. */
static void put_expert(const case_problem *c, int64_t t, int64_t slot, int64_t e)
{
    const tgl_moe_gate_params *p = &scalars_of(c)->params;
    int64_t id = e, extra = 0;
    if (is_given(c, MAP) && e >= 0) {
        const int64_t replicas = c->tensors[MAP].shape[1];
        int64_t count = ((const int32_t *)c->tensors[COUNT].data)[e];
        if (count < 1) count = 1;
        if (count > replicas) count = replicas;
        const int64_t replica = (int64_t)(((__int128)p->ep_rank + (__int128)t * 23333) % count);
        id = moe_index_at(&c->tensors[MAP], e, replica);
    }
    if (is_given(c, MAP)) extra = c->tensors[MAP].shape[1] - 1;
    moe_put_index(&c->tensors[IDX], t, slot, number_on_rank(p, c->tensors[LOGITS].shape[1] + extra, id));
}

static void put_weight(const case_problem *c, int64_t t, int64_t slot, double weight)
{
    case_encode(TGL_F32, weight, case_element(&c->tensors[WEIGHTS], (int64_t[]){ t, slot }));
}

/* Scores of chosen experts, -1 being none. */
static void score_chosen(const case_problem *c, int64_t t, const int64_t *chosen, int64_t num_topk,
                         float *scores)
{
    const tgl_moe_scoring scoring = scalars_of(c)->params.scoring;
    const case_tensor *logits = &c->tensors[LOGITS];
    double largest = -INFINITY, sum = 0;
    if (scoring == TGL_MOE_SOFTMAX) {
        for (int64_t e = 0; e < logits->shape[1]; e++)
            largest = fmax(largest, (double)float_at(logits, t, e));
        for (int64_t e = 0; e < logits->shape[1]; e++) {
            const double x = (double)float_at(logits, t, e);
            if (!isnan(x)) sum += exp(x - largest);
        }
    }
    for (int64_t k = 0; k < num_topk; k++) {
        const float x = chosen[k] < 0 ? NAN : float_at(logits, t, chosen[k]);
        scores[k] = score_of(scoring, x);
        if (scoring == TGL_MOE_SOFTMAX && !isnan(x)) scores[k] = (float)(exp((double)x - largest) / sum);
        if (isnan(scores[k])) scores[k] = 0;
    }
}

static void put_masked(const case_problem *c, int64_t t)
{
    for (int64_t k = 0; k < c->tensors[IDX].shape[1]; k++) {
        moe_put_index(&c->tensors[IDX], t, k, -1);
        put_weight(c, t, k, 0);
    }
    for (int64_t k = 0; is_given(c, UNMAPPED) && k < c->tensors[UNMAPPED].shape[1]; k++)
        moe_put_index(&c->tensors[UNMAPPED], t, k, -1);
}

/* Slots of a token of chosen experts, -1 being none, and the shared ones. */
static void put_token(const case_problem *c, int64_t t, const int64_t *chosen, int64_t num_topk,
                      float *scores)
{
    const tgl_moe_gate_params *p = &scalars_of(c)->params;
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

static void gate_rows(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    const case_tensor *logits = &c->tensors[LOGITS], *unmapped = &c->tensors[UNMAPPED];
    const int64_t num_topk = num_topk_of(c);
    int64_t *chosen = calloc((size_t)num_topk + 1, 8);
    float *scores = calloc((size_t)num_topk + 1, 4);
    chooser h;
    if (!chosen || !scores || !open_chooser(&h, c)) abort();
    for (int64_t t = begin; t < end; t++) {
        if (is_masked(c, t)) {
            put_masked(c, t);
            continue;
        }
        if (!is_fixed(c, t) && !choose(&h, t)) __atomic_store_n(&c->is_undecided, true, __ATOMIC_RELAXED);
        for (int64_t k = 0; k < num_topk; k++) {
            chosen[k] = is_fixed(c, t) ? moe_index_at(unmapped, t, k) : h.sorted[k].index;
            if (!is_fixed(c, t) && is_given(c, UNMAPPED)) moe_put_index(unmapped, t, k, chosen[k]);
            if (chosen[k] < 0 || chosen[k] >= logits->shape[1]) chosen[k] = -1;
        }
        put_token(c, t, chosen, num_topk, scores);
    }
    close_chooser(&h);
    free(chosen), free(scores);
}

static void oracle_gate(case_problem *c)
{
    case_parallel(c->tensors[LOGITS].shape[0], 256 * c->tensors[LOGITS].shape[1], gate_rows, c);
}

static int64_t bytes_of(const case_problem *c, int i)
{
    return is_given(c, i) ? case_tensor_bytes(&c->tensors[i]) : 0;
}

/* The map and its counts are read where they are needed. */
static int64_t bytes_of_map(const case_problem *c)
{
    const int64_t all = bytes_of(c, MAP) + bytes_of(c, COUNT);
    const int64_t slots = 8 * c->tensors[IDX].shape[0] * c->tensors[IDX].shape[1];
    return all < slots ? all : slots;
}

static int64_t bytes_gate(const case_problem *c)
{
    return bytes_of(c, LOGITS) + bytes_of(c, BIAS) + bytes_of(c, MASK) + bytes_of(c, FIX) + bytes_of_map(c) +
           bytes_of(c, UNMAPPED) + bytes_of(c, IDX) + bytes_of(c, WEIGHTS);
}

/* ---- hash_gate ---- */

static void fill_tid2eid(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int64_t experts = c->tensors[LOGITS].shape[1], r = experts > 0 ? experts : 1;
    const char *kind = case_text(c, "fixed");
    if (!strcmp(kind, "bits")) {
        case_fill_bits(c, t, seed);
        return;
    }
    for (int64_t i = 0; i < t->slots; i++) {
        const int64_t k = i % t->shape[1], id = i / t->shape[1];
        const int64_t any = case_random_below(seed, i, experts + 8) - 4;
        const int64_t expert = !strcmp(kind, "valid")     ? (id + k) % r
                               : !strcmp(kind, "repeats") ? (id + k / 2) % r
                                                          : any;
        case_encode(t->dtype, (double)expert, t->storage + i * t->element_bytes);
    }
}

static void fill_ids(const case_problem *c, case_tensor *t, uint64_t seed)
{
    if (is_word(c, "ids", "bits")) case_fill_bits(c, t, seed);
    else case_fill_uniform(c, t, seed);
    for (int64_t i = 0; !is_word(c, "excluded", "alike") && i < t->shape[0]; i++) {
        const int64_t wild = wild_index(c->tensors[TID2EID].shape[0], case_random(seed + 1, i));
        if (is_masked(c, i)) memcpy(t->data + i * t->element_bytes, &wild, (size_t)t->element_bytes);
    }
}

static tgl_status setup_hash(case_problem *c)
{
    TGL_TRY(setup_common(c));
    const int64_t t = case_int(c, "num_tokens"), k = case_int(c, "num_topk"), v = case_int(c, "vocabulary");
    const bool is_valid = !strcmp(case_text(c, "ids"), "valid");
    case_tensor *ids = case_add(c, INPUT_IDS, "input_ids", CASE_IN, case_dtype(c, "id_dtype"), 1, &t);
    case_tensor *table = case_add(c, TID2EID, "tid2eid", CASE_IN, case_dtype(c, "table_dtype"), 2,
                                  (int64_t[]){ v, k });
    ids->fill = fill_ids;
    ids->low = is_valid ? 0 : -(double)v / 4 - 1, ids->high = (double)v + (is_valid ? 0 : (double)v / 4 + 2);
    ids->offset = table->offset = case_int(c, "out_offset");
    table->fill = fill_tid2eid;
    if (strcmp(case_text(c, "unmapped"), "none")) {
        case_tensor *u = case_add(c, UNMAPPED, "unmapped_topk_idx", CASE_OUT, c->tensors[IDX].dtype, 2,
                                  (int64_t[]){ t, k });
        TGL_TRY(moe_lay_out(case_text(c, "unmapped"), k, u->strides));
    }
    return choose_logits(c, &c->tensors[LOGITS]);
}

static tgl_status run_hash(const case_arguments *a)
{
    return tgl_moe_hash_gate(a->arg[LOGITS], a->arg[INPUT_IDS], a->arg[TID2EID], a->arg[MASK], a->arg[MAP],
                             a->arg[COUNT], a->arg[UNMAPPED], a->arg[IDX], a->arg[WEIGHTS],
                             &scalars_of(a->problem)->params, a->stream);
}

static int64_t id_at(const case_tensor *ids, int64_t t)
{
    const void *from = case_element(ids, &t);
    return ids->element_bytes == 4 ? *(const int32_t *)from : *(const int64_t *)from;
}

static void hash_rows(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    const case_tensor *table = &c->tensors[TID2EID];
    const int64_t num_topk = table->shape[1];
    int64_t *chosen = calloc((size_t)num_topk + 1, 8);
    float *scores = calloc((size_t)num_topk + 1, 4);
    if (!chosen || !scores) abort();
    for (int64_t t = begin; t < end; t++) {
        const int64_t id = id_at(&c->tensors[INPUT_IDS], t);
        if (is_masked(c, t) || id < 0 || id >= table->shape[0]) {
            put_masked(c, t);
            continue;
        }
        for (int64_t k = 0; k < num_topk; k++) {
            chosen[k] = moe_index_at(table, id, k);
            const bool fits = c->tensors[IDX].dtype == TGL_I64 || chosen[k] == (int32_t)chosen[k];
            if (is_given(c, UNMAPPED)) moe_put_index(&c->tensors[UNMAPPED], t, k, fits ? chosen[k] : -1);
            if (chosen[k] < 0 || chosen[k] >= c->tensors[LOGITS].shape[1]) chosen[k] = -1;
        }
        put_token(c, t, chosen, num_topk, scores);
    }
    free(chosen), free(scores);
}

static void oracle_hash(case_problem *c)
{
    case_parallel(c->tensors[INPUT_IDS].shape[0], 256 * c->tensors[TID2EID].shape[1], hash_rows, c);
}

static int64_t bytes_hash(const case_problem *c)
{
    const case_tensor *table = &c->tensors[TID2EID];
    const int64_t slots = c->tensors[INPUT_IDS].shape[0] * table->shape[1];
    const int64_t entry = tgl_dtype_bits(tgl_dtype_to_dlpack(table->dtype)) / 8;
    const bool is_softmax = scalars_of(c)->params.scoring == TGL_MOE_SOFTMAX;   /* it sums the whole row */
    return bytes_of(c, INPUT_IDS) + slots * entry + (is_softmax ? bytes_of(c, LOGITS) : 4 * slots) +
           bytes_of(c, MASK) + bytes_of_map(c) + bytes_of(c, UNMAPPED) + bytes_of(c, IDX) +
           bytes_of(c, WEIGHTS);
}

/* ---- route ---- */

static tgl_status setup_route(case_problem *c)
{
    TGL_TRY(setup_gate(c));
    const int64_t alignment = case_int(c, "alignment"), given = case_int(c, "num_mapped_experts");
    const int64_t *shape = c->tensors[IDX].shape, e = given ? given : c->tensors[LOGITS].shape[1];
    int64_t n = case_int(c, "num_positions");
    if (n < 0) n = shape[0] * shape[1] + (alignment - 1) * e;
    memcpy(c->scalars + offsetof(scalars, alignment), &alignment, sizeof alignment);
    const int64_t apart = case_int(c, "apart");
    memcpy(c->scalars + offsetof(scalars, apart), &apart, sizeof apart);
    case_add(c, POS_TO_EXPERT, "pos_to_expert", CASE_OUT, TGL_I32, 1, &n);
    case_add(c, POS_TO_TOKEN, "pos_to_token", CASE_OUT, TGL_I32, 1, &n);
    case_add(c, POS_TO_TOKEN_TOPK, "pos_to_token_topk", CASE_OUT, TGL_I32, 1, &n);
    case_add(c, TOKEN_TOPK_TO_POS, "token_topk_to_pos", CASE_OUT, TGL_I32, 2, shape);
    case_add(c, EXPERT_START, "expert_start", CASE_OUT, TGL_I32, 1, &e);
    case_add(c, EXPERT_END, "expert_end", CASE_OUT, TGL_I32, 1, &e);
    case_add(c, NUM_TOKENS_PER_EXPERT, "num_tokens_per_expert", CASE_OUT, TGL_I32, 1, &e);
    if (case_int(c, "counts")) {
        case_add(c, PAIRS, "count", CASE_OUT, TGL_I32, 1, &e);
        case_add(c, PSUM_END, "psum_end", CASE_OUT, TGL_I32, 1, &e);
    }
    return TGL_OK;
}

static tgl_moe_mapping mapping_of(const case_arguments *a)
{
    return (tgl_moe_mapping){
        a->arg[POS_TO_EXPERT], a->arg[POS_TO_TOKEN], a->arg[POS_TO_TOKEN_TOPK], a->arg[TOKEN_TOPK_TO_POS],
        a->arg[EXPERT_START], a->arg[EXPERT_END], a->arg[NUM_TOKENS_PER_EXPERT], a->arg[PAIRS],
        a->arg[PSUM_END], NULL, { 0 },
    };
}

static tgl_status run_route(const case_arguments *a)
{
    const tgl_moe_mapping mapping = mapping_of(a);
    const scalars *s = scalars_of(a->problem);
    if (s->apart) {
        TGL_TRY(run_gate(a));
        return tgl_moe_get_fused_mapping(a->arg[IDX], &mapping, s->alignment, a->workspace,
                                         a->workspace_bytes, a->stream);
    }
    return tgl_moe_route(a->arg[LOGITS], a->arg[BIAS], a->arg[MASK], a->arg[FIX], a->arg[MAP], a->arg[COUNT],
                         a->arg[UNMAPPED], a->arg[IDX], a->arg[WEIGHTS], &mapping, s->alignment, &s->params,
                         a->workspace, a->workspace_bytes, a->stream);
}

static size_t workspace_route(const case_arguments *a)
{
    const tgl_moe_mapping mapping = mapping_of(a);
    return tgl_moe_route_workspace_size(a->arg[LOGITS], a->arg[IDX], &mapping);
}

/* An expert at a time: walks over all pairs and gives out positions. */
static void oracle_route(case_problem *c)
{
    oracle_gate(c);
    const case_tensor *idx = &c->tensors[IDX];
    int32_t *const pos_to_expert = (int32_t *)c->tensors[POS_TO_EXPERT].data;
    int32_t *const pos_to_token = (int32_t *)c->tensors[POS_TO_TOKEN].data;
    int32_t *const pos_to_token_topk = (int32_t *)c->tensors[POS_TO_TOKEN_TOPK].data;
    int32_t *const token_topk_to_pos = (int32_t *)c->tensors[TOKEN_TOPK_TO_POS].data;
    const int64_t n = c->tensors[POS_TO_EXPERT].shape[0], alignment = scalars_of(c)->alignment;
    const int64_t width = idx->shape[1], pairs = idx->shape[0] * width;
    for (int64_t p = 0; p < n; p++) pos_to_expert[p] = pos_to_token[p] = pos_to_token_topk[p] = -1;
    for (int64_t i = 0; i < pairs; i++) token_topk_to_pos[i] = -1;
    int64_t position = 0;
    for (int64_t e = 0; e < c->tensors[EXPERT_START].shape[0]; e++) {
        const int64_t start = position;
        for (int64_t i = 0; i < pairs; i++) {
            if (moe_index_at(idx, i / width, i % width) != e) continue;
            if (position < n) {
                pos_to_expert[position] = (int32_t)e;
                pos_to_token[position] = (int32_t)(i / width);
                pos_to_token_topk[position] = (int32_t)i;
                token_topk_to_pos[i] = (int32_t)position;
            }
            position++;
        }
        if (is_given(c, PAIRS)) {
            ((int32_t *)c->tensors[PAIRS].data)[e] = (int32_t)(position - start);
            ((int32_t *)c->tensors[PSUM_END].data)[e] = (int32_t)position;
        }
        while ((position - start) % alignment) position++;
        ((int32_t *)c->tensors[EXPERT_START].data)[e] = (int32_t)start;
        ((int32_t *)c->tensors[EXPERT_END].data)[e] = (int32_t)position;
        ((int32_t *)c->tensors[NUM_TOKENS_PER_EXPERT].data)[e] = (int32_t)(position - start);
    }
}

static int64_t bytes_route(const case_problem *c)
{
    int64_t bytes = bytes_gate(c);
    for (int i = POS_TO_EXPERT; i <= PSUM_END; i++) bytes += bytes_of(c, i);
    return bytes;
}

/* ---- the table ---- */

#define SIZES "num_tokens= num_experts= num_topk= "
#define GROUPS "num_groups=0 num_topk_groups=0 "
#define REST                                                                                              \
    "scoring=sigmoid num_shared_experts=0 replicas=0 map=random ep_rank=0 num_ep_ranks=0 num_tp_ranks=0 " \
    "tp_rank=0 factor=1.5 shared_weight=none renormalize=1 values=normal mask=none unmapped=none "        \
    "fixed=valid excluded=alike dtype=i64 layout=packed offset=0 out_offset=0"
#define CHOICE " bias=small fix=none"
#define EXCLUDED "excluded=zeros,ties,nan,inf,denormal,wild"

const case_op moe_gate_ops[] = {
    {
        "moe_top2_sum_gate", SIZES GROUPS REST CHOICE,
        setup_gate, run_gate, oracle_gate, bytes_gate, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            /* models, with every scoring function */
            "num_tokens=13 num_experts=72,32,64,96,16,36,108,128,144 num_topk=6 "
            "scoring=sigmoid,sqrtsoftplus,softmax",
            "num_tokens=13 num_experts=256 num_topk=8 scoring=sigmoid,sqrtsoftplus,softmax,identity",
            "num_tokens=13 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4,8 "
            "scoring=sigmoid,sqrtsoftplus,softmax,identity",
            "num_tokens=7 num_experts=384 num_topk=6 scoring=sqrtsoftplus,softmax",
            /* any number of tokens */
            "num_tokens=0,1,2,3,4,5,8,9,31,33,65,129,600,2200 num_experts=256 num_topk=8 num_groups=8 "
            "num_topk_groups=4",
            "num_tokens=0,1,2,3,5,9,33,65,600,2200 num_experts=256 num_topk=8 scoring=sqrtsoftplus",
            "num_tokens=600 num_experts=64 num_topk=6 scoring=sqrtsoftplus",
            /* any number of experts */
            "num_tokens=5 num_experts=1,2,3,7,31,33,63 num_topk=1 scoring=identity",
            "num_tokens=5 num_experts=63,65,127,129,255,257,383,385,511,512,513,1000,1023,1024,1025 "
            "num_topk=6 scoring=identity",
            "num_tokens=3 num_experts=9,33,127,257,1000,1025,2050 num_topk=8 scoring=sqrtsoftplus "
            "values=near bias=none",
            "num_tokens=2 num_experts=4096 num_topk=8,33 scoring=sigmoid,softmax values=near bias=none",
            "num_tokens=2 num_experts=6144 num_topk=8 scoring=identity values=normal,ties bias=none",
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
            /* ties, special values, values past the ends of the functions */
            "num_tokens=9 num_experts=36,144,1025 num_topk=6 values=ties,equal,zero,few_finite,special "
            "bias=none,zero scoring=sigmoid,sqrtsoftplus,identity",
            "num_tokens=9 num_experts=36,144,1025 num_topk=6 values=ties,equal,zero,special_but_inf "
            "bias=none,small,large scoring=softmax",
            "num_tokens=9 num_experts=256 num_topk=8 values=saturated,branch,deep bias=none,zero "
            "scoring=sigmoid,sqrtsoftplus",
            "num_tokens=9 num_experts=36,144,1025 num_topk=6 values=normal,ties bias=disabled,few "
            "scoring=sigmoid,softmax,identity",
            "num_tokens=9 num_experts=64 num_topk=40 values=ties,special bias=special,disabled "
            "scoring=identity",
            "num_tokens=9 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 bias=disabled,few "
            "values=exact scoring=sigmoid,sqrtsoftplus,softmax",
            /* keys that only exact scores tell apart */
            "num_tokens=21 num_experts=36,72,144,1025 num_topk=6 values=exact bias=near "
            "scoring=sigmoid,sqrtsoftplus,softmax,identity",
            "num_tokens=21 num_experts=256 num_topk=8 num_groups=0 values=exact bias=near "
            "scoring=sigmoid,sqrtsoftplus,softmax,identity",
            "num_tokens=21 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 values=exact bias=near "
            "scoring=sigmoid,sqrtsoftplus,softmax,identity",
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
            /* excluded tokens: of few tokens, with a map, in groups, of many, by the wide kernel */
            "num_tokens=37 num_experts=144 num_topk=6 mask=some fix=none,some unmapped=packed " EXCLUDED,
            "num_tokens=37 num_experts=144 num_topk=6 mask=some fix=some unmapped=gap num_shared_experts=2 "
            "replicas=33 map=random,wild bias=none scoring=sigmoid " EXCLUDED,
            "num_tokens=13 num_experts=256 num_topk=8 mask=some fix=some unmapped=half num_shared_experts=1 "
            "replicas=4 map=wild scoring=softmax,identity " EXCLUDED,
            "num_tokens=11 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 mask=some fix=some "
            "unmapped=packed scoring=sigmoid,softmax " EXCLUDED,
            "num_tokens=9 num_experts=1025 num_topk=6 mask=some fix=some unmapped=packed "
            "num_shared_experts=1 replicas=2 map=wild scoring=sigmoid " EXCLUDED,
            "num_tokens=9 num_experts=40 num_topk=33 mask=some fix=some unmapped=packed scoring=sigmoid " EXCLUDED,
            "num_tokens=600 num_experts=257 num_topk=6 mask=some fix=some unmapped=gap num_shared_experts=2 "
            "replicas=5 map=random,wild bias=disabled scoring=identity " EXCLUDED,
            "num_tokens=4100 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 mask=some "
            "fix=some unmapped=packed num_shared_experts=1 replicas=3 dtype=i32 excluded=zeros,nan",
            /* weights */
            "num_tokens=11 num_experts=64 num_topk=6 factor=none,1,2.5,0,-1 renormalize=0,1 "
            "scoring=sigmoid,identity",
            "num_tokens=11 num_experts=64 num_topk=6 num_shared_experts=1 replicas=2 "
            "shared_weight=none,0,0.4 factor=2.5 renormalize=0,1 scoring=sqrtsoftplus,softmax",
            "num_tokens=11 num_experts=64 num_topk=6 values=magnitudes,bits scoring=identity",
            /* where rows are */
            "num_tokens=9 num_experts=72,144 num_topk=6 layout=half,gap,repeated offset=0,1,2,3 "
            "out_offset=0,1 dtype=i64,i32",
            "num_tokens=9 num_experts=1026 num_topk=6 layout=gap,repeated offset=0,1",
            "num_tokens=600 num_experts=257 num_topk=6 layout=gap,repeated offset=0,1 scoring=identity",
            "num_tokens=520 num_experts=512,1000 num_topk=1 scoring=softmax",
            /* many tokens: top2_sum_gate_many.cu */
            "num_tokens=4100 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 dtype=i32",
            "num_tokens=4100 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 dtype=i32 values=ties "
            "bias=none",
            "num_tokens=600 num_experts=257 num_topk=6 values=ties,equal,few_finite,special bias=none "
            "scoring=identity",
            "num_tokens=600 num_experts=257 num_topk=6 values=near,special bias=none "
            "scoring=sigmoid,sqrtsoftplus",
            "num_tokens=600 num_experts=257 num_topk=6 values=exact bias=near scoring=sigmoid,sqrtsoftplus",
            /* ep_rank + t * 23333 gets past 2^31, 2^32; many tokens are in the slow list and hash_gate's */
            "num_tokens=9,260 num_experts=16 num_topk=6 num_shared_experts=1 replicas=7 "
            "ep_rank=2147400000,4294900000,9223372036854000000",
            "num_tokens=9 num_experts=40 num_topk=33 replicas=7 ep_rank=2147400000,4294900000",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
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
            /* t * 23333 is past 2^31 */
            "num_tokens=92200,200000 num_experts=16 num_topk=4 num_shared_experts=1 replicas=7 ep_rank=5 "
            "dtype=i64,i32",
            "num_tokens=92200 num_experts=16 num_topk=4 replicas=7 fix=all unmapped=packed",
            "num_tokens=32780 num_experts=16 num_topk=6 layout=far",    /* logits past 2^31 elements */
            "num_tokens=3 num_experts=100000 num_topk=8 values=near bias=none num_groups=0 "
            "scoring=softmax,identity",
            NULL,
        },
        /* sizes that were measured for other libraries, then decoding, other models and functions */
        .lists[CASE_BENCH] = (const char *const[]){
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
            /* what the benchmark of TileKernels has: 32 tokens and 4 of padding */
            "num_tokens=36 num_experts=72 num_topk=6 mask=four",
            "num_tokens=36 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 mask=four",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
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
            "unmapped=packed num_shared_experts=1 replicas=33 num_ep_ranks=4 num_tp_ranks=2",
            NULL,
        },
    },
    {
        "moe_hash_gate",
        SIZES "vocabulary= " REST " ids=valid id_dtype=i64 table_dtype=i32",
        setup_hash, run_hash, oracle_hash, bytes_hash, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
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
            "ep_rank=0,3 num_ep_ranks=8 num_tp_ranks=2 tp_rank=0,1 map=random,wild mask=some "
            "unmapped=packed",
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
            "map=wild unmapped=packed scoring=sigmoid,softmax id_dtype=i64,i32 " EXCLUDED,
            "num_tokens=33 num_experts=40 num_topk=33 vocabulary=50 mask=some num_shared_experts=1 replicas=2 "
            "unmapped=packed table_dtype=i64 " EXCLUDED,
            /* t * 23333 is past 2^31, then 2^32; here, as the emulated device takes a tenth of what
             * top2_sum_gate takes there */
            "num_tokens=184100 num_experts=16 num_topk=1 num_shared_experts=1 replicas=7 ep_rank=5 "
            "vocabulary=100 scoring=identity",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_tokens=0,1,7,64,512,4096 num_experts=256,384 num_topk=1,6,8,31 num_shared_experts=0,1 "
            "replicas=2 vocabulary=129280 scoring=sqrtsoftplus mask=none,some id_dtype=i64,i32 "
            "table_dtype=i64,i32",
            "num_tokens=92200,200000 num_experts=16 num_topk=4 num_shared_experts=1 replicas=7 ep_rank=5 "
            "vocabulary=1000",
            "num_tokens=32780 num_experts=16 num_topk=6 layout=far vocabulary=1000",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_tokens=1,8,32,128,512,4096 num_experts=256 num_topk=6 scoring=sqrtsoftplus "
            "vocabulary=129280",
            "num_tokens=1,8,32,128,512,4096 num_experts=256 num_topk=6 num_shared_experts=1 replicas=2 "
            "scoring=sqrtsoftplus vocabulary=129280",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_tokens=64 num_experts=256 num_topk=6 scoring=sigmoid,softmax,identity dtype=i64,i32 "
            "vocabulary=1000",
            "num_tokens=64 num_experts=256 num_topk=6 scoring=sqrtsoftplus dtype=i64,i32 id_dtype=i64,i32 "
            "table_dtype=i64,i32 vocabulary=1000",
            "num_tokens=64 num_experts=384,1030 num_topk=1,2,8,16,31,32,33 scoring=sqrtsoftplus,softmax "
            "vocabulary=1000",
            "num_tokens=64 num_experts=256 num_topk=6 num_shared_experts=1 replicas=2 vocabulary=1000",
            NULL,
        },
    },
    {
        "moe_route",
        SIZES GROUPS REST CHOICE " num_mapped_experts=0 alignment=128 num_positions=-1 counts=0 apart=0",
        setup_route, run_route, oracle_route, bytes_route, workspace_route,
        .lists[CASE_CHECK] = (const char *const[]){
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
            "num_tokens=9 num_experts=72 num_topk=6 layout=half,gap,repeated offset=0,1,3 "
            "out_offset=0,1 dtype=i64,i32 alignment=4",
            "num_tokens=5,40 num_experts=384,512 num_topk=6 scoring=identity alignment=16",
            /* more words than a cluster's warps mark in one go */
            "num_tokens=100 num_experts=64 num_topk=10 alignment=3 counts=1",
            "num_tokens=128 num_experts=64 num_topk=32 alignment=1",
            /* so few that every block routes all, and more than a cluster routes */
            "num_tokens=3,150 num_experts=64 num_topk=6 num_shared_experts=1 replicas=5 num_ep_ranks=4 "
            "num_tp_ranks=2 num_mapped_experts=34 alignment=16 map=random mask=some fix=some unmapped=gap "
            "fixed=beyond counts=1 scoring=softmax,identity,sqrtsoftplus dtype=i32",
            "num_tokens=4,130 num_experts=384,512,1000 num_topk=6 scoring=identity alignment=16",
            "num_tokens=4,130 num_experts=40 num_topk=32 alignment=8 values=descending bias=none",
            /* excluded tokens: of so few that every block routes all, of those of a cluster, of more */
            "num_tokens=4,50,150 num_experts=64 num_topk=6 num_shared_experts=1 replicas=5 num_ep_ranks=4 "
            "num_tp_ranks=2 num_mapped_experts=34 alignment=16 map=wild mask=some fix=some unmapped=gap "
            "dtype=i32 scoring=identity " EXCLUDED,
            "num_tokens=50,150 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 mask=some fix=some "
            "unmapped=packed " EXCLUDED,
            /* on many SMs a block beyond those of the experts */
            "num_tokens=256 num_experts=1024 num_topk=6",
            "num_tokens=1,128 num_experts=256 num_topk=6 num_positions=131073",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_tokens=21 num_experts=72,16,36,144,1000,1024,1025 num_topk=6 "
            "scoring=sigmoid,softmax,identity counts=0,1 alignment=16",
            "num_tokens=33 num_experts=40 num_topk=2,31,40 alignment=8 values=descending bias=none",
            "num_tokens=40 num_experts=264 num_topk=8 num_groups=33 num_topk_groups=4",
            "num_tokens=1,2,3,15,16,17,63,64,65,127,128,129,191,255,256,257,511,1024,4001 "
            "num_experts=72,256,384 num_topk=6,8 scoring=sigmoid,sqrtsoftplus,softmax dtype=i64,i32 "
            "counts=0,1",
            "num_tokens=256,257 num_experts=1024,1025 num_topk=32,33 values=descending bias=none counts=1",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_tokens=1,8,16,32,64,128,256 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4",
            "num_tokens=1,8,16,32,64,128,256 num_experts=384 num_topk=6 scoring=sqrtsoftplus",
            "num_tokens=1,128 num_experts=256 num_topk=8 scoring=sqrtsoftplus",
            "num_tokens=128 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 dtype=i32",
            /* what the same takes as two ops */
            "num_tokens=1,8,16,32,64,128,256 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 "
            "apart=1",
            "num_tokens=1,8,16,32,64,128,256 num_experts=384 num_topk=6 scoring=sqrtsoftplus apart=1",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_tokens=64 num_experts=36,72,128,256 num_topk=6 scoring=sigmoid,sqrtsoftplus,softmax,"
            "identity dtype=i64,i32",
            "num_tokens=64 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 "
            "scoring=sigmoid,sqrtsoftplus,softmax,identity dtype=i64,i32 counts=0,1",
            "num_tokens=64 num_experts=384,512,1000,1024,1025 num_topk=8 scoring=sqrtsoftplus",
            "num_tokens=64 num_experts=256 num_topk=8,32,33 num_mapped_experts=8,1024,2048",
            NULL,
        },
    },
    { .name = NULL },
};
