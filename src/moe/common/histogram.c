/* SPDX-License-Identifier: MIT
 * histogram.c - how often each index occurs, and its share of the tokens. */
#include "moe/common/histogram.h"

#include <string.h>

#include "core/math.h"
#include "core/threads.h"
#include "moe/common/histogram_kernel.h"
#include "moe/common/index.h"

typedef struct {
    const void *indices;
    void *out;
    uint32_t *workspace;
    int64_t num_rows, num_cols, row_stride, num_bins, tokens_topk;
    int index_bytes;
    histogram_args args;

    /* On the CPU: rows are cut into chunks, each with counts of its own, num_ways times. */
    int64_t num_chunks, chunk_rows, num_ways;
    uint32_t *counts;
} problem;

/* ---- CPU ---- */

/* Counts of all chunks are on the stack, WAYS times each: the next index may be the same, and would wait for
 * the store. With more bins there is one chunk, and the output holds its counts: nothing is allocated. A chunk is
 * worth a thread of its own. */
enum { WAYS = 2, MAX_COUNTS = 12288, MAX_CHUNKS = 32, MIN_CHUNK_ELEMENTS = 32768 };

#define INLINE static inline __attribute__((always_inline))   /* so that index_bytes is a constant */

/* An index that is none adds 0 to the first bin: a branch would be mispredicted. */
INLINE void count_one(uint32_t *counts, uint64_t num_bins, const char *row, int64_t j, int index_bytes)
{
    const int64_t v = tgl_index_get(row, j, index_bytes);
    const uint32_t is_bin = (uint64_t)v < num_bins;
    counts[v & -(int64_t)is_bin] += is_bin;
}

INLINE void count(const problem *p, int64_t chunk, int index_bytes)
{
    const uint64_t num_bins = (uint64_t)p->num_bins;
    uint32_t *counts = p->counts + chunk * p->num_ways * p->num_bins;
    uint32_t *second = counts + (p->num_ways - 1) * p->num_bins;
    const int64_t begin = chunk * p->chunk_rows, end = tgl_min(begin + p->chunk_rows, p->num_rows);
    memset(counts, 0, (size_t)(p->num_ways * p->num_bins) * sizeof *counts);
    for (int64_t i = begin; i < end; i++) {
        const char *row = (const char *)p->indices + i * p->row_stride * index_bytes;
        int64_t j = 0;
        for (; j + WAYS <= p->num_cols; j += WAYS) {
            count_one(counts, num_bins, row, j, index_bytes);
            count_one(second, num_bins, row, j + 1, index_bytes);
        }
        if (j < p->num_cols) count_one(counts, num_bins, row, j, index_bytes);
    }
}

static void count_chunks(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t i = begin; i < end; i++) {
        if (p->index_bytes == 4) count(p, i, 4);
        else count(p, i, 8);
    }
}

/* The counts may lie in `out`: each is read before its place is written. */
static void add_up(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t bin = begin; bin < end; bin++) {
        uint64_t sum = 0;
        for (int64_t i = 0; i < p->num_chunks * p->num_ways; i++) sum += p->counts[i * p->num_bins + bin];
        if (p->tokens_topk > 0)
            ((float *)p->out)[bin] = (float)((int64_t)sum * p->num_bins) / (float)p->tokens_topk;
        else ((int32_t *)p->out)[bin] = (int32_t)sum;
    }
}

static tgl_status cpu(const void *context)
{
    problem p = *(const problem *)context;
    uint32_t counts[MAX_COUNTS];
    const int64_t chunks_of_work = p.num_rows * p.num_cols / MIN_CHUNK_ELEMENTS;
    p.num_ways = p.num_bins <= MAX_COUNTS / WAYS ? WAYS : 1;
    p.counts = p.num_bins <= MAX_COUNTS ? counts : p.out;
    const int64_t fitting = tgl_min(MAX_CHUNKS, MAX_COUNTS / (p.num_ways * p.num_bins));
    p.num_chunks = tgl_max(1, tgl_min(fitting, chunks_of_work));
    p.chunk_rows = tgl_ceil_div(p.num_rows, p.num_chunks);
    const int64_t chunk_bytes = p.chunk_rows * p.num_cols * p.index_bytes;
    TGL_TRY(tgl_parallel_rows(p.num_chunks, chunk_bytes, count_chunks, &p));
    return tgl_parallel_rows(p.num_bins, 4 * (p.num_chunks * p.num_ways + 1), add_up, &p);
}

/* ---- launch ---- */

/* num_bins is fixed by the model, and chooses between variants of the kernel. */
static bool is_wide(int64_t num_bins) { return num_bins > HISTOGRAM_SHARED_BINS; }

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    kernels[0] = (tgl_kernel){ "moe/histogram",
                               { { "INDEX_BYTES", p->index_bytes }, { "IS_WIDE", is_wide(p->num_bins) } } };
    return 1;
}

static histogram_args args_of(const problem *p, int64_t num_threads)
{
    histogram_args a = { .indices = p->indices, .out = p->out, .workspace = p->workspace,
                         .tokens_topk = p->tokens_topk, .num_bins = (int32_t)p->num_bins, .num_rows = p->num_rows,
                         .num_cols = p->num_cols, .row_stride = p->row_stride };
    if (a.num_rows <= 1) a.row_stride = a.num_cols;
    if (a.row_stride == a.num_cols) {           /* one run */
        a.num_cols *= a.num_rows;
        a.num_rows = a.num_cols > 0;
        a.row_stride = 0;
    }
    int64_t bits = (int64_t)(uintptr_t)p->indices;
    if (a.num_rows > 1) bits |= a.num_cols * p->index_bytes | a.row_stride * p->index_bytes;
    a.unit = bits % 16 == 0 ? 16 / p->index_bytes : 1;
    a.whole_units = a.num_cols / a.unit;
    a.row_units = tgl_max(1, tgl_ceil_div(a.num_cols, a.unit));
    a.by_row_units = tgl_divisor_of(a.row_units);
    a.step_rows = tgl_min(num_threads / a.row_units, a.num_rows);   /* past the end, with an offset that fits */
    a.step_units = num_threads % a.row_units;
    a.step_offset = a.step_rows * a.row_stride + a.step_units * a.unit;
    a.wrap_offset = a.row_stride - a.row_units * a.unit;
    return a;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int64_t elements = p->num_rows * p->num_cols;
    const int64_t wanted = elements <= HISTOGRAM_ONE_BLOCK ? 1 : tgl_ceil_div(elements, HISTOGRAM_BLOCK_ELEMENTS);
    const int64_t blocks = tgl_strided_grid(tgl_min(wanted, HISTOGRAM_MAX_BLOCKS), target->num_sms);
    const int threads = blocks == 1 && elements > HISTOGRAM_ONE_BLOCK / 2 ? HISTOGRAM_MAX_THREADS : 512;
    p->args = args_of(p, blocks * threads);
    return (tgl_shape){ { blocks }, .block = threads,
                        .shared_bytes = is_wide(p->num_bins) ? 0 : 4 * p->num_bins, TGL_ARGS(p->args) };
}

static const tgl_op OP = { cpu, plan, { { NULL, NULL, shape } } };

static size_t workspace_size(int64_t elements, int64_t num_bins)
{
    if (elements <= HISTOGRAM_ONE_BLOCK && !is_wide(num_bins)) return 0;
    const size_t unit = TGL_WORKSPACE_ALIGNMENT, bins = (size_t)num_bins;
    const size_t bytes = is_wide(num_bins) ? 4 * (1 + bins) : 8 * bins;
    return (bytes + unit - 1) / unit * unit;
}

tgl_status tgl_histogram(tgl_signature *s, const DLTensor *const tensors[2], int64_t tokens_topk, void *workspace,
                         size_t workspace_bytes, tgl_stream stream)
{
    const DLTensor *indices = tensors[0], *out = tensors[1];
    if (!tgl_on_cpu(indices))
        TGL_TRY(tgl_expect_workspace(workspace, workspace_bytes, tgl_histogram_workspace_size(indices, out)));
    problem p = { tgl_data(indices), tgl_data(out), workspace, indices->shape[0], indices->shape[1],
                  tgl_stride(indices, 0), out->shape[0], tokens_topk, tgl_dtype_bits(indices->dtype) / 8,
                  .num_chunks = 0 };
    if (tgl_is_empty(indices)) p.num_rows = p.num_cols = 0;     /* one of them may be many */
    return tgl_run(s, &OP, tensors, &p, stream);
}

size_t tgl_histogram_workspace_size(const DLTensor *indices, const DLTensor *out)
{
    if (!indices || indices->ndim != 2 || !indices->shape || !out || out->ndim != 1 || !out->shape ||
        tgl_on_cpu(indices))
        return 0;                               /* the op will say what is wrong */
    int64_t elements;
    if (__builtin_mul_overflow(indices->shape[0], indices->shape[1], &elements)) elements = INT64_MAX;
    return workspace_size(elements, out->shape[0]);
}
