/* SPDX-License-Identifier: MIT
 * histogram.c - how often each index occurs: counts, or shares of the tokens. */
#include "moe/common/histogram.h"

#include <string.h>

#include "core/cpu.h"
#include "core/index.h"
#include "core/math.h"
#include "core/threads.h"
#include "moe/common/histogram_kernel.h"

typedef struct {
    histogram_args args;
    int index_bytes;
} problem;

/* ---- CPU ---- */

/* Each chunk of rows has WAYS sets of counts on the stack: consecutive indices may be equal, and the second
 * increment would wait for the first one's store. If the bins do not fit there, one chunk counts in the
 * output: nothing is allocated. A chunk is large enough to pay for a thread. */
enum { WAYS = 2, MAX_COUNTS = 12288, MAX_CHUNKS = 32, MIN_CHUNK_ELEMENTS = 32768 };

typedef struct {
    const histogram_args *a;
    int index_bytes;
    int64_t num_chunks, chunk_rows, num_ways;
    uint32_t *counts;
} chunks;

/* An index out of range adds 0 to the first bin: a branch would be mispredicted. */
TGL_ALWAYS_INLINE void count_one(uint32_t *counts, uint64_t num_bins, const char *row, int64_t j, int index_bytes)
{
    const int64_t v = tgl_index_get(row, j, index_bytes);
    const uint32_t is_bin = (uint64_t)v < num_bins;
    counts[v & -(int64_t)is_bin] += is_bin;
}

TGL_ALWAYS_INLINE void count(const chunks *c, int64_t chunk, int index_bytes)
{
    const histogram_args *a = c->a;
    const uint64_t num_bins = (uint64_t)a->num_bins;
    uint32_t *counts = c->counts + chunk * c->num_ways * a->num_bins;
    uint32_t *second = counts + (c->num_ways - 1) * a->num_bins;
    const int64_t begin = chunk * c->chunk_rows, end = tgl_min(begin + c->chunk_rows, a->num_rows);
    memset(counts, 0, (size_t)(c->num_ways * a->num_bins) * sizeof *counts);
    for (int64_t i = begin; i < end; i++) {
        const char *row = (const char *)a->indices + i * a->row_stride * index_bytes;
        int64_t j = 0;
        for (; j + WAYS <= a->num_cols; j += WAYS) {
            count_one(counts, num_bins, row, j, index_bytes);
            count_one(second, num_bins, row, j + 1, index_bytes);
        }
        if (j < a->num_cols) count_one(counts, num_bins, row, j, index_bytes);
    }
}

static void count_chunks(const void *context, int64_t begin, int64_t end)
{
    const chunks *c = context;
    for (int64_t i = begin; i < end; i++) {
        if (c->index_bytes == 4) count(c, i, 4);
        else count(c, i, 8);
    }
}

/* The counts may be in `out`: each is read before it is overwritten. */
static void add_up(const void *context, int64_t begin, int64_t end)
{
    const chunks *c = context;
    const histogram_args *a = c->a;
    for (int64_t bin = begin; bin < end; bin++) {
        uint64_t sum = 0;
        for (int64_t i = 0; i < c->num_chunks * c->num_ways; i++) sum += c->counts[i * a->num_bins + bin];
        if (a->tokens_topk > 0) ((float *)a->out)[bin] = (float)((int64_t)sum * a->num_bins) / (float)a->tokens_topk;
        else ((int32_t *)a->out)[bin] = (int32_t)sum;
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const histogram_args *a = &p->args;
    uint32_t counts[MAX_COUNTS];
    const int64_t num_ways = a->num_bins <= MAX_COUNTS / WAYS ? WAYS : 1;
    const int64_t fitting = tgl_min(MAX_CHUNKS, MAX_COUNTS / (num_ways * a->num_bins));
    const int64_t num_chunks = tgl_max(1, tgl_min(fitting, a->num_rows * a->num_cols / MIN_CHUNK_ELEMENTS));
    const chunks c = { a,          p->index_bytes,
                       num_chunks, tgl_ceil_div(a->num_rows, num_chunks),
                       num_ways,   a->num_bins <= MAX_COUNTS ? counts : a->out };
    TGL_TRY(tgl_parallel_rows(num_chunks, c.chunk_rows * a->num_cols * p->index_bytes, count_chunks, &c));
    return tgl_parallel_rows(a->num_bins, 4 * (num_chunks * num_ways + 1), add_up, &c);
}

/* ---- launch ---- */

/* The model fixes num_bins, which selects the variant of the kernel. */
static bool is_wide(const histogram_args *a) { return a->num_bins > HISTOGRAM_SHARED_BINS; }

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    kernels[0] =
        (tgl_kernel){ "moe/histogram", { { "INDEX_BYTES", p->index_bytes }, { "IS_WIDE", is_wide(&p->args) } } };
    return 1;
}

static void complete(histogram_args *a, int index_bytes, int64_t num_threads)
{
    if (a->num_rows <= 1) a->row_stride = a->num_cols;
    if (a->row_stride == a->num_cols) { /* one run */
        a->num_cols *= a->num_rows;
        a->num_rows = a->num_cols > 0;
        a->row_stride = 0;
    }
    int64_t bits = (int64_t)(uintptr_t)a->indices;
    if (a->num_rows > 1) bits |= a->num_cols * index_bytes | a->row_stride * index_bytes;
    a->unit = bits % 16 == 0 ? 16 / index_bytes : 1;
    a->whole_units = a->num_cols / a->unit;
    a->row_units = tgl_max(1, tgl_ceil_div(a->num_cols, a->unit));
    a->by_row_units = tgl_divisor_of(a->row_units);
    a->step_rows = tgl_min(num_threads / a->row_units, a->num_rows); /* so that step_offset does not overflow */
    a->step_units = num_threads % a->row_units;
    a->step_offset = a->step_rows * a->row_stride + a->step_units * a->unit;
    a->wrap_offset = a->row_stride - a->row_units * a->unit;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    histogram_args *a = &p->args;
    const int64_t elements = a->num_rows * a->num_cols;
    const int64_t wanted = elements <= HISTOGRAM_ONE_BLOCK ? 1 : tgl_ceil_div(elements, HISTOGRAM_BLOCK_ELEMENTS);
    const int64_t blocks = tgl_strided_grid(tgl_min(wanted, HISTOGRAM_MAX_BLOCKS), target->num_sms);
    const int threads = blocks == 1 && elements > HISTOGRAM_ONE_BLOCK / 2 ? HISTOGRAM_MAX_THREADS : 512;
    complete(a, p->index_bytes, blocks * threads);
    return (tgl_shape){ { blocks }, .block = threads, .shared_bytes = is_wide(a) ? 0 : 4 * a->num_bins, TGL_ARGS(*a) };
}

static const tgl_op OP = { cpu, plan, { { NULL, NULL, shape } } };

tgl_status tgl_histogram(tgl_signature *s, const DLTensor *const tensors[2], int64_t tokens_topk, void *workspace,
                         size_t workspace_bytes, tgl_stream stream)
{
    const DLTensor *indices = tensors[0], *out = tensors[1];
    if (!tgl_on_cpu(indices))
        TGL_TRY(tgl_expect_workspace(workspace, workspace_bytes, tgl_histogram_workspace_size(indices, out)));
    problem p = { { tgl_data(indices), tgl_data(out), workspace, indices->shape[0], indices->shape[1],
                    tgl_stride(indices, 0), (int32_t)out->shape[0], tokens_topk, .unit = 0 },
                  tgl_dtype_bits(indices->dtype) / 8 };
    if (tgl_is_empty(indices)) p.args.num_rows = p.args.num_cols = 0; /* the other may be huge */
    return tgl_run(s, &OP, tensors, &p, stream);
}

size_t tgl_histogram_workspace_size(const DLTensor *indices, const DLTensor *out)
{
    if (!indices || indices->ndim != 2 || !indices->shape || !out || out->ndim != 1 || !out->shape ||
        tgl_on_cpu(indices))
        return 0; /* the op reports the error */
    const size_t unit = TGL_WORKSPACE_ALIGNMENT, bins = (size_t)out->shape[0];
    const bool is_wide = out->shape[0] > HISTOGRAM_SHARED_BINS;
    int64_t elements;
    if (__builtin_mul_overflow(indices->shape[0], indices->shape[1], &elements)) elements = INT64_MAX;
    if (elements <= HISTOGRAM_ONE_BLOCK && !is_wide) return 0;
    return ((is_wide ? 4 * (1 + bins) : 8 * bins) + unit - 1) / unit * unit;
}
