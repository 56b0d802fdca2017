/* SPDX-License-Identifier: MIT
 * sinkhorn_finalize.c - tgl_engram_sinkhorn_finalize: rows of a scaled matrix, each divided by its norm. */
#include "core/math.h"
#include "core/threads.h"
#include "engram/common/sinkhorn_host.h"
#include "tegula/engram.h"

static void run_rows(const void *context, int64_t begin, int64_t end)
{
    const sinkhorn_finalize_args *a = context;
    const sinkhorn_matrix *m = &a->m;
    for (int64_t i = begin; i < end; i++) {
        const float *values = m->matrix + i * m->row_stride, *col_scale = m->col_scale; /* `out` may be `values` */
        const float row_scale = m->row_scale[i], factor = a->alpha / (tgl_sinkhorn_row_norm(m, i) + a->eps);
        float *out = a->out + i * a->out_stride;
        const int64_t dim = m->dim;
        for (int64_t j = 0; j < dim; j++)
            out[j] = tgl_one_nan(sinkhorn_scaled(row_scale, values[j], col_scale[j]) * factor);
    }
}

static tgl_status cpu(const void *context)
{
    const sinkhorn_finalize_args *a = context;
    return tgl_parallel_rows(a->m.num_rows, tgl_saturating_product(12, a->m.dim), run_rows, a);
}

tgl_signature tgl_engram_sinkhorn_finalize_signature = TGL_SIGNATURE(
    "engram_sinkhorn_finalize(matrix: f32[num_rows, dim] rows, row_scale: f32[num_rows], col_scale: f32[dim])"
    " -> out: f32[num_rows, dim] rows where out may be matrix",
    NULL);

static int plan(const void *context, tgl_kernel *kernels)
{
    const sinkhorn_finalize_args *a = context;
    kernels[0] = tgl_sinkhorn_kernel("engram/sinkhorn_finalize", a->m.dim);
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    sinkhorn_finalize_args *a = context;
    const int64_t dim = a->m.dim;
    const int64_t rows = SINKHORN_ROWS(tgl_sinkhorn_threads(dim), tgl_sinkhorn_vectors(dim));
    a->m.has_vectors = a->m.has_vectors && (uintptr_t)a->out % 16 == 0 && a->out_stride % 4 == 0;
    return tgl_shape_with(tgl_sinkhorn_shape(dim, tgl_ceil_div(a->m.num_rows, rows), target), a, sizeof *a);
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_engram_sinkhorn_finalize(const DLTensor *matrix, const DLTensor *row_scale, const DLTensor *col_scale,
                                        DLTensor *out, float eps, float alpha, tgl_stream stream)
{
    const DLTensor *tensors[] = { matrix, row_scale, col_scale, out };
    TGL_TRY(tgl_take(&tgl_engram_sinkhorn_finalize_signature, tensors, NULL, NULL));
    sinkhorn_finalize_args a = { tgl_sinkhorn_matrix_of(matrix, row_scale, col_scale), tgl_data(out), 0, eps, alpha };
    if (a.m.num_rows > 1) a.out_stride = tgl_stride(out, 0);
    return tgl_run(&tgl_engram_sinkhorn_finalize_signature, &OP, tensors, &a, stream);
}
