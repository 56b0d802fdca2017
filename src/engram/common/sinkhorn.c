/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "core/math.h"
#include "engram/common/sinkhorn_host.h"

sinkhorn_matrix tgl_sinkhorn_matrix_of(const DLTensor *matrix, const DLTensor *row_scale, const DLTensor *col_scale)
{
    sinkhorn_matrix m = { .matrix = tgl_data(matrix),
                          .col_scale = tgl_data(col_scale),
                          .row_scale = tgl_data(row_scale),
                          .num_rows = matrix->shape[0],
                          .dim = matrix->shape[1] };
    if (m.num_rows > 1) m.row_stride = tgl_stride(matrix, 0);
    m.has_vectors = (uintptr_t)m.matrix % 16 == 0 && m.row_stride % 4 == 0 && m.dim % 4 == 0;
    return m;
}

/* ---- CPU ---- */

float tgl_sinkhorn_row_norm(const sinkhorn_matrix *m, int64_t row)
{
    const float *x = m->dim ? m->matrix + row * m->row_stride : NULL, *col_scale = m->col_scale;
    const float row_scale = m->row_scale[row];
    int width = 1; /* sums past the last column are 0 and change nothing */
    while (width < SINKHORN_SUMS && width < m->dim) width *= 2;
    float sums[SINKHORN_SUMS];
    for (int q = 0; q < width; q++) sums[q] = 0;
    for (int64_t j = 0; j < m->dim; j += SINKHORN_SUMS) {
        const int64_t count = tgl_min(SINKHORN_SUMS, m->dim - j);
        for (int64_t q = 0; q < count; q++) {
            const float scaled = sinkhorn_scaled(row_scale, x[j + q], col_scale[j + q]);
            sums[q] += scaled * scaled;
        }
    }
    for (int n = width / 2; n > 0; n /= 2)
        for (int q = 0; q < n; q++) sums[q] = sums[2 * q] + sums[2 * q + 1];
    return tgl_one_nan(sqrtf(sums[0]));
}

void tgl_sinkhorn_reduce(const void *reduce_args, int64_t begin, int64_t end)
{
    const sinkhorn_reduce_args *a = reduce_args;
    memset(a->sumsq + begin, 0, (size_t)(end - begin) * sizeof *a->sumsq);
    for (int64_t p = 0; p < a->num_partials; p++) {
        const float *restrict partial = a->partial + p * a->stride;
        float *restrict sumsq = a->sumsq;
        for (int64_t j = begin; j < end; j++) sumsq[j] += partial[j];
    }
    for (int64_t j = begin; j < end; j++) a->sumsq[j] = tgl_one_nan(a->sumsq[j]);
}

/* ---- launch ---- */

int tgl_sinkhorn_threads(int64_t dim)
{
    int threads = 32;
    while (threads < SINKHORN_MAX_THREADS && 4 * threads < dim) threads *= 2;
    return threads;
}

int tgl_sinkhorn_vectors(int64_t dim)
{
    const int64_t vectors = tgl_max(1, tgl_ceil_div(dim, 4 * tgl_sinkhorn_threads(dim)));
    return vectors <= SINKHORN_MAX_VECTORS ? (int)vectors : 0;
}

tgl_kernel tgl_sinkhorn_kernel(const char *name, int64_t dim)
{
    return (tgl_kernel){ name, { { "THREADS", tgl_sinkhorn_threads(dim) }, { "VECTORS", tgl_sinkhorn_vectors(dim) } } };
}

tgl_shape tgl_sinkhorn_shape(int64_t dim, int64_t blocks, const tgl_target *target)
{
    const int threads = tgl_sinkhorn_threads(dim);
    return (tgl_shape){ { tgl_strided_grid(blocks, (int64_t)SINKHORN_SM_BLOCKS(threads) * target->num_sms) },
                        .block = threads,
                        .shared_bytes = (int64_t)16 * threads * tgl_sinkhorn_vectors(dim) };
}
