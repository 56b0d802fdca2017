/* SPDX-License-Identifier: MIT */
#include "gate.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

/* ---- logits ---- */

/* Every element is a random one of these. What is exact depends on the scoring function. */
static const float exact_sigmoid[] = { 0, -200, 30, -0.0f, 1e-40f, 0, 0 };
static const float exact_sqrtsoftplus[] = { 25, 36, 20.25f, 30.25f, 42.25f, -200, 25 };
static const float saturated[] = { 100, 50, 30, 25, 89, -104.5f, -120, -INFINITY, -1e30f, 1e30f };
static const float branch[] = { 20, 20.5f, 19.5f, 30, 12, 0, -5 };
static const float deep[] = { -46, -44, -40, -50, -47.5f };
static const float special_but_inf[] = { NAN, -NAN, -INFINITY, 0, -0.0f, 1e-40f, -1e-40f, -FLT_MAX, 1, -1 };
#define COUNT_OF(table) (sizeof(table) / sizeof *(table))
static const struct {
    const char *name;
    const float *values;
    size_t count;
} tables[] = {
    { "exact", exact_sigmoid, COUNT_OF(exact_sigmoid) },
    { "exact", exact_sqrtsoftplus, COUNT_OF(exact_sqrtsoftplus) },
    { "saturated", saturated, COUNT_OF(saturated) },
    { "branch", branch, COUNT_OF(branch) },
    { "deep", deep, COUNT_OF(deep) },
    { "special_but_inf", special_but_inf, COUNT_OF(special_but_inf) },
};

typedef struct {
    const case_problem *c;
    case_tensor *t;
    uint64_t seed;
} filling;

static void fill_table(const case_problem *c, case_tensor *t, uint64_t seed)
{
    size_t i = 0;
    while (!case_is(c, "values", tables[i].name)) i++;
    if (i == 0 && gate_params_of(c)->scoring == TGL_MOE_SQRTSOFTPLUS) i = 1;
    moe_fill_any_of(t, seed, tables[i].values, tables[i].count);
}

/* Rows in memory: one if all tokens share it. */
static int64_t num_rows(const case_tensor *t) { return t->strides[0] || !t->shape[0] ? t->shape[0] : 1; }

static float normal_of(uint64_t bits) /* nearly: a sum of four uniform numbers */
{
    const double sum =
        (double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) + (double)(bits >> 32 & 0xffff) + (double)(bits >> 48);
    return (float)((sum / 65536 - 2) * 1.7320508);
}

enum { MAX_ATTEMPTS = 100 }; /* per row; many picks of many experts may never be decided */

static void decide_rows(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    gate_chooser h = gate_open_chooser(f->c);
    for (int64_t row = begin; row < end; row++)
        for (uint64_t attempt = 1; attempt < MAX_ATTEMPTS && !gate_choose(&h, row); attempt++)
            for (int64_t e = 0; e < f->t->shape[1]; e++)
                *(float *)case_element(f->t, (int64_t[]){ row, e }) =
                    normal_of(case_random(f->seed + attempt, row * f->t->shape[1] + e));
    gate_close_chooser(&h);
}

/* Are there enough groups and experts? If not, the op reports an error. */
static bool can_choose(const case_problem *c)
{
    const int64_t num_experts = c->tensors[LOGITS].shape[1], num_topk = gate_num_topk(c);
    const int64_t n = gate_params_of(c)->num_groups, kept = gate_params_of(c)->num_topk_groups;
    if (n == kept) return num_topk <= num_experts;
    return kept >= 0 && n > kept && num_experts % n == 0 && num_topk <= kept * (num_experts / n);
}

static void fill_decided(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_normal(c, t, seed);
    if (!can_choose(c)) return;
    case_parallel(num_rows(t), 256 * t->shape[1], decide_rows, &(filling){ c, t, seed });
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
            const int64_t place = bits >> 63 ? e : (first + e * step) % n; /* half of them ascend */
            *(float *)case_element(f->t, (int64_t[]){ row, e }) = 0.3125f + (float)place / 32768;
        }
    }
}

static void fill_near(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_bits(c, t, seed);
    case_parallel(num_rows(t), 4 * t->shape[1], near_rows, &(filling){ c, t, seed });
}

static void fill_descending(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_bits(c, t, seed);
    for (int64_t row = 0; row < num_rows(t); row++)
        for (int64_t e = 0; e < t->shape[1]; e++)
            *(float *)case_element(t, (int64_t[]){ row, e }) = 3 - 6 * (float)e / (float)t->shape[1];
}

/* The last expert's is above 88, where the filter of sqrtsoftplus is infinite. All scores are exact. */
static void fill_high_last(const case_problem *c, case_tensor *t, uint64_t seed)
{
    moe_fill_any_of(t, seed, exact_sqrtsoftplus, COUNT_OF(exact_sqrtsoftplus));
    for (int64_t row = 0; row < num_rows(t) && t->shape[1]; row++)
        *(float *)case_element(t, (int64_t[]){ row, t->shape[1] - 1 }) = 100;
}

/* hash_gate does not choose by score. */
static bool is_hash(const case_problem *c)
{
    return c->num_tensors > NUM_OF_GATE && c->tensors[NUM_OF_GATE].name &&
           !strcmp(c->tensors[NUM_OF_GATE].name, "input_ids");
}

static tgl_status choose_values(const case_problem *c, case_tensor *t)
{
    const char *values = case_text(c, "values");
    t->fill = !strcmp(values, "normal")       ? (is_hash(c) ? case_fill_normal : fill_decided)
              : !strcmp(values, "near")       ? fill_near
              : !strcmp(values, "descending") ? fill_descending
              : !strcmp(values, "high_last")  ? fill_high_last
                                              : NULL;
    for (size_t i = 0; i < COUNT_OF(tables); i++)
        if (!strcmp(values, tables[i].name)) t->fill = fill_table;
    return t->fill ? TGL_OK : moe_choose_fill(c, t);
}

/* ---- what masked and fixed tokens have ---- */

enum { ALIKE, ZEROS, TIES, NANS, INFINITIES, DENORMAL, WILD };
#define EXCLUDED "alike zeros ties nan inf denormal wild"

static float excluded_logit(int kind, int64_t row, uint64_t bits)
{
    static const float ties[] = { -1, 0.5f, 2 };
    float any;
    memcpy(&any, &bits, sizeof any);
    switch (kind) {
    case ZEROS: return bits & 1 ? -0.0f : 0;
    case TIES: return ties[row % 2 ? 1 : bits % COUNT_OF(ties)]; /* all equal, or some */
    case NANS: return bits & 1 ? -NAN : NAN;
    case INFINITIES: return row % 3 == 0 || (row % 3 == 1 && bits & 1) ? INFINITY : -INFINITY;
    case DENORMAL: return (bits & 1 ? -1e-45f : 1e-45f) * (float)(bits >> 44);
    default: return any;
    }
}

static void fill_logits(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int kind = case_word(c, "excluded", EXCLUDED);
    case_tensor drawn = *t;
    if (choose_values(c, &drawn) != TGL_OK) abort();
    drawn.fill(c, t, seed);
    if (kind == ALIKE || t->strides[0] == 0) return;
    for (int64_t row = 0; row < t->shape[0]; row++)
        for (int64_t e = 0; (gate_is_masked(c, row) || gate_is_fixed(c, row)) && e < t->shape[1]; e++)
            *(float *)case_element(t, (int64_t[]){ row, e }) =
                excluded_logit(kind, row, case_random(seed + 1, row * t->shape[1] + e));
}

tgl_status gate_choose_logits(const case_problem *c, case_tensor *t)
{
    TGL_TRY(choose_values(c, t));
    t->fill = fill_logits;
    return case_check_word(c, "excluded", EXCLUDED);
}

int64_t gate_wild_index(int64_t num_experts, uint64_t bits)
{
    const int64_t wild[] = { INT32_MIN, INT32_MAX,       -2, -1, num_experts, num_experts + 1, INT64_MIN,
                             INT64_MAX, (int64_t)1 << 32 };
    return bits >> 60 ? wild[bits % COUNT_OF(wild)] : (int64_t)bits;
}

void gate_fill_unmapped(const case_problem *c, case_tensor *t, uint64_t seed)
{
    if (case_is(c, "fixed", "bits")) case_fill_bits(c, t, seed);
    else case_fill_uniform(c, t, seed);
    if (case_is(c, "excluded", "alike")) return;
    for (int64_t i = 0; i < t->shape[0] * t->shape[1]; i++) {
        const int64_t row = i / t->shape[1], k = i % t->shape[1];
        if (gate_is_masked(c, row) || (gate_is_fixed(c, row) && k % 2))
            moe_put_index(t, row, k, gate_wild_index(c->tensors[LOGITS].shape[1], case_random(seed + 1, i)));
    }
}

/* ---- bias, masks, replicas ---- */

void gate_fill_bias(const case_problem *c, case_tensor *t, uint64_t seed)
{
    enum { ZERO, SMALL, LARGE, NEAR, DISABLED, FEW, SPECIAL };
    static const float special[] = { NAN, INFINITY, -INFINITY, 0, -0.0f, FLT_MAX, -FLT_MAX, 1e-40f };
    const int kind = case_word(c, "bias", "zero small large near disabled few special");
    float *to = (float *)t->storage;
    for (int64_t e = 0; e < t->slots; e++) {
        const uint64_t bits = case_random(seed, e);
        switch (kind) {
        case ZERO: to[e] = 0; break;
        case SMALL: to[e] = normal_of(bits) / 8; break;
        case LARGE: to[e] = normal_of(bits) * 100; break;
        case NEAR: to[e] = 1 + (float)(bits >> 20 & ((2u << bits % 13) - 1)) * FLT_EPSILON; break;
        case DISABLED: to[e] = bits % 3 ? -INFINITY : 0; break;
        case FEW: to[e] = bits % 32 ? -INFINITY : 0; break;
        default: to[e] = special[bits % COUNT_OF(special)];
        }
    }
}

void gate_fill_flags(const case_problem *c, case_tensor *t, uint64_t seed)
{
    enum { ALL, NO, TAIL, FOUR };
    const int kind = case_word(c, t == &c->tensors[MASK] ? "mask" : "fix", "all no tail four some");
    for (int64_t i = 0; i < t->slots; i++)
        t->storage[i] = kind == ALL    ? 1
                        : kind == NO   ? 0
                        : kind == TAIL ? i < t->slots - 10 /* the last ten are padding */
                        : kind == FOUR ? i < t->slots - 4  /* the last four */
                                       : case_random(seed, i) % 3 != 0;
}

/* Replicas are any physical experts; map=wild adds empty ones, ones that no rank has, and counts out of
 * range. */
void gate_fill_map(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int64_t n = t->shape[0] + t->shape[1] - 1;
    const bool is_wild = case_is(c, "map", "wild");
    const bool is_identity = case_is(c, "map", "identity");
    for (int64_t i = 0; i < t->slots; i++) {
        const int64_t any = case_random_below(seed, i, is_wild ? 3 * n + 5 : n);
        ((int32_t *)t->storage)[i] = (int32_t)(is_identity ? i / t->shape[1] : is_wild ? any - 5 : any);
    }
}

void gate_fill_counts(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int64_t m = c->tensors[MAP].shape[1];
    const bool is_wild = case_is(c, "map", "wild");
    const bool is_identity = case_is(c, "map", "identity");
    for (int64_t i = 0; i < t->slots; i++) {
        const int64_t any = case_random_below(seed, i, is_wild ? m + 6 : m);
        ((int32_t *)t->storage)[i] = (int32_t)(is_identity ? 1 : is_wild ? any - 2 : any + 1);
    }
}
