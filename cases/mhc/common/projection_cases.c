/* SPDX-License-Identifier: MIT */
#include "projection_cases.h"

#include <math.h>
#include <stdlib.h>

void projection_fill_exact(const case_problem *c, case_tensor *t, uint64_t seed)
{
    for (int64_t i = 0; i < t->slots; i++) {
        const double steps = (double)case_random_below(seed, i, 23) - 11;
        const double sign = case_random_below(seed + 1, i, 2) ? 1 : -1;
        const double odd = (double)(2 * case_random_below(seed, i, 2) + 1) * sign;
        case_encode(t->dtype, t->dtype == TGL_BF16 ? odd : steps / 512, t->storage + i * t->element_bytes);
    }
}

void projection_add(case_problem *c, int64_t rows)
{
    const int64_t columns = case_int(c, "num_streams") * case_int(c, "hidden");
    case_tensor *x = rows_add(c, PROJECTION_X, "residual", CASE_IN, true);
    case_tensor *fn = case_add(c, PROJECTION_FN, "fn", CASE_IN, TGL_F32, 2, (int64_t[]){ rows, columns });
    fn->fill = case_fill_normal;
    fn->offset = case_int(c, "offset");
    if (case_int(c, "weight"))
        case_add(c, PROJECTION_WEIGHT, "norm_weight", CASE_IN, TGL_F32, 1, &columns)->fill = case_fill_normal;
    if (case_is(c, "sums", "exact")) x->fill = fn->fill = projection_fill_exact;
}

bool projection_is_exact(case_problem *c) { return case_is(c, "sums", "exact") && !case_int(c, "weight"); }

void projection_oracle(case_problem *c, int inputs, void (*tokens)(void *c, int64_t begin, int64_t end))
{
    for (int i = 0; i < inputs; i++) c->is_undecided |= rows_is_wild(&c->tensors[i], 50);
    case_parallel(c->tensors[PROJECTION_X].shape[0], 500 * c->tensors[PROJECTION_FN].shape[0] * case_int(c, "hidden"),
                  tokens, c);
}

/* The columns of a chunk of a stream, the chunks of a token, and how many of them make a part: at least those of a segment
 * in as many streams as the largest power of two that divides n. */
static int64_t half_segment(const case_tensor *x)
{
    const int64_t units = (x->shape[2] + 63) / 64;
    int64_t segments = 16;
    while (units % segments) segments /= 2;
    return units / segments * 32;
}
static int64_t num_chunks(const case_tensor *x)
{
    return 2 * x->shape[1] * ((x->shape[2] + 63) / 64 * 32 / half_segment(x));
}
static int64_t chunks_of_part(const case_tensor *x, int64_t splits)
{
    int64_t min_chunks = 2, padded = 1;
    while (x->shape[1] % min_chunks == 0) min_chunks *= 2; /* 2 times that power of two */
    while (padded < num_chunks(x)) padded *= 2;
    return padded / splits > min_chunks ? padded / splits : min_chunks;
}
static int64_t chunk_of(int64_t half, int64_t n, int64_t stream, int64_t column)
{
    return (column / half / 2 * n + stream) * 2 + column / half % 2;
}

void projection_squares_in_parts(const case_tensor *x, int64_t token, int64_t splits, float *parts)
{
    const int64_t n = x->shape[1], chunks = num_chunks(x), mine = chunks_of_part(x, splits), half = half_segment(x);
    float *sums = case_memory(chunks * 8, sizeof *sums), *of_chunk = case_memory(mine * splits, sizeof *of_chunk);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < x->shape[2]; k++) { /* those of column k go to chunk, quad and parity */
            float *sum = &sums[chunk_of(half, n, i, k) * 8 + k % 32 / 8 * 2 + k % 2];
            *sum = fmaf(rows_at(x, token, i, k), rows_at(x, token, i, k), *sum);
        }
    for (int64_t c = 0; c < chunks; c++) of_chunk[c] = mhc_sum_as_tree(sums + 8 * c, 8, 1);
    for (int64_t s = 0; s < splits; s++) parts[s] = mhc_sum_as_tree(of_chunk + s * mine, mine, 1);
    free(sums), free(of_chunk);
}
float projection_squares(const case_tensor *x, int64_t token)
{
    float sum;
    projection_squares_in_parts(x, token, 1, &sum);
    return sum;
}

double projection_tf32(double x)
{
    int exponent;
    if (x == 0 || !isfinite(x)) return x;
    frexp(x, &exponent);
    const double step = ldexp(1, exponent - 11);
    return copysign(floor(fabs(x) / step + 0.5) * step, x);
}

float projection_factor(float squares, int64_t columns, float eps)
{
    return (float)(1 / sqrtl((long double)(squares / (float)columns + eps)));
}

void projection_product_in_parts(const case_tensor *x, const case_tensor *fn, const case_tensor *weight, int64_t token,
                                 int64_t j, int64_t splits, double *parts)
{
    const int64_t n = x->shape[1], hidden = x->shape[2], mine = chunks_of_part(x, splits), half = half_segment(x);
    for (int64_t s = 0; s < splits; s++) parts[s] = 0;
    for (int64_t k = 0; k < n * hidden; k++) {
        float f = mhc_at(fn, (int64_t[]){ j, k });
        if (weight->name) f = f * mhc_at(weight, &k);
        parts[chunk_of(half, n, k / hidden, k % hidden) / mine] +=
            (double)rows_at(x, token, k / hidden, k % hidden) * projection_tf32((double)f);
    }
}
double projection_product(const case_tensor *x, const case_tensor *fn, const case_tensor *weight, int64_t token,
                          int64_t j)
{
    double sum;
    projection_product_in_parts(x, fn, weight, token, j, 1, &sum);
    return sum;
}
