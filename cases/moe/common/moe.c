/* SPDX-License-Identifier: MIT */
#include "moe.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/status.h"

/* ---- layouts ---- */

tgl_status moe_lay_out(const char *layout, int64_t num_cols, int64_t strides[2])
{
    strides[1] = 1;
    if (!strcmp(layout, "packed")) strides[0] = num_cols;
    else if (!strcmp(layout, "half")) strides[0] = 2 * num_cols;
    else if (!strcmp(layout, "gap")) strides[0] = num_cols + 3;
    else if (!strcmp(layout, "repeated")) strides[0] = 0;
    else if (!strcmp(layout, "far")) strides[0] = 65536;
    else return tgl_fail(TGL_ERR_ARGUMENT, "layout: is \"%s\", want packed, half, gap, repeated or far", layout);
    return TGL_OK;
}

/* ---- values ---- */

/* Every element is a random one of these. */
static const float ties[] = { -1, -0.0f, 0, 0.5f, 2 };
static const float equal[] = { 0.25f };
static const float zero[] = { 0 };
static const float few_finite[] = { -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, 1, -0.0f };
static const float special[] = { NAN, -NAN, INFINITY, -INFINITY, 0, -0.0f, 1e-40f, -1e-40f, FLT_MAX, -FLT_MAX, 1, -1 };
static const float magnitudes[] = { 1e30f, 1e-30f, 1, 0.1f, 3e-8f, -1e30f, 1e-20f, 1e-40f, FLT_MAX };
static const struct {
    const char *name;
    const float *values;
    size_t count;
} tables[] = {
    { "ties", ties, sizeof ties / sizeof *ties },
    { "equal", equal, sizeof equal / sizeof *equal },
    { "zero", zero, sizeof zero / sizeof *zero },
    { "few_finite", few_finite, sizeof few_finite / sizeof *few_finite },
    { "special", special, sizeof special / sizeof *special },
    { "magnitudes", magnitudes, sizeof magnitudes / sizeof *magnitudes },
};
enum { NUM_TABLES = sizeof tables / sizeof *tables };

/* The bits of element i, made of random ones. */
typedef uint64_t (*formula)(const case_tensor *t, int64_t i, uint64_t random);
typedef struct {
    case_tensor *t;
    uint64_t seed;
    const float *values;
    size_t count;
    formula bits_of;
} filling;

static void any_of_chunk(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    float *to = (float *)f->t->storage;
    for (int64_t i = begin; i < end; i++) to[i] = f->values[case_random(f->seed, i) % f->count];
}

void moe_fill_any_of(case_tensor *t, uint64_t seed, const float *values, size_t count)
{
    case_parallel(t->slots, 4, any_of_chunk, &(filling){ t, seed, values, count, NULL });
}

static void fill_table(const case_problem *c, case_tensor *t, uint64_t seed)
{
    int i = 0;
    while (!case_is(c, "values", tables[i].name)) i++;
    moe_fill_any_of(t, seed, tables[i].values, tables[i].count);
}

/* Floats that agree in their upper bits: up to 2^12 steps from 1 or -1; or normal ones with only 4 upper bits of
 * the fraction, and random bits far below. */
static uint64_t close_bits(const case_tensor *t, int64_t i, uint64_t random)
{
    return 0x3f800000 | (random & 0x80000fff);
}
static uint64_t coarse_bits(const case_tensor *t, int64_t i, uint64_t random)
{
    return (((const uint32_t *)t->storage)[i] & 0xfff80000) | (random & 0x7ff);
}

/* Experts e and n - 1 - e, whose numbers differ in all bits if n is a power of two, differ by one step, and the upper one
 * is better; others are far away. */
static uint64_t mirrored_bits(const case_tensor *t, int64_t i, uint64_t random)
{
    const int64_t n = t->shape[1], e = i % n, pair = e < n - 1 - e ? e : n - 1 - e;
    return 0x40000000 + (uint64_t)((37 * pair + 11 * (i / n)) % (n / 2 + 1) << 12) + (e != pair);
}

static uint64_t same_bits(const case_tensor *t, int64_t i, uint64_t random) { return 2; }
static uint64_t distinct_bits(const case_tensor *t, int64_t i, uint64_t random) { return (uint64_t)(i % t->shape[1]); }

/* Valid indices (below t->high) and invalid ones, some of which have a valid lower half. */
static uint64_t wild_bits(const case_tensor *t, int64_t i, uint64_t random)
{
    const int64_t n = (int64_t)t->high, good = (int64_t)(random >> 8) % (n > 0 ? n : 1);
    // clang-format off: many numbers
    const int64_t wild[] = { -1, -2, n, n + 1, INT32_MIN, INT32_MAX, (int64_t)INT32_MAX + 1, INT64_MIN, INT64_MAX,
                             good - ((int64_t)1 << 32), good + ((int64_t)1 << 32), (int64_t)random, good };
    // clang-format on
    return (uint64_t)(random & 1 ? good : wild[(random >> 1) % (sizeof wild / sizeof *wild)]);
}

static const struct {
    const char *name;
    formula bits_of;
} formulas[] = {
    { "close", close_bits }, { "coarse", coarse_bits },     { "mirrored", mirrored_bits },
    { "same", same_bits },   { "distinct", distinct_bits }, { "wild", wild_bits },
};

static void formula_chunk(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    for (int64_t i = begin; i < end; i++) {
        const uint64_t bits = f->bits_of(f->t, i, case_random(f->seed, i));
        memcpy(f->t->storage + i * f->t->element_bytes, &bits, (size_t)f->t->element_bytes);
    }
}

static void fill_formula(const case_problem *c, case_tensor *t, uint64_t seed)
{
    int i = 0;
    while (!case_is(c, "values", formulas[i].name)) i++;
    if (formulas[i].bits_of == coarse_bits) case_fill_normal(c, t, seed++);
    case_parallel(t->slots, 8, formula_chunk, &(filling){ t, seed, .bits_of = formulas[i].bits_of });
}

tgl_status moe_choose_fill(const case_problem *c, case_tensor *t)
{
    const char *values = case_text(c, "values");
    t->low = 0, t->high = 1;
    // clang-format off: a chain of conditions
    t->fill = !strcmp(values, "normal")    ? case_fill_normal
              : !strcmp(values, "uniform") ? case_fill_uniform
              : !strcmp(values, "bits")    ? case_fill_bits
              : !strcmp(values, "close") || !strcmp(values, "coarse") || !strcmp(values, "mirrored") ? fill_formula
                                                                                                     : NULL;
    // clang-format on
    for (int i = 0; i < NUM_TABLES; i++)
        if (!strcmp(values, tables[i].name)) t->fill = fill_table;
    if (t->fill) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT,
                    "values: is \"%s\", want normal, uniform, bits, close, coarse, mirrored, ties, "
                    "equal, zero, few_finite, special or magnitudes",
                    values);
}

tgl_status moe_choose_index_fill(const case_problem *c, case_tensor *t, int64_t n)
{
    const char *values = case_text(c, "values");
    t->fill = case_fill_uniform;
    if (!strcmp(values, "valid")) t->low = 0, t->high = (double)n;
    else if (!strcmp(values, "some_empty")) t->low = -(double)(n / 4 + 1), t->high = (double)n;
    else if (!strcmp(values, "beyond")) t->low = -5, t->high = 3 * (double)n + 7;
    else if (!strcmp(values, "bits")) t->fill = case_fill_bits;
    else if (!strcmp(values, "same") || !strcmp(values, "distinct")) t->fill = fill_formula;
    else if (!strcmp(values, "wild")) t->fill = fill_formula, t->high = (double)n;
    else
        return tgl_fail(TGL_ERR_ARGUMENT,
                        "values: is \"%s\", want valid, some_empty, beyond, bits, same, "
                        "distinct or wild",
                        values);
    return TGL_OK;
}

int64_t moe_index_at(const case_tensor *t, int64_t row, int64_t col)
{
    const void *from = case_element(t, (int64_t[]){ row, col });
    return t->element_bytes == 4 ? *(const int32_t *)from : *(const int64_t *)from;
}

void moe_put_index(const case_tensor *t, int64_t row, int64_t col, int64_t value)
{
    void *to = case_element(t, (int64_t[]){ row, col });
    if (t->element_bytes == 4) *(int32_t *)to = (int32_t)value;
    else *(int64_t *)to = value;
}

/* ---- experts of a rank ---- */

int64_t moe_number_on_rank(int64_t num_experts, int64_t num_ep_ranks, int64_t num_tp_ranks, int64_t tp_rank,
                           int64_t expert)
{
    const int64_t num_mine = num_experts / (num_ep_ranks ? num_ep_ranks : 1);
    const __int128 mine = num_mine, round = mine * (num_tp_ranks ? num_tp_ranks : 1);
    const __int128 shifted = expert - tp_rank * mine;
    if (expert < 0 || shifted < 0 || shifted % round >= mine) return -1;
    return (int64_t)(shifted - shifted / round * (round - mine));
}

/* ---- ranking: a sort of all candidates ---- */

int moe_better_first(const void *a, const void *b)
{
    const moe_candidate *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1; /* -0 == 0; there is no NaN */
    return x->index < y->index ? -1 : x->index > y->index;
}

float moe_ranked(float score) { return isnan(score) ? -INFINITY : score; }
