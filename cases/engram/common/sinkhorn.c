/* SPDX-License-Identifier: MIT */
#include "sinkhorn.h"

#include <math.h>

#include "core/status.h"

void sinkhorn_put(const case_tensor *t, const int64_t *index, float value)
{
    unsigned char *to = case_element(t, index);
    case_encode(t->dtype, (double)value, to);
    if (!isnan(value)) return;
    memset(to, 0xff, (size_t)t->element_bytes);
    to[t->element_bytes - 1] = 0x7f;
}

static void fill_sparse(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_normal(c, t, seed);
    for (int64_t i = 0; i < t->slots; i++)
        if (case_random_below(seed + 1, i, 2) == 0 || i / t->strides[0] % 3 == 1) ((float *)t->storage)[i] = 0;
}

tgl_status sinkhorn_add_matrix(case_problem *c, case_role matrix_role, case_role row_role)
{
    const int64_t shape[] = { case_int(c, "num_rows"), case_int(c, "dim") };
    case_tensor *matrix = case_add(c, 0, "matrix", matrix_role, TGL_F32, 2, shape);
    case_tensor *rows = case_add(c, SINKHORN_ROW_SCALE, "row_scale", row_role, TGL_F32, 1, shape);
    case_tensor *cols = case_add(c, SINKHORN_COL_SCALE, "col_scale", CASE_IN, TGL_F32, 1, shape + 1);
    TGL_TRY(case_check_word(c, "values", "normal sparse bits"));
    TGL_TRY(case_check_word(c, "eps", "tiny half zero"));
    const bool is_bits = case_is(c, "values", "bits");
    matrix->strides[0] += case_int(c, "gap");
    matrix->offset = case_int(c, "offset");
    matrix->fill = is_bits ? case_fill_bits : case_is(c, "values", "sparse") ? fill_sparse : case_fill_normal;
    rows->fill = cols->fill = is_bits ? case_fill_bits : case_fill_uniform;
    rows->low = cols->low = 0.25, rows->high = cols->high = 3;
    return TGL_OK;
}

float sinkhorn_eps(const case_problem *c)
{
    return case_is(c, "eps", "tiny") ? 1e-20f : case_is(c, "eps", "half") ? 0.5f : 0;
}

void sinkhorn_row(const case_problem *c, int64_t i, float *x)
{
    const case_tensor *matrix = &c->tensors[0];
    const float row_scale = *(const float *)case_element(&c->tensors[SINKHORN_ROW_SCALE], &i);
    for (int64_t j = 0; j < matrix->shape[1]; j++) {
        const float value = *(const float *)case_element(matrix, (int64_t[]){ i, j });
        const float col_scale = *(const float *)case_element(&c->tensors[SINKHORN_COL_SCALE], &j);
        x[j] = sinkhorn_times(sinkhorn_times(row_scale, value), col_scale);
    }
}

/* Adds the two halves of n neighbouring sums, n a power of two. One sum has every 1024th column. */
static float sum_of_squares(const float *x, int64_t first, int64_t n, int64_t dim)
{
    if (n > 1) return sinkhorn_plus(sum_of_squares(x, first, n / 2, dim), sum_of_squares(x, first + n / 2, n / 2, dim));
    float sum = 0;
    for (int64_t j = first; j < dim; j += 1024) sum = sinkhorn_plus(sum, sinkhorn_times(x[j], x[j]));
    return sum;
}

float sinkhorn_norm(const float *x, int64_t dim) { return (float)sqrt((double)sum_of_squares(x, 0, 1024, dim)); }
