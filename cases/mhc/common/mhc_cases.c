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
    if (value != value) memcpy(to, t->element_bytes == 2 ? (const void *)&nan16 : &nan, (size_t)t->element_bytes);
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
    const double n = nearbyint(rounded(in * 0x1.715476p0)); /* ties to even, as a sum with 1.5 * 2^23 */
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

/* ---- Sinkhorn, backward ---- */

/* Steps 0 .. 2 R - 2, columns first. Step s makes of[s], the reciprocals of sums[s]. */
typedef struct {
    int64_t n, num_steps;
    float eps, *e, *of;
} steps;

static float *of(const steps *s, int64_t step) { return s->of + (step < 0 ? 0 : step + 1) * s->n; }

static void run_forward(steps *s, const float *logits, float *softmax)
{
    const int64_t n = s->n;
    float sums[2][8];
    for (int64_t i = 0; i < n; i++) {
        float top = -INFINITY;
        for (int64_t o = 0; o < n; o++) top = fmaxf(top, logits[i * n + o]);
        for (int64_t o = 0; o < n; o++) softmax[i * n + o] = mhc_exp_of(logits[i * n + o] - top);
        const float scale = mhc_reciprocal(mhc_sum_as_tree(softmax + i * n, n, 1));
        for (int64_t o = 0; o < n; o++) {
            s->e[i * n + o] = fmaf(softmax[i * n + o], scale, s->eps);
            softmax[i * n + o] = softmax[i * n + o] * scale;
        }
        of(s, -1)[i] = sums[1][i] = 1;
    }
    for (int64_t step = 0; step < s->num_steps; step++)
        for (int64_t a = 0; a < n; a++) {
            const bool is_row = step % 2;
            float *sum = &sums[is_row][a];
            if (step == 0) *sum = mhc_sum_as_tree(s->e + a, n, n) + s->eps;
            else {
                *sum = s->eps * *sum;
                for (int64_t b = 0; b < n; b++)
                    *sum = fmaf(s->e[is_row ? a * n + b : b * n + a], of(s, step - 1)[b], *sum);
            }
            of(s, step)[a] = mhc_reciprocal(*sum);
        }
}

/* d: the gradient of a token's matrix, then that of its logits. */
void mhc_sinkhorn_bwd_of(float *d, const float *logits, int64_t n, int64_t repeat, float eps)
{
    const int64_t last = 2 * repeat - 2;
    float e[64], softmax[64], later[2][8] = { { 0 } }, grad[2][8] = { { 0 } }; /* of columns, of rows */
    steps s = { n, last + 1, eps, e, case_memory((last + 3) * n, sizeof(float)) };
    run_forward(&s, logits, softmax);
    const float *row = of(&s, last - 1), *column = of(&s, last);
    for (int64_t k = 0; k < n * n; k++) {
        const float g = d[k] * e[k];
        grad[1][k / n] = fmaf(g, column[k % n], grad[1][k / n]);
        grad[0][k % n] = fmaf(g, row[k / n], grad[0][k % n]);
        d[k] = d[k] * row[k / n] * column[k % n];
    }
    for (int64_t step = last; step >= 0; step--)
        for (int64_t a = 0; a < n; a++) {
            const bool is_row = step % 2;
            const float factor = of(&s, step)[a], *with = of(&s, step - 1);
            const float of_sum = fmaf(-(grad[is_row][a] * factor), factor, later[is_row][a]);
            later[is_row][a] = s.eps * of_sum;
            grad[is_row][a] = 0;
            for (int64_t b = 0; b < n; b++) {
                const int64_t k = is_row ? a * n + b : b * n + a;
                d[k] = step ? fmaf(of_sum, with[b], d[k]) : d[k] + of_sum;
                grad[!is_row][b] = fmaf(of_sum, e[k], grad[!is_row][b]);
            }
        }
    for (int64_t i = 0; i < n; i++) {
        float dot = 0;
        for (int64_t o = 0; o < n; o++) dot = fmaf(d[i * n + o], softmax[i * n + o], dot);
        for (int64_t o = 0; o < n; o++) d[i * n + o] = (d[i * n + o] - dot) * softmax[i * n + o];
    }
    free(s.of);
}
