/* SPDX-License-Identifier: MIT
 * histogram.c - how often each index occurs: counts, or shares of the tokens. */
#include "moe/common/histogram.h"

#include "core/index.h"
#include "core/math.h"
#include "core/threads.h"
#include "moe/common/histogram_cpu.h"

typedef histogram_problem problem;

/* ---- CPU ---- */

/* Bins begin .. end - 1, counted where their results will be. */
static void count_bins(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const histogram_args *a = &p->args;
    uint32_t *counts = a->out;
    for (int64_t bin = begin; bin < end; bin++) counts[bin] = 0;
    for (int64_t i = 0; i < a->num_rows; i++)
        for (int64_t j = 0; j < a->num_cols; j++) {
            const int64_t bin = tgl_index_get(a->indices, i * a->row_stride + j, p->index_bytes);
            if (bin >= begin && bin < end) counts[bin]++;
        }
    for (int64_t bin = begin; bin < end; bin++) histogram_put(a, bin, counts[bin]);
}

static tgl_status plain(const void *context)
{
    return tgl_parallel_rows(((const problem *)context)->args.num_bins, 4, count_bins, context);
}

static tgl_status cpu(const void *context) { return TGL_CHOOSE(plain, tgl_histogram_chunks)(context); }

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
