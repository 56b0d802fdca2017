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

/* Squares in their order: those of column k go to chunk, quad and parity. */
float projection_squares(const case_tensor *x, int64_t token)
{
    const int64_t n = x->shape[1], hidden = x->shape[2], units = (hidden + 63) / 64;
    int64_t segments = 16;
    while (units % segments) segments /= 2;
    const int64_t half = units / segments * 32, chunks = 2 * n * segments;
    float *sums = case_memory(chunks * 8, sizeof *sums), *of_chunk = case_memory(chunks, sizeof *of_chunk);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < hidden; k++) {
            float *sum = &sums[((k / half / 2 * n + i) * 2 + k / half % 2) * 8 + k % 32 / 8 * 2 + k % 2];
            *sum = fmaf(rows_at(x, token, i, k), rows_at(x, token, i, k), *sum);
        }
    for (int64_t c = 0; c < chunks; c++) of_chunk[c] = mhc_sum_as_tree(sums + 8 * c, 8, 1);
    const float sum = mhc_sum_as_tree(of_chunk, chunks, 1);
    free(sums), free(of_chunk);
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

double projection_product(const case_tensor *x, const case_tensor *fn, const case_tensor *weight, int64_t token,
                          int64_t j)
{
    const int64_t hidden = x->shape[2];
    double sum = 0;
    for (int64_t k = 0; k < x->shape[1] * hidden; k++) {
        float f = mhc_at(fn, (int64_t[]){ j, k });
        if (weight->name) f = f * mhc_at(weight, &k);
        sum += (double)rows_at(x, token, k / hidden, k % hidden) * projection_tf32((double)f);
    }
    return sum;
}
