/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "cases/engram/common/engram.h"
#include "core/status.h"

/* Parameters:
 *   outputs  both, table, rows
 *   indices  distinct   each row once, as long as there are rows
 *            uniform    rows of the table, each as likely
 *            zipf       some far more often than others
 *            equal      one row
 *            blocks     runs of one row: 1, 2, 31, 32, 33, 64, 65 and 200 long
 *            low        as zipf, but the lower, the more often
 *            some       a third is foreign; foreign: all are; bits: any
 *   limit    rows that are owned, of num_rows, if outputs are rows: 0 is all
 *   index_layout, grad_layout   tc, ct: which dimension is the outer one
 *   values   normal, bits (NaN and infinities too) */
enum { GRAD, INDICES, TABLE, UNIQUE, ROWS, COUNT };

static int64_t low(uint64_t random, int64_t n)
{
    int bits = 0;
    while (bits < 62 && (int64_t)1 << (bits + 1) <= n) bits++;
    const int64_t below = (int64_t)1 << (random % (uint64_t)(bits + 1));
    return (below - 1 + (int64_t)(random >> 8) % below) % n;
}
static int64_t zipf(uint64_t random, int64_t n)
{
    return (int64_t)((uint64_t)low(random, n) * 0x9e3779b97f4a7c15u % (uint64_t)n);
}

static void fill_indices(const case_problem *c, case_tensor *t, uint64_t seed)
{
    static const int runs[] = { 1, 2, 31, 32, 33, 64, 65, 200 };
    const int kind = case_word(c, "indices", "distinct uniform zipf equal blocks some foreign bits low");
    const int64_t rows = strtoll(case_text(c, "num_rows"), NULL, 10),
                  begin = strtoll(case_text(c, "row_begin"), NULL, 10);
    int64_t run = 0, left = 0;
    for (int64_t i = 0; i < t->slots; i++) {
        const uint64_t random = case_random(seed, i);
        int64_t row = case_random_below(seed, i, rows);
        if (kind == 0 && rows) row = (int64_t)((uint64_t)(i % rows) * 0x9e3779b97f4a7c15u % (uint64_t)rows);
        if (kind == 2 && rows) row = zipf(random, rows);
        if (kind == 3) row = rows / 2;
        if (kind == 4) {
            if (left-- == 0) left = runs[run++ % 8] - 1;
            row = rows ? run * 7919 % rows : 0;
        }
        row += begin;
        if (kind == 6 || (kind == 5 && random % 3 == 0) || rows == 0) {
            const int64_t any[] = { -1,        INT32_MIN, begin - 1, begin + rows, begin + rows + 1000,
                                    INT32_MAX, INT64_MIN, INT64_MAX };
            row = any[(random >> 8) % (t->element_bytes == 4 ? 6 : 8)];
        }
        if (kind == 7) row = (int64_t)random;
        if (kind == 8 && rows) row = begin + low(random, rows);
        if (t->element_bytes == 4) ((int32_t *)(void *)t->storage)[i] = (int32_t)row;
        else ((int64_t *)(void *)t->storage)[i] = row;
    }
}

/* A table of gigabytes repeats its first numbers: to draw them all takes longer than all that is timed. */
enum { DRAWN = 1 << 20 };
static void repeat_drawn(void *context, int64_t begin, int64_t end)
{
    float *table = context;
    for (int64_t i = begin; i < end; i++) table[DRAWN + i] = table[i % DRAWN];
}
static void fill_table(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_tensor first = *t;
    if (t->slots > DRAWN) first.slots = DRAWN;
    case_fill_normal(c, &first, seed);
    if (t->slots > DRAWN) case_parallel(t->slots - DRAWN, sizeof(float), repeat_drawn, t->storage);
}

/* ---- oracle ---- */

typedef struct { int64_t row, position; } place;

/* A merge sort, which keeps positions of a row in order. */
static void sort(place *a, place *other, int64_t n)
{
    if (n < 2) return;
    const int64_t half = n / 2;
    sort(a, other, half);
    sort(a + half, other, n - half);
    for (int64_t i = 0, left = 0, right = half; i < n; i++)
        other[i] = right == n || (left < half && a[left].row <= a[right].row) ? a[left++] : a[right++];
    memcpy(a, other, (size_t)n * sizeof *a);
}

/* The owned positions, in order; returns their number. */
static int64_t owned(const case_problem *c, place **out)
{
    const tgl_engram_lookup_params *params = (const void *)c->scalars;
    const case_tensor *indices = &c->tensors[INDICES];
    const int64_t tokens = indices->shape[0], columns = indices->shape[1], n = tokens * columns;
    const bool has_table = c->tensors[TABLE].name != NULL;
    place *all = case_memory(n, sizeof *all), *other = case_memory(n, sizeof *other);
    int64_t count = 0;
    for (int64_t p = 0; p < n; p++) {
        const int64_t index = engram_integer(indices, (int64_t[]){ p / columns, p % columns });
        const __int128 row = (__int128)index - params->row_begin;
        const bool is_inside =
            has_table ? row < c->tensors[TABLE].shape[0] : !params->num_rows || row < params->num_rows;
        if (row >= 0 && is_inside) all[count++] = (place){ index, p };
    }
    sort(all, other, count);
    free(other);
    *out = all;
    return count;
}

typedef struct {
    const case_problem *c;
    const place *places;
    const int64_t *first;
} rows_to_sum;

static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    const rows_to_sum *r = context;
    const case_problem *c = r->c;
    const tgl_engram_lookup_params *params = (const void *)c->scalars;
    const case_tensor *grad = &c->tensors[GRAD], *table = &c->tensors[TABLE], *rows = &c->tensors[ROWS];
    const int64_t columns = grad->shape[1];
    for (int64_t u = begin; u < end; u++)
        for (int64_t i = 0; i < grad->shape[2]; i++) {
            float sums[2] = { 0, 0 }; /* of chunks that are over, of this one */
            for (int64_t k = r->first[u]; k < r->first[u + 1]; k++) {
                const int64_t p = r->places[k].position, number = k - r->first[u];
                if (number > 0 && number % 32 == 0) sums[0] = number == 32 ? sums[1] : sums[0] + sums[1], sums[1] = 0;
                sums[1] +=
                    (float)case_decode(grad->dtype, case_element(grad, (int64_t[]){ p / columns, p % columns, i }));
            }
            const float sum = r->first[u + 1] - r->first[u] > 32 ? sums[0] + sums[1] : sums[1];
            float results[] = { sum, 0 };
            float *to = NULL;
            if (table->name) {
                to = case_element(table, (int64_t[]){ r->places[r->first[u]].row - params->row_begin, i });
                results[1] = *to + sum;
            }
            for (int k = 0; k < 2; k++)
                if (results[k] != results[k]) memcpy(&results[k], &(uint32_t){ 0x7fffffff }, 4);
            if (to) *to = results[1];
            if (rows->name) *(float *)case_element(rows, (int64_t[]){ u, i }) = results[0];
        }
}

static void oracle(case_problem *c)
{
    place *places;
    const int64_t n = c->tensors[INDICES].shape[0] * c->tensors[INDICES].shape[1], count = owned(c, &places);
    int64_t *first = case_memory(count + 1, sizeof *first), unique = 0;
    for (int64_t k = 0; k < count; k++)
        if (k == 0 || places[k - 1].row != places[k].row) first[unique++] = k;
    first[unique] = count;
    case_parallel(unique, 64 * (count / (unique + 1) + 1) * c->tensors[GRAD].shape[2], oracle_rows,
                  &(rows_to_sum){ c, places, first });
    if (c->tensors[UNIQUE].name) {
        case_tensor *rows = &c->tensors[UNIQUE];
        for (int64_t u = 0; u < n; u++) {
            const int64_t row = u < unique ? places[first[u]].row : -1;
            if (rows->element_bytes == 4) *(int32_t *)case_element(rows, &u) = (int32_t)row;
            else *(int64_t *)case_element(rows, &u) = row;
        }
        *(int32_t *)(void *)c->tensors[COUNT].data = (int32_t)unique;
    }
    free(first), free(places);
}

/* ---- the table ---- */

static tgl_status setup(case_problem *c)
{
    const int64_t tokens = case_int(c, "num_tokens"), columns = case_int(c, "num_columns"), n = tokens * columns;
    const int64_t dim = case_int(c, "dim"), rows = case_int(c, "num_rows");
    TGL_TRY(case_check_word(c, "outputs", "both table rows"));
    TGL_TRY(case_check_word(c, "indices", "distinct uniform zipf equal blocks some foreign bits low"));
    TGL_TRY(case_check_word(c, "index_layout", "tc ct"));
    TGL_TRY(case_check_word(c, "grad_layout", "tc ct"));
    TGL_TRY(case_check_word(c, "values", "normal bits"));
    tgl_engram_lookup_params *params = (void *)c->scalars;
    *params = (tgl_engram_lookup_params){ .row_begin = case_int(c, "row_begin"), .num_rows = case_int(c, "limit") };
    case_tensor *t =
        case_add(c, GRAD, "grad_out", CASE_IN, case_dtype(c, "dtype"), 3, (int64_t[]){ tokens, columns, dim });
    t->offset = case_int(c, "offset");
    t->strides[1] = dim + case_int(c, "gap");
    t->strides[0] = t->strides[1] * columns;
    if (case_is(c, "grad_layout", "ct")) t->strides[0] = t->strides[1], t->strides[1] *= tokens;
    if (case_is(c, "values", "normal")) t->fill = case_fill_normal;
    t = case_add(c, INDICES, "indices", CASE_IN, case_dtype(c, "index_dtype"), 2, (int64_t[]){ tokens, columns });
    t->fill = fill_indices;
    if (case_is(c, "index_layout", "ct")) t->strides[0] = 1, t->strides[1] = tokens + 3;
    if (!case_is(c, "outputs", "rows")) {
        t = case_add(c, TABLE, "grad_table", CASE_INOUT, TGL_F32, 2, (int64_t[]){ rows, dim });
        t->strides[0] += case_int(c, "table_gap");
        t->fill = fill_table;
        params->num_rows = 0;
    }
    if (case_is(c, "outputs", "table")) return TGL_OK;
    case_add(c, UNIQUE, "unique_rows", CASE_OUT, case_dtype(c, "unique_dtype"), 1, (int64_t[]){ n });
    case_add(c, ROWS, "grad_rows", CASE_INOUT, TGL_F32, 2, (int64_t[]){ n, dim }); /* what is behind stays */
    case_add(c, COUNT, "num_unique", CASE_OUT, TGL_I32, 1, (int64_t[]){ 1 });
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_engram_lookup_bwd(a->arg[GRAD], a->arg[INDICES], a->arg[TABLE], a->arg[UNIQUE], a->arg[ROWS],
                                 a->arg[COUNT], (const void *)a->problem->scalars, a->workspace, a->workspace_bytes,
                                 a->stream);
}

static size_t workspace(const case_arguments *a)
{
    return tgl_engram_lookup_bwd_workspace_size(a->arg[GRAD], a->arg[INDICES], (const void *)a->problem->scalars);
}

/* Gradients and indices once; of the outputs the rows that occur: no more than there are positions. */
static int64_t bytes(const case_problem *c)
{
    const int64_t n = c->tensors[INDICES].shape[0] * c->tensors[INDICES].shape[1], row = 4 * c->tensors[GRAD].shape[2];
    int64_t total = case_tensor_bytes(&c->tensors[GRAD]) + case_tensor_bytes(&c->tensors[INDICES]);
    if (c->tensors[TABLE].name) total += 2 * n * row;
    if (c->tensors[ROWS].name) total += n * row + case_tensor_bytes(&c->tensors[UNIQUE]);
    return total;
}

#define FLASH "num_columns=24 dim=256"
// clang-format off: lines of cases
const case_op lookup_bwd_cases = {
    "engram_lookup_bwd",
    "num_tokens= num_columns=3 dim=64 num_rows=100 dtype=bf16 outputs=both indices=some index_dtype=i32 unique_dtype=i64 "
    "row_begin=0 limit=0 index_layout=tc grad_layout=tc values=normal gap=0 table_gap=0 offset=0",
    setup, run, oracle, bytes, workspace,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,31,32,33,65,300 num_columns=1,3 indices=uniform,equal",
        "num_tokens=0,33 num_columns=0,2 indices=uniform dtype=bf16,f32",
        "num_tokens=400 outputs=both,table,rows indices=distinct,uniform,zipf,equal,blocks,some,foreign",
        "num_tokens=70 dim=0,1,3,8,31,32,33,100,256,257,600 dtype=bf16,f32 indices=blocks",
        "num_tokens=700 indices=blocks num_rows=5,3000 index_dtype=i32,i64 row_begin=0,77",
        "num_tokens=700 indices=blocks num_rows=100000000 outputs=rows limit=7,1000,1000000,100000000 row_begin=0,77",
        "num_tokens=700 indices=blocks,zipf values=bits dim=9,16 dtype=bf16,f32",
        "num_tokens=300 outputs=rows indices=bits index_dtype=i32,i64 limit=0,1000000000 unique_dtype=i64",
        "num_tokens=60 outputs=rows indices=some,foreign index_dtype=i32,i64 row_begin=0,77",
        "num_tokens=300 outputs=rows indices=some num_rows=1000 limit=300,1000 row_begin=5 unique_dtype=i32,i64",
        "num_tokens=90 gap=0,1,8 offset=0,1,8 table_gap=1,4",
        "num_tokens=80 grad_layout=tc,ct index_layout=tc,ct",
        "num_tokens=90 num_rows=0,1,2 indices=uniform",
        "num_tokens=2500 num_columns=2 dim=4 outputs=rows indices=bits index_dtype=i32,i64",
        "num_tokens=3000 num_columns=5 dim=16 indices=blocks,zipf,distinct num_rows=20000",
        "num_tokens=3000 num_columns=5 dim=72 indices=equal",     /* a long row of three slabs: more than the blocks of TEGULA_TEST_GRID */
        "num_tokens=4000 num_columns=5 dim=4 outputs=rows num_rows=100000000 indices=low index_dtype=i32,i64"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=100000 num_columns=1 dim=32 indices=distinct,uniform,zipf,equal,blocks,some num_rows=1000000 "
        "outputs=both",
        "num_tokens=8192 " FLASH " num_rows=300000000 outputs=rows indices=distinct,zipf,equal,blocks"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,1024,8192 " FLASH " num_rows=384000000 outputs=rows indices=distinct",
        "num_tokens=8192 " FLASH " num_rows=384000000 outputs=rows indices=zipf,equal",
        "num_tokens=8192 " FLASH " num_rows=384000000 outputs=rows indices=distinct dtype=f32",
        "num_tokens=8192 " FLASH " num_rows=17000000 outputs=table indices=distinct,zipf"),
    .lists[CASE_KERNELS] = CASE_LINES("num_tokens=64 dtype=bf16,f32",
                                      "num_tokens=64 dtype=bf16,f32 index_dtype=i64 outputs=rows"),
    .models = CASE_LINES("num_tokens=4096 num_columns={engram_columns} dim={engram_dim} outputs=rows,table"),
};
// clang-format on
