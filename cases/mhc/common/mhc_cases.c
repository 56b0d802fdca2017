/* SPDX-License-Identifier: MIT */
#include "mhc_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

double mhc_number(case_problem *c, const char *name)
{
    char *end;
    const char *text = case_text(c, name);
    const double value = strtod(text, &end);
    if (*end || end == text) snprintf(c->error, sizeof c->error, "%s: is %s, want a number", name, text);
    return value;
}

float mhc_at(const case_tensor *t, const int64_t *index)
{
    return (float)case_decode(t->dtype, case_element(t, index));
}

void mhc_put(case_tensor *t, const int64_t *index, double value)
{
    static const uint32_t nan = 0x7fffffff;
    static const uint16_t nan16 = 0x7fff;
    void *to = case_element(t, index);
    if (value != value) memcpy(to, t->dtype == TGL_BF16 ? (const void *)&nan16 : &nan, (size_t)t->element_bytes);
    else case_encode(t->dtype, value, to);
}

/* ---- arithmetic ---- A product or sum of floats is rounded rightly if it goes through double. */

float mhc_sum_as_tree(const float *values, int64_t count, int64_t step)
{
    int64_t half = 1;
    if (count <= 1) return count < 1 ? 0 : values[0];
    while (2 * half < count) half *= 2;
    /* what is missing on the right is +0: a sum of fewer, padded */
    float right = mhc_sum_as_tree(values + half * step, count - half, step);
    for (int64_t width = 1; width < half; width *= 2)
        if (width >= count - half) right = (float)((double)right + 0.0);
    return (float)((double)mhc_sum_as_tree(values, half, step) + (double)right);
}

static double rounded(double x) { return (double)(float)x; }

float mhc_exp_of(float x)
{
    static const double p[] = { 0x1.6a1a72p-10, 0x1.123fc6p-7, 0x1.555916p-5, 0x1.55548ap-3, 0x1.fffffcp-2 };
    const double in = x < -104 ? -104 : x > 89 ? 89 : (double)x;
    if (in != in) return NAN;
    const double n = nearbyint(rounded(in * 0x1.715476p0));         /* ties to even, as a sum with 1.5 * 2^23 */
    const double r = rounded(rounded(in - rounded(n * 0x1.63p-1)) + rounded(n * 0x1.bd0106p-13));
    double sum = p[0];
    for (int i = 1; i < 5; i++) sum = rounded(rounded(sum * r) + p[i]);
    sum = rounded(rounded(rounded(sum * rounded(r * r)) + r) + 1);
    return (float)ldexp(sum, (int)n);
}

float mhc_sigmoid_of(float z) { return (float)(1 / rounded(1 + (double)mhc_exp_of(-z))); }

float mhc_reciprocal(float x)
{
    uint32_t bits;
    float r;
    memcpy(&bits, &x, sizeof bits);
    bits = 0x7ef31000u - bits;
    memcpy(&r, &bits, sizeof r);
    const float e = fmaf(-x, r, 1), better = fmaf(r, fmaf(e, e, e), r);
    return fmaf(better, fmaf(-x, better, 1), better);
}

void mhc_sinkhorn_of(float *e, int64_t n, int64_t repeat, float eps)
{
    float of_row[8], of_column[8], rows[8], columns[8];
    for (int64_t i = 0; i < n; i++) {
        float top = -INFINITY;
        for (int64_t o = 0; o < n; o++) top = fmaxf(top, e[i * n + o]);
        for (int64_t o = 0; o < n; o++) e[i * n + o] = mhc_exp_of(e[i * n + o] - top);
        const float scale = mhc_reciprocal(mhc_sum_as_tree(e + i * n, n, 1));
        for (int64_t o = 0; o < n; o++) e[i * n + o] = fmaf(e[i * n + o], scale, eps);
        of_row[i] = rows[i] = 1;
    }
    for (int64_t o = 0; o < n; o++) columns[o] = mhc_sum_as_tree(e + o, n, n) + eps;
    for (int64_t step = 0; step < 2 * repeat - 1; step++) {
        const bool is_row = step % 2;
        float *sums = is_row ? rows : columns, *made = is_row ? of_row : of_column;
        const float *with = is_row ? of_column : of_row;
        for (int64_t a = 0; a < n; a++) {
            float sum = eps * sums[a];
            for (int64_t b = 0; b < n && step; b++) sum = fmaf(e[is_row ? a * n + b : b * n + a], with[b], sum);
            if (step) sums[a] = sum;
            made[a] = mhc_reciprocal(sums[a]);
        }
    }
    for (int64_t k = 0; k < n * n; k++) e[k] = e[k] * of_row[k / n] * of_column[k % n];
}

/* ---- inputs ---- */

void mhc_fill_values(const case_problem *c, case_tensor *t, uint64_t seed)
{
    static const double special[] = { NAN, INFINITY, -INFINITY };
    const int kind = case_word(c, "values", MHC_VALUES);
    const int64_t row = t->shape[t->ndim - 1] < 1 ? 1 : t->shape[t->ndim - 1];
    const int64_t token = t->ndim > 2 ? row * t->shape[1] : row;
    case_fill_normal(c, t, seed);
    for (int64_t i = 0; i < t->slots; i++) {
        char *at = t->storage + i * t->element_bytes;
        const double normal = case_decode(t->dtype, at);
        double value = normal * (kind == 1 ? 100 : kind == 2 ? 1e4 : 1);
        if (kind == 3) value = (double)case_random_below(seed + 1, i / token, 7) - 3;
        if (kind == 4 && i % row == case_random_below(seed + 1, i / row, row)) value = -INFINITY;
        if (kind == 5 && case_random_below(seed + 1, i, 50) == 0) value = special[case_random_below(seed + 2, i, 3)];
        case_encode(t->dtype, value, at);
    }
}
