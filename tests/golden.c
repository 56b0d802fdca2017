/* SPDX-License-Identifier: MIT */
#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

const golden_case *golden_at(const char *domain, const char *op, int i)
{
    for (const golden_case *g = golden_cases; g->domain; g++)
        if (!strcmp(g->domain, domain) && (!op || !strcmp(g->op, op)) && i-- == 0) return g;
    return NULL;
}

/* ---- scalars ---- */

const char *golden_text(const golden_case *g, const char *name)
{
    for (const golden_argument *a = g->arguments; a->name; a++)
        if (!strcmp(a->name, name)) return a->value;
    fprintf(stderr, "%s/%s has no argument \"%s\"\n", g->op, g->name, name);
    abort();
}

static void refuse(const golden_case *g, const char *name, const char *want)
{
    fprintf(stderr, "%s/%s: %s is %s, want %s\n", g->op, g->name, name, golden_text(g, name), want);
    abort();
}

int64_t golden_int(const golden_case *g, const char *name)
{
    char *end;
    const int64_t value = strtoll(golden_text(g, name), &end, 10);
    if (*end) refuse(g, name, "a whole number");
    return value;
}

double golden_double(const golden_case *g, const char *name)
{
    char *end;
    const double value = strtod(golden_text(g, name), &end);
    if (*end) refuse(g, name, "a number");
    return value;
}

bool golden_bool(const golden_case *g, const char *name)
{
    const char *value = golden_text(g, name);
    if (strcmp(value, "true") && strcmp(value, "false")) refuse(g, name, "true or false");
    return !strcmp(value, "true");
}

bool golden_is_null(const golden_case *g, const char *name) { return !strcmp(golden_text(g, name), "null"); }

/* ---- tensors ---- */

/* What case_open_problem() passes through to `load` and case_op's `run`. A case keeps the input's row for an output
 * that updates it. */
typedef struct {
    const golden_case *golden;
    golden_run run;
    golden_workspace workspace; /* NULL: none */
    const golden_tensor *row[CASE_MAX_TENSORS], *before[CASE_MAX_TENSORS];
} recorded;

/* Reads a tensor's elements, packed in the file, to where its strides put them. `t` is where: data is element 0. */
typedef struct {
    FILE *file;
    char *storage;
    int64_t element_bytes;
    bool ok;
} reading;

static void read_run(void *context, int64_t element, int64_t slot, int64_t run)
{
    reading *r = context;
    const size_t bytes = (size_t)(run * r->element_bytes);
    r->ok &= fread(r->storage + slot * r->element_bytes, 1, bytes, r->file) == bytes;
}

static tgl_status read_tensor(const golden_case *g, const golden_tensor *row, const case_tensor *t, char *storage)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/%s/%s/%s.npy", golden_folder, g->domain, g->op, g->name, row->name);
    reading r = { fopen(path, "rb"), storage, t->element_bytes, true };
    if (!r.file || fseek(r.file, (long)row->file_offset, SEEK_SET)) r.ok = false;
    case_tensor all = *t;
    all.open_rows = NULL; /* they are in the file too */
    if (r.ok) case_runs(&all, read_run, &r);
    if (r.file) fclose(r.file);
    return r.ok ? TGL_OK : tgl_fail(TGL_ERR_INTERNAL, "%s: cannot be read", path);
}

static tgl_status load(case_problem *c, void *context)
{
    const recorded *r = context;
    for (int i = 0; i < c->num_tensors; i++) {
        case_tensor *t = &c->tensors[i];
        if (t->role == CASE_IN) memset(t->storage, 0xff, (size_t)(t->slots * t->element_bytes)); /* gaps are NaN */
        if (t->role == CASE_INOUT) {
            memset(t->initial, 0xff, (size_t)(t->slots * t->element_bytes));
            TGL_TRY(read_tensor(r->golden, r->before[i], t, t->initial));
            memcpy(t->storage, t->initial, (size_t)(t->slots * t->element_bytes));
        }
        TGL_TRY(read_tensor(r->golden, r->row[i], t, t->storage));
    }
    return TGL_OK;
}

static const golden_tensor *row_named(const golden_case *g, const char *name)
{
    const golden_tensor *t = g->tensors;
    while (t->name && strcmp(t->name, name)) t++;
    return t->name ? t : NULL;
}

static bool is_updated(const golden_case *g, const char *name)
{
    for (const golden_tensor *t = g->tensors; t->name; t++)
        if (t->updates && !strcmp(t->updates, name)) return true;
    return false;
}

DLTensor *golden_arg(const golden_call *c, const char *name)
{
    const case_problem *p = c->call->problem;
    for (int i = 0; i < p->num_tensors; i++)
        if (!strcmp(p->tensors[i].name, name)) return c->call->arg[i];
    return NULL;
}

/* The op of case.h has room for functions only, so the case travels in the problem's scalars. */
static const recorded *recorded_of(const case_arguments *a)
{
    const recorded *r;
    memcpy(&r, a->problem->scalars, sizeof r);
    return r;
}

static tgl_status run_recorded(const case_arguments *a)
{
    const recorded *r = recorded_of(a);
    return r->run(&(golden_call){ r->golden, a });
}

static size_t workspace_recorded(const case_arguments *a)
{
    const recorded *r = recorded_of(a);
    return r->workspace ? r->workspace(&(golden_call){ r->golden, a }) : 0;
}

static bool *open_rows_of(const golden_tensor *row)
{
    bool *rows = row->num_open_rows ? calloc((size_t)row->shape[0], sizeof *rows) : NULL;
    for (int i = 0; rows && i < row->num_open_rows; i++) rows[row->open_rows[i]] = true;
    return rows;
}

static tgl_status two_rounds(case_instance *k, case_report *report)
{
    uint64_t hash[2] = { 0 };
    for (int round = 0; round < 2; round++) {
        TGL_TRY(case_poison(k, round));
        TGL_TRY(case_call(k));
        TGL_TRY(case_verify(k, round, report, &hash[round]));
        if (report->result != CASE_PASSED) return TGL_OK;
    }
    if (hash[0] != hash[1]) {
        report->result = CASE_FAILED;
        snprintf(report->text, sizeof report->text, "two calls gave different bits");
    }
    return TGL_OK;
}

case_result golden_check(const golden_case *g, golden_run run, const backend *on, case_report *report)
{
    return golden_check_with_workspace(g, run, NULL, on, report);
}

case_result golden_check_with_workspace(const golden_case *g, golden_run run, golden_workspace workspace,
                                        const backend *on, case_report *report)
{
    static const case_op op = { .name = "golden", .run = run_recorded, .workspace = workspace_recorded };
    recorded r = { .golden = g, .run = run, .workspace = workspace };
    const recorded *pointer = &r;
    case_problem *c = calloc(1, sizeof *c);
    case_instance *k = NULL;
    if (!c) abort();
    memcpy(c->scalars, &pointer, sizeof pointer);
    snprintf(c->label, sizeof c->label, "%s %s", g->op, g->name);
    for (const golden_tensor *row = g->tensors; row->name; row++) {
        if (row->role == CASE_IN && is_updated(g, row->name)) continue; /* under its output's name */
        const int i = c->num_tensors;
        r.row[i] = row;
        r.before[i] = row->updates ? row_named(g, row->updates) : NULL;
        case_tensor *t =
            case_add(c, i, row->name, row->updates ? CASE_INOUT : row->role, row->dtype, row->ndim, row->shape);
        memcpy(t->strides, row->strides, sizeof t->strides);
        t->compare = row->compare;
        t->open_rows = open_rows_of(row);
    }
    *report = (case_report){ .result = CASE_PASSED };
    tgl_status status = case_open_problem(&op, c, load, &r, on, &k);
    if (status == TGL_OK) status = two_rounds(k, report);
    if (status != TGL_OK) {
        report->result = CASE_FAILED;
        snprintf(report->text, sizeof report->text, "%s: %s", tgl_status_name(status), tgl_last_error());
    }
    case_close(k);
    for (int i = 0; i < c->num_tensors; i++) free((void *)(uintptr_t)c->tensors[i].open_rows);
    free(c);
    return report->result;
}
