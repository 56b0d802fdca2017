/* SPDX-License-Identifier: MIT
 * The optimiser step of Engram's tables, composed of the sinkhorn ops, on every device of the tests:
 *
 *     momentum m = 0.95 m + 0.05 g, n = 0.95 m + 0.05 g; rows whose norm is at most 1e-3 of the norms' mean are 0;
 *     11 times n is divided by the norms of its rows, then of its columns, and so on, rows first and last (eps 1e-20);
 *     direction = n * sqrt(dim)
 *
 * against the same in double, written from the definition. */
#include <math.h>

#include "ops.h"
#include "tegula/engram.h"

#define EPS 1e-20f

static void *zeroed(int64_t count, size_t size)
{
    void *bytes = calloc((size_t)count + 1, size);
    if (!bytes) abort();
    return bytes;
}

static void upload(const backend *b, const tensor *t, const float *from)
{
    CHECK_OK(backend_upload(b, t->t.data, from, bytes_of(t)));
}
static void download(const backend *b, const tensor *t, float *to)
{
    CHECK_OK(backend_wait(b, b->stream));
    CHECK_OK(backend_download(b, to, t->t.data, bytes_of(t)));
}

/* ---- the ops ---- */

/* Division by the norms of columns; a column without values stays 0. */
static void divide_columns(float *col_scale, const float *col_sumsq, int64_t dim)
{
    for (int64_t j = 0; j < dim; j++) col_scale[j] = col_sumsq[j] > 0 ? col_scale[j] / (sqrtf(col_sumsq[j]) + EPS) : 0;
}

/* matrix -> direction; in one launch per step, or in two. */
static void normalise(const backend *b, int64_t num_rows, int64_t dim, tensor *matrix, bool in_one, tensor *direction)
{
    float *rows = zeroed(num_rows, 4), *norms = zeroed(num_rows, 4), *cols = zeroed(dim, 4), *sums = zeroed(dim, 4);
    tensor row_scale, col_scale, row_norm, partial, sumsq;
    place(b, &row_scale, TGL_F32, 1, SHAPE(num_rows), NULL);
    place(b, &col_scale, TGL_F32, 1, SHAPE(dim), NULL);
    place(b, &row_norm, TGL_F32, 1, SHAPE(num_rows), NULL);
    place(b, &partial, TGL_F32, 2, SHAPE(tgl_engram_sinkhorn_num_partials(num_rows), dim), NULL);
    place(b, &sumsq, TGL_F32, 1, SHAPE(dim), NULL);
    const size_t bytes = tgl_engram_sinkhorn_step_workspace_size(&matrix->t, &sumsq.t);
    void *workspace = NULL;
    if (bytes) CHECK_OK(tgl_workspace_get(b->device.device_id, bytes, b->stream, &workspace));

    /* the norms of rows, from scales of 1; rows that are next to nothing get a scale of 0 */
    for (int64_t i = 0; i < num_rows; i++) rows[i] = 1;
    for (int64_t j = 0; j < dim; j++) cols[j] = 1;
    upload(b, &row_scale, rows), upload(b, &col_scale, cols);
    CHECK_OK(tgl_engram_sinkhorn_step(&matrix->t, &row_scale.t, &col_scale.t, &row_norm.t, &partial.t, NULL, EPS, NULL,
                                      0, b->stream));
    download(b, &row_norm, norms);
    double mean = 0;
    for (int64_t i = 0; i < num_rows; i++) mean += (double)norms[i] / (double)num_rows;
    for (int64_t i = 0; i < num_rows; i++) rows[i] = (double)norms[i] > 1e-3 * mean ? 1 : 0;
    upload(b, &row_scale, rows);

    /* five times rows, then columns; finalize does rows once more */
    for (int k = 0; k < 5; k++) {
        CHECK_OK(tgl_engram_sinkhorn_step(&matrix->t, &row_scale.t, &col_scale.t, &row_norm.t, &partial.t,
                                          in_one ? &sumsq.t : NULL, EPS, workspace, bytes, b->stream));
        if (!in_one) CHECK_OK(tgl_engram_sinkhorn_step_reduce(&partial.t, &sumsq.t, b->stream));
        download(b, &sumsq, sums);
        divide_columns(cols, sums, dim);
        upload(b, &col_scale, cols);
    }
    CHECK_OK(tgl_engram_sinkhorn_finalize(&matrix->t, &row_scale.t, &col_scale.t, &direction->t, EPS,
                                          (float)sqrt((double)dim), b->stream));
    CHECK_OK(backend_wait(b, b->stream));
    discard(b, &row_scale), discard(b, &col_scale), discard(b, &row_norm), discard(b, &partial), discard(b, &sumsq);
    free(rows), free(norms), free(cols), free(sums);
}

/* ---- the definition, in double ---- */

static double norm_of(const double *x, int64_t count, int64_t stride)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += x[i * stride] * x[i * stride];
    return sqrt(sum);
}
static void divide(double *x, int64_t count, int64_t stride, double by)
{
    for (int64_t i = 0; i < count; i++) x[i * stride] /= by;
}

static void define(double *x, int64_t num_rows, int64_t dim)
{
    double mean = 0;
    for (int64_t i = 0; i < num_rows; i++) mean += norm_of(x + i * dim, dim, 1) / (double)num_rows;
    for (int64_t i = 0; i < num_rows; i++)
        if (norm_of(x + i * dim, dim, 1) <= 1e-3 * mean) memset(x + i * dim, 0, (size_t)dim * sizeof *x);
    for (int k = 0; k < 11; k++)
        if (k % 2 == 0)
            for (int64_t i = 0; i < num_rows; i++) divide(x + i * dim, dim, 1, norm_of(x + i * dim, dim, 1) + 1e-20);
        else
            for (int64_t j = 0; j < dim; j++) divide(x + j, num_rows, dim, norm_of(x + j, num_rows, dim) + 1e-20);
    for (int64_t i = 0; i < num_rows * dim; i++) x[i] *= sqrt((double)dim);
}

/* An element is a product of 15 factors (6 rows, 5 columns, alpha, two scales and its own), each with a relative error
 * of a few 2^-24. */
static void check_close(const backend *b, const float *seen, const double *want, int64_t count, double rtol)
{
    for (int64_t i = 0; i < count; i++)
        if (!CHECK_THAT(fabs((double)seen[i] - want[i]) <= rtol * fabs(want[i]) + 1e-30,
                        "%s: direction[%d] is %.9g, want %.9g", b->name, (int)i, (double)seen[i], want[i]))
            return;
}

/* ---- tests ---- */

static void check_direction(const backend *b, const float *matrix, int64_t num_rows, int64_t dim)
{
    const int64_t count = num_rows * dim;
    double *want = zeroed(count, sizeof *want);
    float *one = zeroed(count, sizeof *one), *two = zeroed(count, sizeof *two);
    for (int64_t i = 0; i < count; i++) want[i] = (double)matrix[i];
    define(want, num_rows, dim);
    for (int in_one = 0; in_one < 2; in_one++) {
        tensor m, direction;
        place(b, &m, TGL_F32, 2, SHAPE(num_rows, dim), matrix);
        place(b, &direction, TGL_F32, 2, SHAPE(num_rows, dim), NULL);
        normalise(b, num_rows, dim, &m, in_one, &direction);
        fetch(b, &direction, in_one ? one : two);
        discard(b, &m);
    }
    check_close(b, two, want, count, 2e-6);
    CHECK_THAT(!memcmp(one, two, (size_t)count * sizeof *one), "%s: reduced in one launch, other bits", b->name);
    free(want), free(one), free(two);
}

TEST(worked_example)
{
    const float matrix[] = { 1, 2, /**/ 3, 4, /**/ 0, 0 };
    const double want[] = { 0.894427, 1.095445, /**/ 1.095445, 0.894427, /**/ 0, 0 };
    FOR_BACKENDS(b) {
        tensor m, direction;
        float seen[6];
        place(b, &m, TGL_F32, 2, SHAPE(3, 2), matrix);
        place(b, &direction, TGL_F32, 2, SHAPE(3, 2), NULL);
        normalise(b, 3, 2, &m, true, &direction);
        fetch(b, &direction, seen);
        check_close(b, seen, want, 6, 1e-6);
        discard(b, &m);
        check_direction(b, matrix, 3, 2);
    }
}

TEST(against_double)
{
    const int64_t sizes[][2] = { { 1001, 256 }, { 40, 100 }, { 64, 1500 }, { 7, 9000 }, { 300, 3 } };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t num_rows = sizes[s][0], dim = sizes[s][1];
        float *matrix = zeroed(num_rows * dim, sizeof *matrix);
        test_random r = test_seed("against double");
        for (int64_t i = 0; i < num_rows * dim; i++) { /* rows 3, 13 ... are next to nothing, 5, 15 ... are 0 */
            const float scale = i / dim % 10 == 3 ? 1e-7f : i / dim % 10 == 5 ? 0 : 1;
            matrix[i] = scale * ((float)(int64_t)test_below(&r, 2000001) - 1e6f) * 1e-6f;
        }
        FOR_BACKENDS(b)
            if (!b->is_emulated || num_rows * dim < 100000) check_direction(b, matrix, num_rows, dim);
        free(matrix);
    }
}

TEST(special_matrices)
{
    const float zeros[12] = { 0 }, column[] = { 3, -2, 0, 0.5f, 0 }, row[] = { 1, -2, 3, 0, 4 };
    const float with_empty_column[] = { 1, 0, 2, 3, 0, 1, -1, 0, 5 };
    FOR_BACKENDS(b) {
        check_direction(b, zeros, 4, 3);
        check_direction(b, column, 5, 1);
        check_direction(b, row, 1, 5);
        check_direction(b, with_empty_column, 3, 3);
    }
}

/* The whole step, twice: momentum of bf16 gradients, and direction. */
TEST(optimiser_step)
{
    enum { ROWS = 30, DIM = 40, COUNT = ROWS * DIM };
    static uint16_t grad[COUNT];
    static float momentum[COUNT], direction[COUNT];
    static double exact_momentum[COUNT], want[COUNT];
    FOR_BACKENDS(b) {
        test_random r = test_seed("optimiser step");
        tensor g, m, n, d;
        memset(momentum, 0, sizeof momentum);
        memset(exact_momentum, 0, sizeof exact_momentum);
        place(b, &m, TGL_F32, 2, SHAPE(ROWS, DIM), momentum);
        place(b, &n, TGL_F32, 2, SHAPE(ROWS, DIM), NULL);
        place(b, &d, TGL_F32, 2, SHAPE(ROWS, DIM), NULL);
        for (int k = 0; k < 2; k++) {
            for (int i = 0; i < COUNT; i++) {
                grad[i] = (uint16_t)(0x3c00 + (int)test_below(&r, 0x400) + ((int)test_below(&r, 2) << 15));
                const double exact = case_decode(TGL_BF16, &grad[i]);
                exact_momentum[i] = 0.95 * exact_momentum[i] + 0.05 * exact;
                want[i] = 0.95 * exact_momentum[i] + 0.05 * exact;
            }
            define(want, ROWS, DIM);
            place(b, &g, TGL_BF16, 2, SHAPE(ROWS, DIM), grad);
            CHECK_OK(tgl_engram_sinkhorn_momentum_update(&g.t, &m.t, &n.t, 0.95, true, b->stream));
            normalise(b, ROWS, DIM, &n, k, &d);
            download(b, &d, direction);
            for (int i = 0; i < COUNT; i++) /* terms of opposite signs: an absolute error */
                CHECK_THAT(fabs((double)direction[i] - want[i]) <= 3e-6 * fmax(1, fabs(want[i])),
                           "%s: step %d: [%d] is %.9g, want %.9g", b->name, k, i, (double)direction[i], want[i]);
            discard(b, &g);
        }
        discard(b, &m), discard(b, &n), discard(b, &d);
    }
}
