/* SPDX-License-Identifier: MIT */
#include "random.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "core/tensor.h"

/* ---- what a parameter may be ---- */

typedef struct {
    const case_op *op;
    int count[CASE_MAX_PARAMS];
    char (*values[CASE_MAX_PARAMS])[CASE_WORD]; /* each once */
    char defaults[CASE_MAX_PARAMS][CASE_WORD];  /* "" where a case has to say */
} vocabulary;

static void learn(vocabulary *v, int p, const char *value)
{
    for (int i = 0; i < v->count[p]; i++)
        if (!strcmp(v->values[p][i], value)) return;
    v->values[p] = realloc(v->values[p], (size_t)(v->count[p] + 1) * sizeof *v->values[p]);
    if (!v->values[p]) abort();
    strcpy(v->values[p][v->count[p]++], value);
}

static void learn_defaults(vocabulary *v)
{
    const char *declared = v->op->params; /* in the order of case_params */
    case_pair pair;
    for (int p = 0; case_next_pair(&declared, &pair); p++)
        snprintf(v->defaults[p], CASE_WORD, "%.*s", pair.values_bytes, pair.values);
}

static void learn_lists(vocabulary *v)
{
    case_params params;
    for (int l = 0; l < CASE_NUM_LISTS; l++)
        for (int64_t i = 0; i < case_count(v->op->lists[l]); i++) {
            if (case_at(v->op, v->op->lists[l], i, &params) != TGL_OK) abort();
            for (int p = 0; p < params.count; p++) learn(v, p, params.item[p].value);
        }
    for (const case_threshold *t = case_thresholds; t->op; t++)
        for (int p = 0; p < params.count && !strcmp(t->op, v->op->name); p++)
            for (int i = 0; t->values[i] && !strcmp(params.item[p].name, t->param); i++) {
                char value[CASE_WORD];
                snprintf(value, sizeof value, "%" PRId64, t->values[i]);
                learn(v, p, value);
            }
}

/* Learnt once. One thread draws. */
static const vocabulary *vocabulary_of(const case_op *op)
{
    enum { MAX_OPS = 128 };
    static vocabulary known[MAX_OPS];
    static int num_known;
    for (int i = 0; i < num_known; i++)
        if (known[i].op == op) return &known[i];
    if (num_known == MAX_OPS) abort();
    known[num_known].op = op;
    learn_defaults(&known[num_known]);
    learn_lists(&known[num_known]);
    return &known[num_known++];
}

/* ---- draws ---- */

static int64_t below(const case_source *s, int64_t n)
{
    const uint64_t bits = s->next(s->context);
    return n > 0 ? (int64_t)(bits % (uint64_t)n) : 0;
}

static bool is_number(const char *text, int64_t *number)
{
    char *end;
    *number = strtoll(text, &end, 10);
    return end != text && !*end;
}

/* One step to either side, or any number up to it, a small one as likely as a large one. */
static int64_t nudge(const case_source *s, int64_t number)
{
    switch (below(s, 4)) {
    case 1: return number < INT64_MAX ? number + 1 : number;
    case 2: return number - 1;
    case 3: {
        int bits = 0;
        while (bits < 61 && number >> bits > 0) bits++;
        const int64_t drawn = below(s, (int64_t)2 << below(s, bits));
        return drawn < number ? drawn : number;
    }
    default: return number;
    }
}

static void draw_value(const vocabulary *v, const case_source *s, int p, char value[CASE_WORD])
{
    int64_t number;
    strcpy(value, v->values[p][below(s, v->count[p])]);
    if (!is_number(value, &number) || number <= 0) return; /* -1 is a word of its own */
    snprintf(value, CASE_WORD, "%" PRId64, nudge(s, number));
}

/* A case of any line: some lines have hundreds, others are the only one of their kind. */
static void draw_listed(const case_op *op, const case_source *s, case_params *params)
{
    const char *const *list = op->lists[CASE_CHECK];
    int64_t num_lines = 0;
    while (list[num_lines]) num_lines++;
    const char *const line[] = { list[below(s, num_lines)], NULL };
    if (case_at(op, line, below(s, case_count(line)), params) != TGL_OK) abort();
}

/* Adds what another line has beside the defaults, such as a mask with all that belongs to it. */
static void draw_options(const vocabulary *v, const case_source *s, case_params *params)
{
    case_params other;
    draw_listed(v->op, s, &other);
    for (int p = 0; p < params->count; p++) {
        const bool is_special = *v->defaults[p] && strcmp(v->defaults[p], other.item[p].value);
        if (is_special && below(s, 4)) strcpy(params->item[p].value, other.item[p].value);
    }
}

static void draw_threshold(const case_op *op, const case_source *s, case_params *params)
{
    enum { MAX_THRESHOLDS = 64 };
    struct {
        const char *param;
        int64_t value;
    } of_op[MAX_THRESHOLDS];
    int64_t count = 0;
    for (const case_threshold *t = case_thresholds; t->op; t++)
        for (int i = 0; t->values[i] && !strcmp(t->op, op->name) && count < MAX_THRESHOLDS; i++) {
            of_op[count].param = t->param;
            of_op[count++].value = t->values[i];
        }
    if (count == 0) return;
    const int64_t chosen = below(s, count);
    for (int p = 0; p < params->count; p++)
        if (!strcmp(params->item[p].name, of_op[chosen].param))
            snprintf(params->item[p].value, CASE_WORD, "%" PRId64, of_op[chosen].value + below(s, 3) - 1);
}

void case_draw(const case_op *op, const case_source *source, case_params *params)
{
    const vocabulary *v = vocabulary_of(op);
    draw_listed(op, source, params);
    if (below(source, 2)) draw_options(v, source, params);
    for (int64_t n = below(source, params->count / 2 + 2); n > 0; n--) {
        const int p = (int)below(source, params->count);
        draw_value(v, source, p, params->item[p].value);
    }
    if (below(source, 2)) draw_threshold(op, source, params);
}

/* ---- is it small, is it legal ---- */

static double number_of(const case_params *params, const char *name)
{
    int64_t number;
    for (int p = 0; p < params->count; p++)
        if (!strcmp(params->item[p].name, name) && is_number(params->item[p].value, &number)) return (double)number;
    return 1;
}

double case_elements(const case_problem *c)
{
    double elements = 0;
    for (int i = 0; i < c->num_tensors; i++) {
        const case_tensor *t = &c->tensors[i];
        if (!t->name) continue;
        double reach = (double)t->offset, count = 1; /* a loop over empty rows takes time, too */
        for (int d = 0; d < t->ndim; d++) {
            reach += (double)llabs(t->shape[d]) * (double)llabs(t->strides[d]);
            count *= t->shape[d] ? (double)llabs(t->shape[d]) : 1;
        }
        elements += reach > count ? reach : count;
    }
    return elements;
}

/* Tables draw a whole routing before they know their tensors. */
static bool is_drawn_soon(const case_params *params, int64_t max_elements)
{
    return number_of(params, "num_tokens") * number_of(params, "num_topk") * number_of(params, "num_ranks") <=
           (double)max_elements;
}

bool case_is_small(const case_op *op, const case_params *params, int64_t max_elements)
{
    if (!is_drawn_soon(params, max_elements)) return false;
    case_problem *c = case_memory(1, sizeof *c);
    const bool is_small = case_make_problem(op, params, c) != TGL_OK || case_elements(c) <= (double)max_elements;
    free(c);
    return is_small; /* one that `setup` refuses takes no time at all */
}

bool case_is_legal(const case_op *op, const case_params *params)
{
    tgl_set_preparing(true);
    const tgl_status status = case_call_without_data(op, params, (DLDevice){ (DLDeviceType)TGL_DL_CPU, 0 });
    tgl_set_preparing(false);
    return status == TGL_OK;
}

bool case_is_legal_with_data(const case_op *op, const case_params *params)
{
    backend cpu;
    case_instance *k;
    if (backend_open("cpu", &cpu) != TGL_OK || case_open(op, params, &cpu, &k) != TGL_OK) return false;
    const tgl_status status = case_call(k);
    case_close(k);
    return status == TGL_OK;
}

/* ---- draws of a seed ---- */

typedef struct {
    uint64_t seed;
    int64_t count;
} dice;

static uint64_t roll(void *context)
{
    dice *d = context;
    return case_random(d->seed, d->count++);
}

/* A smaller value for some number, until the case is small. False: it does not get there. */
static bool shrink(const case_op *op, const case_source *s, int64_t max_elements, case_params *params)
{
    for (int step = 0; step < 200; step++) {
        if (case_is_small(op, params, max_elements)) return true;
        const int p = (int)below(s, params->count);
        const vocabulary *v = vocabulary_of(op);
        int64_t was, number;
        const char *other = v->values[p][below(s, v->count[p])];
        if (!is_number(params->item[p].value, &was) || was <= 1) continue;
        if (!is_number(other, &number) || number >= was || number < 0) number = was / 2;
        snprintf(params->item[p].value, CASE_WORD, "%" PRId64, number);
    }
    return false;
}

bool case_draw_legal(const case_op *op, uint64_t seed, int64_t i, int64_t max_elements, case_params *params,
                     case_redraws *redraws)
{
    enum { MAX_DRAWS = 10000 };
    dice d = { case_random(case_random(case_seed(op->name), (int64_t)seed), i), 0 };
    const case_source source = { roll, &d };
    for (int draw = 0; draw < MAX_DRAWS; draw++) {
        case_draw(op, &source, params);
        if (shrink(op, &source, max_elements, params) && case_is_legal(op, params)) return true;
        redraws->refused++;
        snprintf(redraws->reason, sizeof redraws->reason, "%s", tgl_last_error());
    }
    return false;
}
