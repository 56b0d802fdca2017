/* SPDX-License-Identifier: MIT */
#include "parts_cases.h"

#include <math.h>
#include <stdlib.h>

/* Numbers, squares if they are those of squares; `special`: one in 20 is an infinity, a NaN or a zero. */
static void fill(const case_problem *c, case_tensor *t, uint64_t seed)
{
    static const double special[] = { INFINITY, -INFINITY, NAN, 0, -0.0 };
    case_fill_normal(c, t, seed);
    for (int64_t i = 0; i < t->slots; i++) {
        char *at = t->storage + i * t->element_bytes;
        const double normal = case_decode(t->dtype, at), value = t->ndim == 2 ? normal * normal : normal;
        const bool is_special = case_is(c, "values", "special") && case_random_below(seed + 1, i, 20) == 0;
        case_encode(t->dtype, is_special ? special[case_random_below(seed + 2, i, 5)] : value, at);
    }
}

void parts_add(case_problem *c, int out_mul, int sqrsum, int64_t rows)
{
    const int64_t shape[] = { case_int(c, "num_splits"), case_int(c, "num_tokens"), rows };
    case_tensor *products = case_add(c, out_mul, "out_mul_parts", CASE_IN, TGL_F32, 3, shape);
    case_tensor *squares = case_add(c, sqrsum, "sqrsum_parts", CASE_IN, TGL_F32, 2, shape);
    products->fill = squares->fill = fill;
    products->offset = squares->offset = case_int(c, "offset") ? 1 : 0;
}

float parts_sum(const case_tensor *parts, int64_t token, int64_t j)
{
    int64_t count = 16;
    while (count < parts->shape[0]) count *= 2;
    float *l = case_memory(count, sizeof *l); /* zeros */
    for (int64_t s = 0; s < parts->shape[0]; s++) l[s] = mhc_at(parts, (int64_t[]){ s, token, j });
    for (int64_t half = count / 2; half > 0; half /= 2)
        for (int64_t i = 0; i < half; i++) l[i] = l[2 * i] + l[2 * i + 1];
    const float sum = l[0];
    free(l);
    return sum;
}
