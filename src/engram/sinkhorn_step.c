/* SPDX-License-Identifier: MIT
 * sinkhorn_step.c - tgl_engram_sinkhorn_step: rows of a scaled matrix divided by their norms, and what the columns'
 * norms are then. */
#include "core/math.h"
#include "core/threads.h"
#include "engram/common/sinkhorn_host.h"
#include "tegula/engram.h"

typedef struct {
    sinkhorn_step_args args;
    bool is_reduced;
} problem;

int64_t tgl_engram_sinkhorn_num_partials(int64_t num_rows)
{
    enum { MIN_ROWS = 8, MAX_PARTIALS = 528 }; /* of a partial row: more would cost as much as it gains */
    const int64_t chunk = tgl_max(MIN_ROWS, tgl_ceil_div(tgl_max(num_rows, 1), MAX_PARTIALS));
    return tgl_ceil_div(tgl_max(num_rows, 1), chunk);
}

/* ---- CPU ---- */

static void run_row(const sinkhorn_step_args *p, int64_t row, float *restrict partial)
{
    const sinkhorn_matrix *m = &p->m;
    const int64_t dim = m->dim;
    const float *restrict values = dim ? m->matrix + row * m->row_stride : NULL, *restrict col_scale = m->col_scale;
    const float norm = tgl_sinkhorn_row_norm(m, row), factor = 1 / (norm + p->eps), row_scale = m->row_scale[row];
    for (int64_t j = 0; j < dim; j++) {
        const float x = sinkhorn_scaled(row_scale, values[j], col_scale[j]);
        const float normed = x * factor;
        partial[j] += normed * normed;
    }
    p->row_norm[row] = norm;
    m->row_scale[row] = tgl_one_nan(row_scale * factor);
}

static void run_chunks(const void *context, int64_t begin, int64_t end)
{
    const sinkhorn_step_args *p = context;
    for (int64_t i = begin; i < end; i++) {
        float *partial = p->m.dim ? p->partial + i * p->m.dim : NULL; /* without columns there is no memory */
        for (int64_t j = 0; j < p->m.dim; j++) partial[j] = 0;
        for (int64_t row = i * p->chunk; row < tgl_min((i + 1) * p->chunk, p->m.num_rows); row++)
            run_row(p, row, partial);
        for (int64_t j = 0; j < p->m.dim; j++) partial[j] = tgl_one_nan(partial[j]);
    }
}

static tgl_status cpu(const void *context)
{
    const sinkhorn_step_args *p = &((const problem *)context)->args;
    const int64_t chunk_bytes = tgl_saturating_product(p->chunk, tgl_saturating_product(16, p->m.dim));
    TGL_TRY(tgl_parallel_rows(p->num_partials, chunk_bytes, run_chunks, p));
    if (!p->sumsq) return TGL_OK;
    const sinkhorn_reduce_args reduction = { p->partial, p->sumsq, p->m.dim, p->num_partials, p->m.dim };
    return tgl_parallel_rows(p->m.dim, 4 * p->num_partials, tgl_sinkhorn_reduce, &reduction);
}

tgl_signature tgl_engram_sinkhorn_step_signature = TGL_SIGNATURE(
    "engram_sinkhorn_step(matrix: f32[num_rows, dim] rows, row_scale: f32[num_rows]!, col_scale: f32[dim])"
    " -> row_norm: f32[num_rows], col_sumsq_partial: f32[num_partials, dim], col_sumsq: f32[dim]?"
    " where num_partials in 1..2^31 - 1",
    NULL);

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    kernels[0] = tgl_sinkhorn_kernel("engram/sinkhorn_step", p->args.m.dim);
    tgl_add_macro(&kernels[0], "IS_REDUCED", p->is_reduced);
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    sinkhorn_step_args *p = &((problem *)context)->args;
    p->m.has_vectors = p->m.has_vectors && (uintptr_t)p->partial % 16 == 0;
    tgl_shape s = tgl_sinkhorn_shape(p->m.dim, p->num_partials, target);
    if (p->sumsq) {
        s.cooperative = true;
        s.shared_bytes = tgl_max(s.shared_bytes, SINKHORN_TILE_BYTES(s.block));
    }
    return tgl_shape_with(s, p, sizeof *p);
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_engram_sinkhorn_step(const DLTensor *matrix, DLTensor *row_scale, const DLTensor *col_scale,
                                    DLTensor *row_norm, DLTensor *col_sumsq_partial, DLTensor *col_sumsq, float eps,
                                    void *workspace, size_t workspace_bytes, tgl_stream stream)
{
    const DLTensor *tensors[] = { matrix, row_scale, col_scale, row_norm, col_sumsq_partial, col_sumsq };
    TGL_TRY(tgl_take(&tgl_engram_sinkhorn_step_signature, tensors, NULL, NULL));
    TGL_TRY(tgl_expect_workspace(workspace, workspace_bytes,
                                 tgl_engram_sinkhorn_step_workspace_size(matrix, col_sumsq)));
    problem p = { { tgl_sinkhorn_matrix_of(matrix, row_scale, col_scale), tgl_data(row_norm),
                    tgl_data(col_sumsq_partial), NULL, workspace, col_sumsq_partial->shape[0], 0, eps },
                  col_sumsq && col_sumsq->shape[0] };
    if (p.is_reduced) p.args.sumsq = tgl_data(col_sumsq);
    p.args.chunk = tgl_ceil_div(p.args.m.num_rows, p.args.num_partials);
    return tgl_run(&tgl_engram_sinkhorn_step_signature, &OP, tensors, &p, stream);
}

size_t tgl_engram_sinkhorn_step_workspace_size(const DLTensor *matrix, const DLTensor *col_sumsq)
{
    return matrix && col_sumsq && !tgl_on_cpu(matrix) ? SINKHORN_BARRIER_WORDS * sizeof(uint32_t) : 0;
}
