/* SPDX-License-Identifier: MIT */
#include "rows_cases.h"

#include <math.h>
#include <stdlib.h>

static void fill(const case_problem *c, case_tensor *t, uint64_t seed)
{
    static const double wide[] = { INFINITY, -INFINITY, NAN, 0, -0.0, 1e-39, -1e-40, 3e38, -1e25, 1e-25 };
    static const double of_f16[] = { INFINITY, -INFINITY, NAN, 0, -0.0, 3e-5, -6e-8, 65504, -33000, 1e-4 };
    const double *special = t->dtype == TGL_F16 ? of_f16 : wide;
    case_fill_normal(c, t, seed);
    for (int64_t i = 0; i < t->slots && case_is(c, "values", "special"); i++)
        if (case_random_below(seed + 1, i, 100) == 0)
            case_encode(t->dtype, special[case_random_below(seed + 2, i, 10)], t->storage + i * t->element_bytes);
}

case_tensor *rows_add(case_problem *c, int index, const char *name, case_role role, bool has_streams)
{
    return rows_add_of(c, index, name, role, has_streams, TGL_BF16);
}

case_tensor *rows_add_of(case_problem *c, int index, const char *name, case_role role, bool has_streams,
                         tgl_dtype dtype)
{
    const int64_t t = case_int(c, "num_tokens"), n = case_int(c, "num_streams"), h = case_int(c, "hidden");
    const int layout = case_word(c, "layout", "packed gaps outside same");
    const int64_t row = h + (layout == 1 ? case_int(c, "gap") : 0);
    case_tensor *made = has_streams ? case_add(c, index, name, role, dtype, 3, (int64_t[]){ t, n, h })
                                    : case_add(c, index, name, role, dtype, 2, (int64_t[]){ t, h });
    made->offset = case_int(c, "offset");
    made->strides[0] = !has_streams ? row : layout == 2 ? row : n * row + (layout == 1 ? case_int(c, "gap") : 0);
    if (has_streams) made->strides[1] = layout == 2 ? t * row : row;
    if (has_streams && layout == 3 && role == CASE_IN) made->strides[0] = row, made->strides[1] = 0;
    made->fill = fill;
    made->compare.nan_payload = true;
    return made;
}

case_tensor *rows_add_mix(case_problem *c, int index, const char *name, case_role role, int ndim)
{
    const int64_t n = case_int(c, "num_streams");
    case_tensor *made = case_add(c, index, name, role, TGL_F32, ndim, (int64_t[]){ case_int(c, "num_tokens"), n, n });
    made->offset = case_int(c, "offset") ? 1 : 0;
    made->fill = fill;
    return made;
}

tgl_status rows_check(const case_problem *c)
{
    TGL_TRY(case_check_word(c, "values", "normal special"));
    return case_check_word(c, "layout", "packed gaps outside same");
}

float rows_at(const case_tensor *t, int64_t token, int64_t stream, int64_t i)
{
    return mhc_at(t, t->ndim > 2 ? (int64_t[]){ token, stream, i } : (int64_t[]){ token, i, 0 });
}

bool rows_is_wild(const case_tensor *t, double limit)
{
    for (int64_t i = 0; t->name && i < t->slots; i++)
        if (!(fabs(case_decode(t->dtype, t->storage + i * t->element_bytes)) <= limit)) return true;
    return false;
}

float rows_dot(const case_tensor *a, int64_t i, const case_tensor *b, int64_t o, int64_t token)
{
    const int64_t hidden = a->shape[a->ndim - 1];
    int64_t units = 1024;
    while (8 * units < hidden) units *= 2;
    float *sums = case_memory(units, sizeof *sums);
    for (int64_t c = 0; c < hidden; c++)
        sums[c / 8] = fmaf(rows_at(a, token, i, c), rows_at(b, token, o, c), sums[c / 8]);
    for (int64_t n = units / 2; n > 0; n /= 2)
        for (int64_t k = 0; k < n; k++) sums[k] = sums[2 * k] + sums[2 * k + 1];
    const float sum = sums[0];
    free(sums);
    return sum;
}
