/* SPDX-License-Identifier: MIT
 * A case, then the same with rows of one tensor more than 2^32 elements apart: the outputs must have the same bits. There
 * is no memory between the rows (far.h). */
#ifndef TEGULA_TESTS_FAR_ROWS_H
#define TEGULA_TESTS_FAR_ROWS_H

#include "far.h"

static const int64_t far = ((int64_t)1 << 32) + 8; /* elements */

/* From a row to the next. Of more than 3 only the later half is so far from the first: ThreadSanitizer has no room for 24 GB. */
static inline int64_t distance_of(int64_t num_rows) { return num_rows > 3 ? 2 * far / num_rows / 8 * 8 + 8 : far; }

/* A tensor in memory: row r is at r % period * distance + r / period * bytes. */
typedef struct {
    int64_t count, period;
    size_t bytes, distance;
} far_rows;

/* As the case has it, packed; a row is all but the first dimension, or with dim 1 all but the first two. */
static inline far_rows packed_rows(const case_tensor *t, int dim)
{
    far_rows rows = { .count = 1, .bytes = (size_t)t->element_bytes };
    for (int d = 0; d <= dim; d++) rows.count *= t->shape[d];
    for (int d = dim + 1; d < t->ndim; d++) rows.bytes *= (size_t)t->shape[d];
    CHECK(t->shape[dim] <= 1 || (size_t)(t->strides[dim] * t->element_bytes) == rows.bytes);
    rows.period = rows.count, rows.distance = rows.bytes;
    return rows;
}

/* The same with neighbours of dimension `dim` far apart. */
static inline far_rows rows_far_apart(const case_tensor *t, int dim)
{
    far_rows rows = packed_rows(t, dim);
    rows.period = t->shape[dim], rows.distance = (size_t)(distance_of(rows.period) * t->element_bytes);
    return rows;
}

static inline size_t at_row(far_rows rows, int64_t r)
{
    return (size_t)(r % rows.period) * rows.distance + (size_t)(r / rows.period) * rows.bytes;
}

static inline char *start_of(const case_instance *k, int i)
{
    return (char *)k->tensors[i].data + k->tensors[i].byte_offset;
}

static inline char *copy_of(const case_instance *k, far_rows rows, const char *from)
{
    char *made = case_memory(rows.count * (int64_t)rows.bytes, 1);
    for (int64_t r = 0; r < rows.count; r++)
        CHECK_OK(backend_download(k->on, made + (size_t)r * rows.bytes, from + at_row(rows, r), rows.bytes));
    return made;
}

static inline int tensor_named(const case_problem *c, const char *name)
{
    for (int i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].name && !strcmp(c->tensors[i].name, name)) return i;
    return -1;
}

/* The case as it is: right by its oracle. Its outputs are kept. */
static inline void run_packed(case_instance *k, char **outputs)
{
    case_report report;
    CHECK_OK(case_poison(k, 0));
    CHECK_OK(case_call(k));
    CHECK_OK(case_verify(k, 0, &report, NULL));
    CHECK_THAT(report.result == CASE_PASSED, "%s: %s: %s", k->on->name, k->problem.label, report.text);
    for (int i = 0; i < k->problem.num_tensors; i++) {
        const case_tensor *t = &k->problem.tensors[i];
        if (t->name && t->role != CASE_IN) outputs[i] = copy_of(k, packed_rows(t, 0), start_of(k, i));
    }
    CHECK_OK(case_poison(k, 0));
}

/* Again, with the rows of tensor `moved` at `start`. */
static inline void run_far(case_instance *k, char **outputs, int moved, far_rows rows, const char *start)
{
    CHECK_OK(case_call(k));
    CHECK_OK(backend_wait(k->on, k->on->stream));
    for (int i = 0; i < k->problem.num_tensors; i++) {
        const far_rows packed = packed_rows(&k->problem.tensors[i], 0);
        if (!outputs[i]) continue;
        char *seen = i == moved ? copy_of(k, rows, start) : copy_of(k, packed, start_of(k, i));
        CHECK_THAT(!memcmp(seen, outputs[i], (size_t)packed.count * packed.bytes), "%s: %s: %s far apart: %s differs",
                   k->on->name, k->problem.label, k->problem.tensors[moved].name, k->problem.tensors[i].name);
        free(seen);
        free(outputs[i]);
    }
}

static inline void move_rows(case_instance *k, const char *name, int dim)
{
    char *outputs[CASE_MAX_TENSORS] = { NULL };
    const int i = tensor_named(&k->problem, name);
    REQUIRE(i >= 0);
    const case_tensor *t = &k->problem.tensors[i];
    const far_rows packed = packed_rows(t, dim), rows = rows_far_apart(t, dim);
    const size_t bytes = (size_t)(rows.period - 1) * rows.distance + (size_t)(rows.count / rows.period) * rows.bytes;
    REQUIRE(rows.period > 1);
    char *start = far_reserve(k->on, bytes);
    if (!start) return;
    run_packed(k, outputs);
    char *contents = copy_of(k, packed, start_of(k, i));
    for (int64_t r = 0; r < rows.count; r++)
        CHECK_OK(backend_upload(k->on, start + at_row(rows, r), contents + (size_t)r * rows.bytes, rows.bytes));
    free(contents);
    int64_t strides[CASE_MAX_DIMS];
    const DLTensor was = k->tensors[i];
    memcpy(strides, t->strides, sizeof strides);
    strides[dim] = distance_of(rows.period);
    if (dim) strides[0] = t->strides[1];
    k->tensors[i].data = start, k->tensors[i].byte_offset = 0, k->tensors[i].strides = strides;
    run_far(k, outputs, i, rows, start);
    k->tensors[i] = was;
    far_release(k->on, start, bytes);
}

/* For every case of the line and every tensor in names, dimension `dim` of it. */
static inline void check_far_in(int dim, const char *op_name, const char *names, const char *line)
{
    const case_op *op = case_find(op_name);
    const char *const lines[] = { line, NULL };
    FOR_BACKENDS(b)
        for (int64_t i = 0; i < case_count(lines); i++)
            for (const char *name = names; *name; name += strspn(name, " ")) {
                char word[CASE_WORD] = "";
                case_params params;
                case_instance *k;
                memcpy(word, name, strcspn(name, " "));
                name += strcspn(name, " ");
                REQUIRE(CHECK_OK(case_at(op, lines, i, &params)) && CHECK_OK(case_open(op, &params, b, &k)));
                move_rows(k, word, dim);
                case_close(k);
            }
}

static inline void check_far(const char *op_name, const char *names, const char *line)
{
    check_far_in(0, op_name, names, line);
}

#endif
