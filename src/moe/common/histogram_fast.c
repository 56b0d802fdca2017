/* SPDX-License-Identifier: MIT
 * histogram_fast.c - histogram.c's loop with each chunk of rows counted once, by one thread, in counts of its own. */
#include <string.h>

#include "core/index.h"
#include "core/math.h"
#include "core/threads.h"
#include "moe/common/histogram_cpu.h"

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

/* An index out of range adds 0 to the first bin: a branch would be mispredicted. The mask is -1 or 0. */
TGL_ALWAYS_INLINE void count_one(uint32_t *counts, uint64_t num_bins, const char *row, int64_t j, int index_bytes)
{
    const int64_t v = tgl_index_get(row, j, index_bytes);
    const int64_t mask = -(int64_t)((uint64_t)v < num_bins);
    counts[v & mask] -= (uint32_t)mask;
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
        histogram_put(a, bin, (int64_t)sum);
    }
}

tgl_status TGL_FAST(tgl_histogram_chunks)(const void *context)
{
    const histogram_problem *p = context;
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
