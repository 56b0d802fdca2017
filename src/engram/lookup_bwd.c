/* SPDX-License-Identifier: MIT
 * lookup_bwd.c - tgl_engram_lookup_bwd: the gradient of a table's rows. */
#include "engram/lookup_bwd.h"

#include <stdlib.h>

#include "core/index.h"
#include "core/log_indices.h"
#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "engram/common/lookup_params.h"
#include "engram/lookup_bwd_cpu.h"

typedef lookup_bwd_args problem;

/* ---- CPU ---- */

typedef lookup_occurrence occurrence;

static float gradient_at(const problem *p, int64_t position, int64_t i, bool is_bf16)
{
    const int64_t at = lookup_gradient_of(p, position) + i;
    return is_bf16 ? tgl_bf16_to_f32(((const uint16_t *)p->grad_out)[at]) : ((const float *)p->grad_out)[at];
}

/* Chunks of 32 one after the other, then their sums. */
static float total_of(const problem *p, const occurrence *first, int64_t count, int64_t i, bool is_bf16)
{
    float total = 0;
    for (int64_t chunk = 0; chunk < count; chunk += LOOKUP_CHUNK) {
        float sum = 0;
        for (int64_t k = chunk; k < tgl_min(chunk + LOOKUP_CHUNK, count); k++)
            sum += gradient_at(p, first[k].position, i, is_bf16);
        total = chunk ? total + sum : sum;
    }
    return total;
}

static void plain_sums(const lookup_rows *r, int64_t begin, int64_t end, bool is_bf16)
{
    const problem *p = r->p;
    for (int64_t u = begin; u < end; u++) {
        const occurrence *first = r->sorted + r->begin[u];
        for (int64_t i = 0; i < p->dim; i++) {
            const float total = total_of(p, first, r->begin[u + 1] - r->begin[u], i, is_bf16);
            if (p->grad_rows) p->grad_rows[u * p->dim + i] = tgl_one_nan(total);
            if (!p->grad_table) continue;
            float *const to = p->grad_table + (int64_t)first->row * p->table_stride + i;
            *to = tgl_one_nan(*to + total);
        }
    }
}
static void sum_bf16(const void *context, int64_t begin, int64_t end)
{
    TGL_CHOOSE(plain_sums, tgl_lookup_sums)(context, begin, end, true);
}
static void sum_f32(const void *context, int64_t begin, int64_t end)
{
    TGL_CHOOSE(plain_sums, tgl_lookup_sums)(context, begin, end, false);
}

/* Orders occurrences by row, and, as they are, by position: digit by digit, the lowest first. Returns `from` or `to`. */
static occurrence *sort(occurrence *from, occurrence *to, int64_t n)
{
    enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS };
    uint64_t bits = 0;
    for (int64_t i = 0; i < n; i++) bits |= from[i].row;
    for (int shift = 0; shift < 64 && bits >> shift; shift += DIGIT_BITS) {
        int64_t place[DIGITS + 1] = { 0 };
        for (int64_t i = 0; i < n; i++) place[(from[i].row >> shift) % DIGITS + 1]++;
        for (int d = 0; d < DIGITS; d++) place[d + 1] += place[d];
        for (int64_t i = 0; i < n; i++) to[place[(from[i].row >> shift) % DIGITS]++] = from[i];
        occurrence *const sorted = to;
        to = from, from = sorted;
    }
    return from;
}

static void put_unique(const problem *p, int64_t u, int64_t row)
{
    if (p->unique_rows) tgl_index_put(p->unique_rows, u, p->unique_bytes, row);
}

static tgl_status run_on_cpu(const problem *p, bool is_bf16)
{
    const int64_t n = p->num_tokens * p->num_columns;
    occurrence *all = malloc((size_t)(2 * n + 1) * sizeof *all);
    int64_t *begin = malloc((size_t)(n + 1) * sizeof *begin), num_unique = 0, num_owned = 0;
    if (!all || !begin) {
        free(all), free(begin);
        return tgl_fail(TGL_ERR_MEMORY, "no host memory for %lld indices", (long long)n);
    }
    for (int64_t i = 0; i < n; i++)
        all[i] = (occurrence){ lookup_bwd_row(p, i / p->num_columns, i % p->num_columns), i };
    const occurrence *const sorted = sort(all, all + n, n);
    for (; num_owned < n && sorted[num_owned].row < p->num_rows; num_owned++) {
        if (num_owned > 0 && sorted[num_owned - 1].row == sorted[num_owned].row) continue;
        put_unique(p, num_unique, p->row_begin + (int64_t)sorted[num_owned].row);
        begin[num_unique++] = num_owned;
    }
    begin[num_unique] = num_owned;
    for (int64_t u = num_unique; u < n; u++) put_unique(p, u, -1);
    if (p->num_unique) *p->num_unique = (int32_t)num_unique;
    const int64_t row_bytes = num_unique ? tgl_saturating_product(8 * p->dim, num_owned / num_unique + 1) : 0;
    const tgl_status status =
        tgl_parallel_rows(num_unique, row_bytes, is_bf16 ? sum_bf16 : sum_f32, &(lookup_rows){ p, sorted, begin });
    free(all), free(begin);
    return status;
}
static tgl_status cpu_bf16(const void *context) { return run_on_cpu(context, true); }
static tgl_status cpu_f32(const void *context) { return run_on_cpu(context, false); }

TGL_SIZES(sizes, num_tokens, num_columns, dim, table_rows);
tgl_signature tgl_engram_lookup_bwd_signature = TGL_SIGNATURE(
    "engram_lookup_bwd(grad_out: bf16|f32[num_tokens, num_columns, dim] rows,"
    " indices: i32|i64[num_tokens, num_columns] strided, row_begin: int, num_rows: int)"
    " -> grad_table: f32[table_rows, dim]?! rows, unique_rows: i32|i64[num_tokens * num_columns]?,"
    " grad_rows: f32[num_tokens * num_columns, dim]?, num_unique: i32[1]?"
    " where dim < 2^30, unique_rows needs grad_rows, grad_rows needs num_unique, num_unique needs unique_rows",
    &TGL_ENGRAM_LOOKUP_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

/* The minimum of positions for each block that sorts, and the maximum that it sorts in shared memory. */
enum { PART = 128, CAPACITY = 12288 };
_Static_assert(((99 << 10) - 8192 - LOOKUP_BWD_COUNT_BYTES(LOOKUP_BWD_THREADS)) / 32 >=
                   2 * LOOKUP_BWD_SAMPLES * LOOKUP_BWD_THREADS,
               "the sample has room, even on GPUs with 99 KiB of shared memory");
static int64_t max_sorters(int64_t n) { return tgl_min(LOOKUP_BWD_SORTERS, tgl_max(1, tgl_ceil_div(n, PART))); }

/* Parts of the workspace, each aligned to 256 bytes. i32 has rows of up to 32 bits, i64 of 64. */
static size_t lay_out(lookup_bwd_args *a, int64_t n, int64_t dim, bool is_i64, void *workspace)
{
    const int64_t windows = tgl_ceil_div(n, 32) + 1, sorters = max_sorters(n), entry_bytes = is_i64 ? 16 : 8;
    const int64_t bytes[] = { entry_bytes * n,
                              entry_bytes * n,
                              entry_bytes * n,
                              4 * (sorters + 1) * sorters,
                              16 * windows,
                              8 * sorters,
                              32 * (n / (LOOKUP_CHUNK + 1)),
                              4 * LOOKUP_BWD_WORDS,
                              tgl_saturating_product(8 * windows, dim) };
    char *parts[9], *at = workspace;
    size_t total = 0;
    for (int i = 0; i < 9; i++) {
        parts[i] = at ? at + total : NULL;
        total += ((size_t)bytes[i] + 255) / 256 * 256;
    }
    if (!a) return total;
    for (int i = 0; i < LOOKUP_BWD_BUFFERS; i++) a->entries[i] = (uint8_t *)parts[i];
    a->starts = (uint32_t *)(void *)parts[3], a->windows = (uint32_t *)(void *)parts[4];
    a->buckets = (uint32_t *)(void *)parts[5], a->longs = (uint32_t *)(void *)parts[6];
    a->words = (uint32_t *)(void *)parts[7], a->partial = (float *)(void *)parts[8];
    return total;
}

static int key_bytes(const problem *p) { return p->num_rows < UINT32_MAX ? 4 : 8; }
static int plan_of(const problem *p, int element_bytes, tgl_kernel *kernels)
{
    kernels[0] =
        (tgl_kernel){ "engram/lookup_bwd", { { "ELEMENT_BYTES", element_bytes }, { "KEY_BYTES", key_bytes(p) } } };
    return 1;
}
static int plan_bf16(const void *context, tgl_kernel *kernels) { return plan_of(context, 2, kernels); }
static int plan_f32(const void *context, tgl_kernel *kernels) { return plan_of(context, 4, kernels); }

static bool has_vectors(const problem *p, int64_t element_bytes)
{
    const int64_t elements = 16 / element_bytes;
    const uint64_t addresses =
        (uint64_t)(uintptr_t)p->grad_out | (uint64_t)(uintptr_t)p->grad_table | (uint64_t)(uintptr_t)p->grad_rows;
    return p->dim % elements == 0 && p->grad_token_stride % elements == 0 && p->grad_column_stride % elements == 0 &&
           p->table_stride % 4 == 0 && addresses % 16 == 0;
}

/* A warp has 32 sorted positions at a time, fewer if there are not many for each. */
static tgl_shape shape_of(problem *p, const tgl_target *target, int element_bytes)
{
    const int64_t n = p->num_tokens * p->num_columns, windows = tgl_max(1, tgl_ceil_div(n, 32));
    const int threads = n <= LOOKUP_BWD_FEW_THREADS * 4 ? LOOKUP_BWD_FEW_THREADS : LOOKUP_BWD_THREADS;
    const int64_t warps = (int64_t)target->num_sms * threads / 32;
    p->span = windows >= 2 * warps ? 32 : windows >= warps ? 16 : 8;
    const int64_t tasks = windows * (32 / p->span), blocks = tgl_strided_grid(tgl_ceil_div(tasks, 4), target->num_sms);
    const int64_t sorters = tgl_max(1, tgl_min(max_sorters(n), blocks)), entry_bytes = key_bytes(p) == 4 ? 8 : 16;
    const int64_t count_bytes = LOOKUP_BWD_COUNT_BYTES((int64_t)threads);
    const int64_t room = (target->max_smem_per_block - 8192 - count_bytes) / (2 * entry_bytes);
    p->count = (uint32_t)n;
    p->max_longs = (uint32_t)(n / (LOOKUP_CHUNK + 1));
    p->part = (uint32_t)tgl_ceil_div(n, sorters);
    p->num_sorters = (uint32_t)sorters;
    p->capacity = (uint32_t)tgl_min(tgl_min(CAPACITY, room), tgl_max(n, 2 * LOOKUP_BWD_SAMPLES * threads));
    p->by_columns = tgl_divisor_of(tgl_max(1, p->num_columns));
    p->has_vectors = has_vectors(p, element_bytes);
    return (tgl_shape){ { blocks },
                        .block = threads,
                        .cooperative = true,
                        TGL_ARGS(*p),
                        .shared_bytes = tgl_max(count_bytes + 2 * entry_bytes * p->capacity,
                                                LOOKUP_BWD_CHUNK_BYTES((int64_t)threads)) };
}
static tgl_shape shape_bf16(void *context, const tgl_target *target) { return shape_of(context, target, 2); }
static tgl_shape shape_f32(void *context, const tgl_target *target) { return shape_of(context, target, 4); }

static const tgl_op OPS[] = { { cpu_f32, plan_f32, { { .shape = shape_f32 } } },
                              { cpu_bf16, plan_bf16, { { .shape = shape_bf16 } } } };

/* ---- checks ---- */

/* The rows that this table owns: those of grad_table, or params->num_rows, or all; at most those that an index can name. */
static tgl_status find_rows(const tgl_engram_lookup_params *params, const DLTensor *indices, const DLTensor *grad_table,
                            const DLTensor *unique_rows, uint64_t *num_rows)
{
    const uint64_t row_begin = (uint64_t)params->row_begin, end_of_i32 = (uint64_t)1 << 31;
    const uint64_t end = tgl_dtype_is(indices->dtype, TGL_I32) ? end_of_i32 : (uint64_t)1 << 63;
    const int64_t given = grad_table ? grad_table->shape[0] : params->num_rows;
    if (grad_table && params->num_rows && params->num_rows != given)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_rows: is %lld, want 0 or %lld, as grad_table has",
                        (long long)params->num_rows, (long long)given);
    *num_rows = end > row_begin ? end - row_begin : 0;
    if ((grad_table || given) && (uint64_t)given < *num_rows) *num_rows = (uint64_t)given;
    if (unique_rows && tgl_dtype_is(unique_rows->dtype, TGL_I32) && row_begin + *num_rows > end_of_i32)
        return tgl_fail(TGL_ERR_ARGUMENT, "unique_rows: dtype is i32, want i64 for rows up to %lld",
                        (long long)(row_begin + *num_rows - 1));
    return TGL_OK;
}

static int64_t num_positions(const DLTensor *indices)
{
    return tgl_saturating_product(indices->shape[0], indices->shape[1]);
}

tgl_status tgl_engram_lookup_bwd(const DLTensor *grad_out, const DLTensor *indices, DLTensor *grad_table,
                                 DLTensor *unique_rows, DLTensor *grad_rows, DLTensor *num_unique,
                                 const tgl_engram_lookup_params *params, void *workspace, size_t workspace_bytes,
                                 tgl_stream stream)
{
    const DLTensor *tensors[] = { grad_out, indices, grad_table, unique_rows, grad_rows, num_unique };
    tgl_signature *const s = &tgl_engram_lookup_bwd_signature;
    sizes n;
    TGL_TRY(tgl_take(s, tensors, params, &n.num_tokens));
    if (!grad_table && !unique_rows)
        return tgl_fail(TGL_ERR_ARGUMENT, "grad_table: is NULL, want a tensor or unique_rows");
    if (num_positions(indices) >= TGL_DIVIDE_LIMIT)
        return tgl_fail(TGL_ERR_ARGUMENT, "indices: has %lld elements, want fewer than 2^31",
                        (long long)num_positions(indices));
    problem p = { .grad_out = tgl_data(grad_out),
                  .indices = tgl_data(indices),
                  .grad_table = tgl_data_or_null(grad_table),
                  .grad_rows = tgl_data_or_null(grad_rows),
                  .unique_rows = tgl_data_or_null(unique_rows),
                  .num_unique = tgl_data_or_null(num_unique),
                  .row_begin = params->row_begin,
                  .num_tokens = n.num_tokens,
                  .num_columns = n.num_columns,
                  .dim = n.dim,
                  .index_bytes = tgl_dtype_bits(indices->dtype) / 8,
                  .grad_token_stride = tgl_step_of(grad_out, 0),
                  .grad_column_stride = tgl_step_of(grad_out, 1),
                  .index_token_stride = tgl_step_of(indices, 0),
                  .index_column_stride = tgl_step_of(indices, 1),
                  .table_stride = tgl_step_of(grad_table, 0),
                  .unique_bytes = unique_rows ? tgl_dtype_bits(unique_rows->dtype) / 8 : 0 };
    TGL_TRY(find_rows(params, indices, grad_table, unique_rows, &p.num_rows));
    tgl_log_foreign_indices("indices", indices, params->row_begin, p.num_rows);
    if (!tgl_on_cpu(grad_out)) {
        const int64_t count = n.num_tokens * n.num_columns;
        const bool is_i64 = p.index_bytes == 8;
        TGL_TRY(tgl_expect_workspace(workspace, workspace_bytes, lay_out(NULL, count, n.dim, is_i64, NULL)));
        lay_out(&p, count, n.dim, is_i64, workspace);
    }
    return tgl_run(s, &OPS[tgl_dtype_is(grad_out->dtype, TGL_BF16)], tensors, &p, stream);
}

size_t tgl_engram_lookup_bwd_workspace_size(const DLTensor *grad_out, const DLTensor *indices,
                                            const tgl_engram_lookup_params *params)
{
    (void)params;
    if (!grad_out || !indices || !grad_out->shape || !indices->shape || grad_out->ndim != 3 || indices->ndim != 2)
        return 0;
    const int64_t n = num_positions(indices);
    const bool is_i64 = tgl_dtype_bits(indices->dtype) == 64;
    if (n < 0 || n >= TGL_DIVIDE_LIMIT || grad_out->shape[2] < 0) return 0;
    return lay_out(NULL, n, grad_out->shape[2], is_i64, NULL);
}
