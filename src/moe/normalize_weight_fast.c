/* SPDX-License-Identifier: MIT
 * normalize_weight_fast.c - normalize_weight.c's loop for vector units. The additions of a row depend on one
 * another, in a given order. So SIDE rows are added side by side: squares of SIDE x SIDE elements are
 * transposed, and a vector then holds a column of them. */
#include <string.h>

#include "moe/normalize_weight_cpu.h"

enum { SIDE = 4, LINE = 64 / sizeof(float) };
typedef float floats __attribute__((vector_size(SIDE * sizeof(float))));
typedef int32_t lanes __attribute__((vector_size(SIDE * sizeof(int32_t))));
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (lanes){ __VA_ARGS__ })
#endif

static floats load(const float *from)
{
    floats x;
    memcpy(&x, from, sizeof x);
    return x;
}

static void store(float *to, floats x) /* NaN as tgl_one_nan() */
{
    const lanes is_nan = x != x, nan = { INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX };
    const lanes bits = ((lanes)x & ~is_nan) | (nan & is_nan);
    memcpy(to, &bits, sizeof bits);
}

static floats add_square(floats sums, const float *from, int64_t stride)
{
    const floats a = load(from), b = load(from + stride);
    const floats c = load(from + 2 * stride), d = load(from + 3 * stride);
    const floats ab01 = SHUFFLE(a, b, 0, 4, 1, 5), ab23 = SHUFFLE(a, b, 2, 6, 3, 7);
    const floats cd01 = SHUFFLE(c, d, 0, 4, 1, 5), cd23 = SHUFFLE(c, d, 2, 6, 3, 7);
    sums += SHUFFLE(ab01, cd01, 0, 1, 4, 5);
    sums += SHUFFLE(ab01, cd01, 2, 3, 6, 7);
    sums += SHUFFLE(ab23, cd23, 0, 1, 4, 5);
    return sums + SHUFFLE(ab23, cd23, 2, 3, 6, 7);
}

/* Divisions leave time to prefetch a later row. */
static void divide_row(const normalize_weight_args *p, int64_t t, int64_t later, float sum)
{
    const float *from = p->weights + t * p->row_stride, *next = p->weights + later * p->row_stride;
    float *to = p->normalized + t * p->num_topk;
    int64_t k = 0;
    for (; k + LINE <= p->num_topk; k += LINE) {
        __builtin_prefetch(next + k);
        for (int i = 0; i < LINE; i += SIDE) store(to + k + i, load(from + k + i) / sum);
    }
    for (; k + SIDE <= p->num_topk; k += SIDE) store(to + k, load(from + k) / sum);
    for (; k < p->num_topk; k++) to[k] = tgl_one_nan(from[k] / sum);
}

static floats add_rows(const normalize_weight_args *p, int64_t t, int rows)
{
    const float *from = p->weights + t * p->row_stride;
    floats sums = { NORMALIZE_EPSILON, NORMALIZE_EPSILON, NORMALIZE_EPSILON, NORMALIZE_EPSILON };
    int64_t k = 0;
    for (; rows == SIDE && k + SIDE <= p->num_topk; k += SIDE) sums = add_square(sums, from + k, p->row_stride);
    for (; k < p->num_topk; k++)
        for (int i = 0; i < rows; i++) sums[i] += from[i * p->row_stride + k];
    return sums;
}

void TGL_FAST(tgl_normalize_rows)(const void *context, int64_t begin, int64_t end)
{
    const normalize_weight_args *p = context;
    for (int64_t t = begin; t < end && p->num_topk == 0; t++) p->denominator[t] = NORMALIZE_EPSILON;
    for (int64_t t = begin; t < end && p->num_topk > 0; t += SIDE) {
        const int rows = end - t < SIDE ? (int)(end - t) : SIDE;
        const floats sums = add_rows(p, t, rows);
        for (int i = 0; i < rows; i++) {
            p->denominator[t + i] = tgl_one_nan(sums[i]);
            divide_row(p, t + i, t + i + SIDE < end ? t + i + SIDE : t + i, sums[i]);
        }
    }
}
